"""`fedsim study`: run a grid of configurations from one file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from fedsim import analysis, plugins
from fedsim.cli.options import Device, command_line, count_of, grouped, interrupted
from fedsim.common.errors import ConfigError, Error, RunError
from fedsim.common.terminal import Terminal, say, shown

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from fedsim.config.study.study import StudyConfig
    from fedsim.studies.run import Outcome


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Changes of the file."""

    scale: Annotated[str | None, Option(help="The name of one of the file's [scales].")] = None
    sets: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Change a key: run.stop.steps=20; may be repeated."),
    ] = None
    seeds: Annotated[
        str | None, Option(help="Other seeds: a number of seeds, or a list such as 3,7,9 or 6-10.")
    ] = None
    only: Annotated[
        list[str] | None,
        Option(
            metavar="AXIS=LEVEL",
            help="Run a part: these levels of an axis, as in rule=fedavg,fedfv; may be repeated.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """How and where the cells run."""

    out: Annotated[Path, Option("--out", "-o", help="Where the study's folder goes: OUT/NAME.")] = Path(
        "runs"
    )
    jobs: Annotated[
        str,
        Option(help="Cells that run at once, each in one process: a number, or auto, one per core."),
    ] = "auto"
    device: Device = "auto"
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the number of cells and estimate their cost.")
    ] = False
    force: Annotated[
        bool, Option("--force", help="Repeat cells that were run with a different configuration.")
    ] = False
    quiet: Annotated[
        bool, Option("--quiet", help="Print a line for each cell in place of a table in motion.")
    ] = False


@grouped
def study(
    file: Annotated[
        Path,
        Argument(metavar="STUDY.toml", help="A TOML file: `fedsim schema study` describes its keys."),
    ],
    *,
    changes: Changes,
    running: Running,
) -> None:
    """Run all unfinished cells of a study. A cell is one combination of its levels with one of its seeds."""
    from fedsim.studies.load_study import load_study  # imported here: `fedsim --help` does not need pydantic

    count_of(running.jobs, "--jobs", least=1)
    sets = [*(changes.sets or ()), *_parts_of_axes(changes.only or ())]
    config = load_study(file, scale=changes.scale, sets=sets, seeds=changes.seeds)
    run_cells(config, file.name, running, command_line("study", file, groups=(changes, running)))


def _parts_of_axes(texts: Iterable[str]) -> list[str]:
    """Return the assignments that stand for `--only AXIS=LEVEL,LEVEL`, one for each axis. Raises ConfigError."""
    parts: dict[str, list[str]] = {}
    for text in texts:
        axis, _, levels = (part.strip() for part in text.partition("="))
        if not axis or "." in axis or not levels:
            raise ConfigError(f"--only: expected AXIS=LEVEL, such as rule=fedavg,fedfv, found {text!r}")
        parts.setdefault(axis, []).extend(level.strip() for level in levels.split(","))
    return [f"only.{axis}={json.dumps(levels)}" for axis, levels in parts.items()]


def run_cells(config: StudyConfig, source: str, running: Running, again: str) -> None:
    """Run the unfinished cells of a study, of the file `source`, and show the results.

    The command `again` continues it. Raises typer.Exit with code 130 after an interrupt, RunError if a cell failed.
    """
    # Imported here: `fedsim --help` does not need torch.
    from fedsim.execution.actor_pool import workers_of
    from fedsim.studies.workers import begin_imports

    count = count_of(running.jobs, "--jobs", least=1)
    if running.dry_run:
        _show_plans(config, source, running, count)
        return
    if workers_of(count) > 1:
        begin_imports()  # the processes import torch while this one does
    from fedsim.studies.tune import to_tune

    if to_tune(config):
        config = _tuned(config, source, running, again)
    _close(_run(config, source, running, again), again)


def _show_plans(config: StudyConfig, source: str, running: Running, count: int | Literal["auto"]) -> None:
    """Show what the unfinished cells would cost, those of the tuning study first.

    Until that is done, every level has the first value, and cells that ran with another count as unfinished.
    """
    from fedsim.studies.estimate import plan_study, plan_table
    from fedsim.studies.run import opened
    from fedsim.studies.tune import provisional, to_tune, tuned, tuning_study

    force = running.force
    if to_tune(config):
        tried = opened(tuning_study(config, source), source, running.out, force=force, tuning=True)
        Terminal().print(plan_table(plan_study(tried, jobs=count)))
        config = provisional(config) if tried.left else tuned(config, tried.opened())
        force = force or bool(tried.left)
    folder = opened(config, source, running.out, force=force)
    Terminal().print(plan_table(plan_study(folder, jobs=count)))


def _tuned(config: StudyConfig, source: str, running: Running, again: str) -> StudyConfig:
    """Run the unfinished cells of the tuning study, and return the study with the values that it chose."""
    from fedsim.studies.run import tuning_before
    from fedsim.studies.tune import tuned, tuning_table

    outcome = _run(tuning_before(config, source, running.out), source, running, again, tuning=True)
    if outcome.interrupted:
        raise interrupted("interrupted, and saved", again)
    config = tuned(config, analysis.open_study(outcome.folder))
    Terminal().print(tuning_table(config, outcome.folder))
    return config


def _run(config: StudyConfig, source: str, running: Running, again: str, *, tuning: bool = False) -> Outcome:
    """Run the unfinished cells."""
    from fedsim.studies.progress import board_on
    from fedsim.studies.run import opened, run_study

    count, console = count_of(running.jobs, "--jobs", least=1), Terminal()
    folder = opened(config, source, running.out, force=running.force, tuning=tuning)
    try:
        with plugins.contained(), board_on(folder, console, running.quiet) as board:
            return run_study(board, jobs=count, device=running.device)
    except KeyboardInterrupt:  # the second Ctrl-C
        raise interrupted("interrupted", again) from None


def _close(outcome: Outcome, again: str) -> None:
    """Show the results.

    Raises typer.Exit with code 130 after an interrupt, RunError if a cell failed; the command `again` continues.
    """
    opened, console = analysis.open_study(outcome.folder), Terminal()
    cells, trouble = len(opened.cells), None
    try:
        for table in _tables(opened) if outcome.done else ():
            console.print(table)
    except Error as error:  # clients may lack the column that [compare] groups them by
        trouble = error
    if outcome.failed:
        console.print(_failures(outcome))
    digest = f"  digest {opened.digest[:16]}" if opened.digest else ""
    say(f"study: {outcome.folder}  {outcome.done} of {cells} cells done{digest}")
    if trouble is not None and (outcome.interrupted or outcome.failed):
        say(f"error: {trouble}", err=True)
    if outcome.interrupted:
        raise interrupted("interrupted, and saved", again)
    if outcome.failed:
        raise RunError(
            f"{outcome.folder}: {len(outcome.failed)} of {cells} cells failed; repeat them with: {again}"
        )
    if trouble is not None:
        raise trouble


def _tables(study: analysis.Study) -> Iterable[Table | Text]:
    """Return the study's tables, or those that put it beside a paper if it has `[published]`."""
    return analysis.study_tables(study) if study.published is None else analysis.published_tables(study)


def _failures(outcome: Outcome) -> Table:
    from rich.table import Column, Table

    headings = "cell", Column("error", overflow="fold")
    table = Table(*headings, title="failed", box=None, pad_edge=False, title_justify="left")
    for cell, error in outcome.failed:
        table.add_row(shown(cell.title), shown(error))
    return table
