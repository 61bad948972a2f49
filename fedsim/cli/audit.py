"""`fedsim audit`: what remembered updates were worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.common.terminal import Terminal


def audit(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or the folder of a study, recorded with [audit].")
    ],
) -> None:
    """Show how wrong remembered updates were, by age. It also says whether conflicts that they reported were real."""
    from fedsim.analysis.tables.audit_tables import audit_groups, audit_tables

    console = Terminal()
    for part in audit_tables(audit_groups(runs)):
        console.print(part)
