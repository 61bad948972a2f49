"""`fedsim audit`: how far remembered updates were from the updates that their clients would have sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedsim import analysis
from fedsim.common.terminal import Terminal


def audit(
    runs: Annotated[list[Path], Argument(help="Run folders, or a study's folder, recorded with [audit].")],
    labels: Annotated[
        bool, Option("--labels", help="Compare with clients that hold the same labels.")
    ] = False,
) -> None:
    """Show how wrong remembered updates were, by age. It also shows whether the conflicts they reported were real."""
    for part in analysis.audit_tables(analysis.audit_groups(runs), labels=labels):
        Terminal().print(part)
