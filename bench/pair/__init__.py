"""The embedded tiny pair: a target and a draft that are small enough to ship.

Both speak the source code of the Python standard library, which every machine
that runs draftbus already has, so acceptance is real although no weights have
to be downloaded.
"""

from pathlib import Path

TARGET = Path(__file__).parent / "target"
DRAFT = Path(__file__).parent / "draft"

__all__ = ["DRAFT", "TARGET"]
