"""`fedsim report`: one page about one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.terminal import Terminal


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders; one that holds several arms stands for all of them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The page to write; by default report.html in the folder, or here if there are several."
        ),
    ] = None,
) -> None:
    """Write an HTML report about runs, side by side, and show the closing table."""
    from analysis.closing import closing_table  # imported late: `fedsim --help` needs no matplotlib
    from analysis.report import write_report
    from analysis.run import open_all

    opened = open_all(runs)
    console = Terminal()
    console.print(closing_table(opened))
    written = write_report(opened, out if out is not None else _beside(runs))
    console.print(f"report: {written}", soft_wrap=True, highlight=False)


def _beside(runs: list[Path]) -> Path:
    return runs[0] if len(runs) == 1 else Path()
