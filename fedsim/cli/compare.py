"""`fedsim compare`: two runs client by client, or a study seed by seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.common.errors import ConfigError, FolderError
from fedsim.common.terminal import Terminal

if TYPE_CHECKING:
    from rich.table import Table


def compare(
    first: Annotated[
        Path, typer.Argument(help="The folder of a run or of a study; differences are from it.")
    ],
    second: Annotated[
        Path | None, typer.Argument(help="Another run, or another study with the same axes.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Of runs: the split compared, by default their own.")
    ] = None,
    axis: Annotated[
        str | None, typer.Option(help="Of one study: the axis whose levels are compared.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Of one study: the level the others differ from.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="Of studies: a metric; may be repeated."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="POINT", help="Of studies: end, steps, time or bytes; may be repeated."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="Accuracy by groups of clients too: availability, compute, used, label, ..."),
    ] = None,
) -> None:
    """Show differences of two runs by client, or of studies by seed."""
    from fedsim.analysis.opening.study import is_study  # imported late: `fedsim --help` needs no pandas

    asked = {"axis": axis, "baseline": baseline, "metrics": metrics, "at": at, "group": by}
    if is_study(first):
        _refuse(first, "study", {"--split": split})
        tables = _of_studies(first, second, {key: value for key, value in asked.items() if value})
    elif not first.exists():
        raise FolderError(f"there is no folder {first}")
    elif second is None:
        raise ConfigError(f"{first} is no study: a run is compared with a second one; found none")
    else:
        _refuse(first, "run", {"--axis": axis, "--baseline": baseline, "--metric": metrics, "--at": at})
        tables = _of_runs(first, second, split, by)
    console = Terminal()
    for table in tables:
        console.print(table)


def _refuse(folder: Path, kind: str, options: dict[str, object]) -> None:
    """Raise ConfigError for options that say nothing about folders of this kind."""
    for option, value in options.items():
        if value:
            other = "studies" if kind == "run" else "runs"
            raise ConfigError(f"{option}: it is for {other}, and {folder} is a {kind}")


def _of_studies(first: Path, second: Path | None, asked: dict[str, object]) -> Iterator[Table]:
    from fedsim.analysis.opening.joining import two_studies
    from fedsim.analysis.opening.study import open_study
    from fedsim.analysis.tables.findings import study_tables

    study = open_study(first)
    if second is not None:
        study = two_studies(study, open_study(second))
    yield from study_tables(study.asked(asked))


def _of_runs(first: Path, second: Path, split: str | None, by: str | None) -> Iterator[Table]:
    from fedsim.analysis.opening.run import open_all
    from fedsim.analysis.opening.study import POINTS
    from fedsim.analysis.tables.compare import compare as pair
    from fedsim.analysis.tables.compare import equal_table
    from fedsim.analysis.tables.group_tables import run_participation_tables

    runs = open_all([first, second])
    if len(runs) != 2:
        raise ConfigError(
            f"{first} and {second}: expected two runs, found {len(runs)}: name the folder of each"
        )
    found = [pair(runs[0], runs[1], split, at) for at in POINTS]
    yield found[0].table()
    yield equal_table(found[1:])
    if by is not None:
        for run in runs:
            yield from run_participation_tables(run, [by])
