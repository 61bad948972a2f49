"""`fedsim compare`: two runs paired by client, or the levels of a study paired by seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from fedsim import analysis
from fedsim.common.errors import ConfigError, FolderError
from fedsim.common.terminal import Terminal

if TYPE_CHECKING:
    from rich.table import Table


_Second = Annotated[Path | None, Argument(help="Another run, or another study with the same axes.")]
_Split = Annotated[str | None, Option(help="Runs: the split to compare; by default the first run's.")]
_Baseline = Annotated[str | None, Option(help="One study: the level that the others are compared with.")]
_Metrics = Annotated[
    list[str] | None, Option("--metric", metavar="NAME", help="Studies: a metric; may be repeated.")
]
_At = Annotated[
    list[str] | None,
    Option(metavar="POINT", help="Studies: compare at end, steps, time or bytes; may be repeated."),
]
_By = Annotated[
    str | None, Option(help="Show accuracy by groups of clients too: availability, compute, used, label, ...")
]


def compare(
    first: Annotated[Path, Argument(help="The baseline: the folder of a run or of a study.")],
    second: _Second = None,
    split: _Split = None,
    axis: Annotated[str | None, Option(help="One study: the axis whose levels are compared.")] = None,
    baseline: _Baseline = None,
    metrics: _Metrics = None,
    at: _At = None,
    by: _By = None,
) -> None:
    """Show differences of two runs by client, or of studies by seed."""
    questions = {"axis": axis, "baseline": baseline, "metrics": metrics, "at": at, "group": by}
    if analysis.is_study(first):
        _refuse(first, "study", {"--split": split})
        tables = _of_studies(first, second, {key: value for key, value in questions.items() if value})
    elif not first.exists():
        raise FolderError(f"there is no folder {first}")
    elif second is None:
        raise ConfigError(f"{first} is no study: expected a second run to compare it with, found none")
    else:
        _refuse(first, "run", {"--axis": axis, "--baseline": baseline, "--metric": metrics, "--at": at})
        tables = _of_runs(first, second, split, by)
    for table in tables:
        Terminal().print(table)


def _refuse(folder: Path, kind: str, options: dict[str, object]) -> None:
    """Raise ConfigError if an option that only the other kind of folder has is set."""
    for option, value in options.items():
        if value:
            other = "studies" if kind == "run" else "runs"
            raise ConfigError(f"{option}: it is for {other}, and {folder} is a {kind}")


def _of_studies(first: Path, second: Path | None, questions: dict[str, object]) -> Iterable[Table]:
    study = analysis.open_study(first)
    if second is not None:
        study = analysis.join_studies(study, analysis.open_study(second))
    return analysis.study_tables(study.asked(questions))


def _of_runs(first: Path, second: Path, split: str | None, by: str | None) -> Iterator[Table]:
    runs = analysis.open_all([first, second])
    if len(runs) != 2:
        raise ConfigError(
            f"{first} and {second}: expected two runs, found {len(runs)}: name the folder of each"
        )
    at_end, *at_equal_points = (analysis.compare(runs[0], runs[1], split, at) for at in analysis.POINTS)
    yield at_end.table()
    yield analysis.comparison_table(at_equal_points)
    if by is not None:
        for run in runs:
            yield from analysis.run_participation_tables(run, [by])
