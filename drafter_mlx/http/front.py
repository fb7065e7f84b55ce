"""What the server knows beside a request: the model, the desk, the queue, and whether they work."""

import hashlib
from dataclasses import dataclass

from anyio import CapacityLimiter

from bus.errors import Unreachable
from drafter_mlx.config import Config, Drafts, Serving
from drafter_mlx.desk import Desk, Standing
from drafter_mlx.http.metrics import Gauges, Metrics
from drafter_mlx.http.problems import Problem, unavailable
from drafter_mlx.http.prompts import Prompts
from drafter_mlx.http.reception import Reception

LOADING = "Loading model"


@dataclass(frozen=True)
class Office:
    """What there is to work with once the model is loaded."""

    desk: Desk
    prompts: Prompts
    reception: Reception


class Front:
    """The state of one server. Lives in the event loop's thread."""

    def __init__(self, config: Config, serving: Serving, drafts: Drafts) -> None:
        self.serving = serving
        self.drafts = drafts
        self.metrics = Metrics(self._gauges, self.model_name)
        self.draining = False
        self.tokenizing = CapacityLimiter(1)
        """Tokenizers are not thread-safe, and slow on long prompts."""
        self._office: Office | None = None
        self._address = config.verifier
        self._target = "unknown"

    def open(self, desk: Desk, prompts: Prompts) -> None:
        """The model is loaded."""
        serving = self.serving
        reception = Reception(desk, self.metrics, serving.max_concurrent, serving.max_queue)
        self._office = Office(desk, prompts, reception)

    @property
    def standing(self) -> Standing:
        return self._office.desk.standing if self._office else Standing()

    def trouble(self) -> str | None:
        """Why requests are not served now; None when they are."""
        if self.draining:
            return "the drafter is shutting down"
        if self._office is None:
            return LOADING
        standing = self.standing
        return None if standing.verifier else f"no verifier at {self._address}: {standing.trouble}"

    def loaded(self) -> Office:
        """Problem (503) while the model loads."""
        if self._office is None:
            raise unavailable(LOADING)
        return self._office

    def working(self) -> Office:
        """Problem (503) unless texts can be made."""
        if (trouble := self.trouble()) is not None:
            raise unavailable(trouble)
        return self.loaded()

    @property
    def idle(self) -> bool:
        """True when nothing is being made, nor waits."""
        reception = self._office and self._office.reception
        return not reception or not (reception.running or reception.waiting)

    def end_all(self) -> None:
        """Time is up: whatever is still being made ends with an error."""
        if self._office is not None:
            self._office.reception.end_all(Unreachable("the drafter is shutting down"))

    def model_name(self) -> str:
        """What is served: the target, under its own name or the given one."""
        verifier = self.standing.verifier
        self._target = verifier.model if verifier else self._target
        return self.serving.served_model_name or self._target

    def check_model(self, asked: str | None) -> None:
        """Problem (404) when another model is asked for."""
        name = self.model_name()
        if asked not in (None, name):
            message = f"model {asked!r} is not served here; {name!r} is"
            raise Problem(404, message, "model", "model_not_found")

    @property
    def fingerprint(self) -> str:
        """Changes with the target: the same seed may then give another text."""
        self.model_name()
        return "fp_" + hashlib.sha256(self._target.encode()).hexdigest()[:10]

    def _gauges(self) -> Gauges:
        standing = self.standing
        if self._office is None:
            return Gauges()
        reception = self._office.reception
        return Gauges(len(reception.running), len(reception.waiting), standing.in_flight,
                      standing.rtt_s)  # fmt: skip
