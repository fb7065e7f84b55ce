"""Flags that the commands share."""

from pathlib import Path
from typing import Annotated

import typer

from drafter_mlx.config import Dtype

Flag = typer.Option

Verifier = Annotated[str, Flag(help="Where the verifier listens: tcp://HOST:PORT.")]
Draft = Annotated[str, Flag(help="Folder or hub id of the draft.")]
Drafting = Annotated[str, Flag(help="Drafting strategy.")]
Acceptance = Annotated[str, Flag(help="Acceptance strategy.")]
NumDraftTokens = Annotated[int, Flag(min=1, max=64, help="Draft length; the depth of a beam.")]
Window = Annotated[
    int,
    Flag("--window", "--spec-draft-n-max", min=1, max=64, help="How far to draft beyond the tip."),
]
Branches = Annotated[
    int,
    Flag(
        "--branches",
        "--num-candidates",
        min=1,
        max=16,
        help="Children of a node in a tree; candidates; the width of a beam.",
    ),
]
StepNodes = Annotated[
    int, Flag(min=1, max=64, help="Most nodes that `tree` feeds to the draft at once.")
]
Calibration = Annotated[
    Path | None, Flag(help="Keep what is learned about the draft's chances in this file.")
]
Precision = Annotated[Dtype, Flag(help="auto: as stored, float32 on a CPU.")]
Deadline = Annotated[float, Flag(min=0.1, help="Seconds a verifier may be missing.")]
TrustRemoteCode = Annotated[bool, Flag(help="Run code that comes with the model.")]
