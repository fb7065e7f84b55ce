"""What to draft, what to accept, and the data both work on. Pure: no clock, socket or model.

Strategies are found by name through entry points, ours like everybody else's:
group `draftbus.acceptance` or `draftbus.drafting`, each naming a factory.
"""

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from bus.errors import BadSetup

Kind = Literal["acceptance", "drafting"]


def names(kind: Kind) -> list[str]:
    """The names that `load` knows."""
    return sorted({point.name for point in entry_points(group=f"draftbus.{kind}")})


@functools.cache
def load(kind: Kind, name: str) -> Any:
    """The factory registered for `name`; BadSetup with the known names if there is none.

    An acceptance factory takes no argument and returns an `Acceptance`; a drafting
    factory takes `Options` and returns a `Drafting`.
    """
    found: list[EntryPoint] = list(entry_points(group=f"draftbus.{kind}", name=name))
    if not found:
        known = ", ".join(names(kind)) or "none: install draftbus with pip first"
        raise BadSetup(f"no {kind} strategy is called {name!r}; known are: {known}")
    return found[0].load()


def name_in(text: str) -> str:
    """The name in `NAME` or `NAME:NUMBER:...`."""
    return text.split(":")[0]


def make_acceptance(text: str) -> Any:
    """The strategy that `NAME` or `NAME:NUMBER:...` describes, such as `threshold:0.2`.

    BadSetup when there is no such name, or it takes no such numbers.
    """
    _, *parts = text.split(":")
    factory = load("acceptance", name_in(text))
    if not parts:
        return factory()
    try:
        return factory(*map(float, parts))
    except (TypeError, ValueError) as error:
        raise BadSetup(f"acceptance {text!r}: {error}") from None
