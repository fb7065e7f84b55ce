"""What the sessions of one drafter learn together, and the file that keeps it."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from bus.errors import BadSetup
from bus.messages import Sampling
from strategies import calibration
from strategies.calibration import Calibration
from strategies.costs import Costs


@dataclass
class Experience:
    """What the sessions of one drafter learn together."""

    greedy: Calibration = field(default_factory=lambda: Calibration(calibration.drafting))
    sampled: Calibration = field(default_factory=lambda: Calibration(calibration.drafting))
    drawn: Calibration = field(default_factory=lambda: Calibration(calibration.drafting))
    """Of tokens drawn at random, which know only their rank."""
    step_costs: Costs = field(default_factory=Costs)

    def calibration(self, sampling: Sampling, drawn: bool = False) -> Calibration:
        """The one for a way of sampling: keyed noise makes a first choice surer."""
        if drawn:
            return self.drawn
        return self.greedy if sampling.greedy else self.sampled

    def load(self, path: Path) -> None:
        """Take over what `path` keeps, if it is there; BadSetup when it is something else."""
        if not path.exists():
            return
        try:
            kept = json.loads(path.read_text("utf-8"))
            self.greedy.load(kept["greedy"])
            self.sampled.load(kept["sampled"])
            if "drawn" in kept:  # an earlier release knew nothing of it
                self.drawn.load(kept["drawn"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadSetup(
                f"{path} keeps no calibration of this release ({error}): choose another "
                "--calibration, or remove it to begin anew"
            ) from None

    def save(self, path: Path) -> None:
        """Write what was learned to `path`, which is never left half written."""
        kept = {name: getattr(self, name).to_json() for name in ("greedy", "sampled", "drawn")}
        beside = path.with_name(path.name + ".partial")
        try:
            beside.write_text(json.dumps(kept) + "\n", "utf-8")
            os.replace(beside, path)
        except OSError as error:
            raise BadSetup(f"cannot write --calibration {path}: {error.strerror}") from None
