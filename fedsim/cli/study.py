"""`fedsim study`: a grid of runs from one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim import analysis
from fedsim.cli.run import Device, Quiet, workers_of_text
from fedsim.common.errors import RunError
from fedsim.common.terminal import Terminal, shown

if TYPE_CHECKING:
    from rich.table import Table

    from fedsim.studies.run import Outcome


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="A TOML file; see docs/studies.md.")],
    out: Annotated[Path, typer.Option(help="Where the study's folder goes: OUT/NAME.")] = Path("runs"),
    jobs: Annotated[
        str,
        typer.Option(
            help="Processes, each of which runs one cell at a time: auto, one per core, or a number."
        ),
    ] = "auto",
    scale: Annotated[str | None, typer.Option(help="One of the file's [scales].")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the file: run.stop.steps=20; may be repeated.",
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Other seeds: so many, or several as 3,7,9.")] = None,
    device: Device = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many cells there are and what they will take.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Run cells anew that were run with another configuration.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run every cell of a study that is not done yet. A cell is one combination of its levels with one of its seeds."""
    # Imported late: `fedsim --help` needs neither torch nor pydantic.
    from fedsim.config.study import load_study
    from fedsim.execution.actor_pool import workers_of
    from fedsim.studies.workers import begin_imports

    count = workers_of_text(jobs, "--jobs", least=1)
    asked = load_study(file, scale=scale, sets=sets or (), seeds=seeds)
    if not dry_run and workers_of(count) > 1:
        begin_imports()  # of torch, which takes seconds, at the same time as here
    from fedsim.studies.run import opened, run_study

    folder, console = opened(asked, file.name, out, force=force), Terminal()
    if dry_run:
        from fedsim.studies.estimate import plan_study, plan_table

        console.print(plan_table(plan_study(folder, jobs=count)))
        return
    from fedsim.studies.progress import board_on

    with board_on(console, quiet) as board:
        outcome = run_study(folder, board, jobs=count, device=device)
    _close(console, outcome, len(folder.cells))


def _close(console: Terminal, outcome: Outcome, cells: int) -> None:
    """Show what came out. Exit code 130 after an interrupt, 1 if a cell failed."""
    for table in analysis.study_tables(outcome.folder) if outcome.done else ():
        console.print(table)
    if outcome.failed:
        console.print(_failures(outcome))
    console.print(
        f"study: {outcome.folder}  {outcome.done} of {cells} cells done", soft_wrap=True, highlight=False
    )
    if outcome.interrupted:
        console.print("interrupted, and saved; the same command goes on with it", soft_wrap=True)
        raise typer.Exit(130)
    if outcome.failed:
        raise RunError(
            f"{outcome.folder}: {len(outcome.failed)} of {cells} cells failed; the same command tries them again"
        )


def _failures(outcome: Outcome) -> Table:
    from rich.table import Table

    table = Table(title="failed", box=None, pad_edge=False, title_justify="left")
    table.add_column("cell")
    table.add_column("error", overflow="fold")
    for cell, error in outcome.failed:
        table.add_row(shown(cell.title), shown(error))
    return table
