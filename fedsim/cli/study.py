"""`fedsim study`: run a grid of configurations from one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fedsim import analysis
from fedsim.cli.options import Device, Quiet, count_of
from fedsim.common.errors import RunError
from fedsim.common.terminal import Terminal, say, shown

if TYPE_CHECKING:
    from rich.table import Table

    from fedsim.studies.run import Outcome


_Jobs = Annotated[
    str, Option(help="Processes, each of which runs one cell at a time: auto, one per core, or a number.")
]
_Sets = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change a key: run.stop.steps=20; may be repeated."),
]
_Seeds = Annotated[str | None, Option(help="Other seeds: a number of seeds, or a list such as 3,7,9.")]
_DryRun = Annotated[bool, Option("--dry-run", help="Show the number of cells and estimate their cost.")]
_Force = Annotated[bool, Option("--force", help="Repeat cells that were run with a different configuration.")]


def study(
    file: Annotated[Path, Argument(metavar="STUDY.toml", help="A TOML file; see docs/studies.md.")],
    out: Annotated[Path, Option(help="Where the study's folder goes: OUT/NAME.")] = Path("runs"),
    jobs: _Jobs = "auto",
    scale: Annotated[str | None, Option(help="The name of one of the file's [scales].")] = None,
    sets: _Sets = None,
    seeds: _Seeds = None,
    device: Device = "auto",
    dry_run: _DryRun = False,
    force: _Force = False,
    quiet: Quiet = False,
) -> None:
    """Run all unfinished cells of a study. A cell is one combination of its levels with one of its seeds."""
    # Imported here: `fedsim --help` needs neither torch nor pydantic.
    from fedsim.config.study import load_study
    from fedsim.execution.actor_pool import workers_of
    from fedsim.studies.workers import begin_imports

    count = count_of(jobs, "--jobs", least=1)
    config = load_study(file, scale=scale, sets=sets or (), seeds=seeds)
    if not dry_run and workers_of(count) > 1:
        begin_imports()  # the processes import torch while this one does
    from fedsim.studies.progress import board_on
    from fedsim.studies.run import opened, run_study

    folder, console = opened(config, file.name, out, force=force), Terminal()
    if dry_run:
        from fedsim.studies.estimate import plan_study, plan_table

        console.print(plan_table(plan_study(folder, jobs=count)))
        return
    with board_on(folder, console, quiet) as board:
        outcome = run_study(board, jobs=count, device=device)
    _close(console, outcome, len(folder.cells))


def _close(console: Terminal, outcome: Outcome, cells: int) -> None:
    """Show the results. Raises typer.Exit with code 130 after an interrupt, RunError if a cell failed."""
    for table in analysis.study_tables(outcome.folder) if outcome.done else ():
        console.print(table)
    if outcome.failed:
        console.print(_failures(outcome))
    say(f"study: {outcome.folder}  {outcome.done} of {cells} cells done")
    if outcome.interrupted:
        say("interrupted, and saved; the same command continues it")
        raise typer.Exit(130)
    if outcome.failed:
        raise RunError(
            f"{outcome.folder}: {len(outcome.failed)} of {cells} cells failed; the same command repeats them"
        )


def _failures(outcome: Outcome) -> Table:
    from rich.table import Column, Table

    headings = "cell", Column("error", overflow="fold")
    table = Table(*headings, title="failed", box=None, pad_edge=False, title_justify="left")
    for cell, error in outcome.failed:
        table.add_row(shown(cell.title), shown(error))
    return table
