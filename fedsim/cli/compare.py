"""`fedsim compare`: runs paired by client, or the levels of a study paired by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from fedsim import analysis
from fedsim.cli.options import grouped
from fedsim.common.errors import ConfigError, FolderError
from fedsim.common.terminal import Terminal, shown

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


_Second = Annotated[Path | None, Argument(help="Another run, or another study with the same axes.")]


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What is compared."""

    split: Annotated[
        str | None,
        Option(help="The split to compare, such as unseen; by default the baseline's, or the study's."),
    ] = None
    axis: Annotated[str | None, Option(help="One study: the axis whose levels are compared.")] = None
    baseline: Annotated[
        str | None, Option(help="One study or folder of arms: what the others are compared with.")
    ] = None
    metrics: Annotated[
        list[str] | None,
        Option(
            "--metric",
            metavar="NAME",
            help="Studies: a metric, as fedsim list metrics names them, or FILE.py:NAME; may be repeated.",
        ),
    ] = None
    at: Annotated[
        list[str] | None,
        Option(
            metavar="POINT",
            help="Studies or two runs: compare at end, at equal steps, time or bytes, or at steps=500, time=6h or "
            "bytes=1GB; may be repeated.",
        ),
    ] = None
    last: Annotated[
        int | None,
        Option(
            metavar="N", min=1, help="Studies: compare means over the last N evaluations up to the point."
        ),
    ] = None
    test: Annotated[
        Literal["rank", "t"] | None,
        Option(
            help="Studies: the test that decides, Wilcoxon's signed-rank test or Student's paired t test."
        ),
    ] = None
    target: Annotated[
        str | None,
        Option(
            metavar="METRIC=VALUE",
            help="One study: show how long its runs take until a metric reaches a value.",
        ),
    ] = None
    claims: Annotated[
        list[str] | None,
        Option(
            "--claim",
            metavar="CLAIM",
            help="One study: test an order of levels, such as 'mean_percent: fedavg < fedfv, fedlf'; may be repeated.",
        ),
    ] = None
    published: Annotated[
        bool, Option("--published", help="One study: show the values and claims of its [published] alone.")
    ] = False
    components: Annotated[
        bool,
        Option(
            "--components", help="One study: show which seeds make a metric differ: data, world, training."
        ),
    ] = False
    by: Annotated[
        str | None,
        Option(
            help="Show accuracy by groups of clients too, also of one run: availability, compute, used, label, ..."
        ),
    ] = None

    def of_studies(self) -> dict[str, Any]:
        """Return the options of studies that are set, as keys of a study's `compare`."""
        named = {"axis": self.axis, "baseline": self.baseline, "split": self.split, "by": self.by}
        for option, name in named.items():
            if name == "":
                raise ConfigError(f"--{option}: expected a name, found none")
        keys = {"axis": self.axis, "baseline": self.baseline, "metrics": self.metrics, "at": self.at}
        more = {"last": self.last, "split": self.split, "group": self.by, "test": self.test}
        return {key: value for key, value in (keys | more).items() if value}


@grouped
def compare(
    first: Annotated[Path, Argument(help="The baseline, a run or a study; or a folder of several arms.")],
    second: _Second = None,
    *,
    what: Questions,
) -> None:
    """Show differences of runs by client, or of studies by seed. Arms are compared with the first of them."""
    if not first.exists():
        raise FolderError(f"there is no folder {first}")
    of_studies = _beside_paper if what.published else _of_claims if what.claims else _of_studies
    of_kind = of_studies if analysis.is_study(first) else _run_tables
    for table in of_kind(first, second, what):
        Terminal().print(table)


def _run_tables(first: Path, second: Path | None, what: Questions) -> Iterable[Table | Text]:
    of_studies = {
        "--axis": what.axis,
        "--metric": what.metrics,
        "--at": what.at if second is None else None,
        "--last": what.last,
        "--test": what.test,
        "--target": what.target,
        "--claim": what.claims,
        "--published": what.published,
        "--components": what.components,
    }
    _refuse(first, "run", of_studies)
    if second is None:
        return _of_arms(first, what)
    if what.baseline:
        raise ConfigError(
            "--baseline: it is for a study or a folder of arms; of two runs the first is the baseline"
        )
    return _of_runs(first, second, what)


def _refuse(folder: Path, kind: str, options: Mapping[str, object]) -> None:
    """Raise ConfigError if an option that only the other kind of folder has is set."""
    for option, value in options.items():
        if value:
            other = "studies" if kind == "run" else "runs"
            raise ConfigError(f"{option}: it is for {other}, and {folder} is a {kind}")


def _of_studies(first: Path, second: Path | None, what: Questions) -> Iterable[Table | Text]:
    if what.components and (what.by or what.test or second is not None):
        raise ConfigError(
            "--components: it describes one study, and takes neither another one nor --by or --test"
        )
    study = analysis.open_study(first)
    _require_finished(study)
    if second is not None:
        other = analysis.open_study(second)
        _require_finished(other)
        study = analysis.join_studies(study, other)
    asked = study.asked(what.of_studies())
    if what.target is not None:
        return _to_target(asked, what.target, what)
    if second is not None:
        differ = [shown(study.description)] if study.description else []
        return chain(differ, analysis.study_tables(asked))
    return analysis.component_tables(asked) if what.components else analysis.study_tables(asked)


def _require_finished(study: analysis.Study) -> None:
    """Raise FolderError if no run of a study is done, as there is nothing to compare."""
    if not study.finished:
        left = Counter(cell.status for cell in study.cells)
        counts = ", ".join(f"{count} {status}" for status, count in left.items())
        raise FolderError(
            f"{study.folder}: no run of the study is done: {counts}; run them with fedsim study"
        )


def _to_target(study: analysis.Study, target: str, what: Questions) -> Iterable[Table]:
    from fedsim.config.study.compare import parse_target

    units = set(what.at or ()) <= {"steps", "time", "bytes"}
    if what.metrics or what.by or what.test or what.components or not units:
        raise ConfigError(
            "--target: it names the metric, and takes --axis, --baseline, --split, --last and --at steps, time or bytes"
        )
    try:
        metric, value = parse_target(target)
    except ValueError as error:
        raise ConfigError(f"--target: {error}") from error
    return analysis.target_tables(study, metric, value)


def _beside_paper(first: Path, second: Path | None, what: Questions) -> Iterable[Table]:
    more = "--claim" if what.claims else _beyond(what, {"last"})
    if second is not None or more:
        raise ConfigError(
            "--published: it compares one study with its paper, and takes no other study or option but --last; found "
            f"{more or second}"
        )
    return analysis.published_tables(analysis.open_study(first).asked(what.of_studies()))


def _of_claims(first: Path, second: Path | None, what: Questions) -> Iterable[Table]:
    more, points = _beyond(what, {"at", "last", "split"}), what.at or ["end"]
    if second is not None or more or len(points) > 1:
        raise ConfigError(
            "--claim: it is about one study at one point, and takes no other study or option but --at, --last and "
            f"--split; found {more or second or ' and '.join(points)}"
        )
    study = analysis.open_study(first)
    _require_finished(study)
    return [analysis.claim_table(study.asked(what.of_studies()), what.claims or [], points[0])]


def _beyond(what: Questions, allowed: set[str]) -> str:
    """Return the options that are set beside --published or --claim and those allowed, keys of `compare`."""
    options = {"group": "--by", "metrics": "--metric"}
    found = [options.get(key, f"--{key}") for key in what.of_studies() if key not in allowed]
    found += ["--target"] * (what.target is not None) + ["--components"] * what.components
    return ", ".join(found)


def _of_arms(folder: Path, what: Questions) -> Iterator[Table]:
    runs = analysis.open_all(folder)
    if len(runs) > 1:
        yield analysis.arms_table(runs, what.baseline, what.split)
    elif what.by is None or what.baseline is not None:
        raise ConfigError(
            f"{folder} is no study: expected a second run to compare it with, found none; one run alone is shown with "
            "--by"
        )
    if what.by is not None:
        for run in runs:
            yield from analysis.run_participation_tables(run, [what.by], what.split)


def _of_runs(first: Path, second: Path, what: Questions) -> Iterator[Table | Text]:
    runs = analysis.open_all([first, second])
    if len(runs) != 2:
        raise ConfigError(
            f"{first} and {second}: expected two runs, found {len(runs)}: name the folder of each"
        )
    at_end = analysis.compare(runs[0], runs[1], what.split)
    yield at_end.table()
    at_equal_points: list[analysis.Comparison] = []
    refused: list[Text] = []
    for at in (at for at in what.at or analysis.POINTS if at != "end"):
        try:
            at_equal_points.append(analysis.compare(runs[0], runs[1], what.split, at))
        except FolderError as error:  # other clients were evaluated there
            refused.append(shown(str(error)))
    if at_equal_points:
        yield analysis.comparison_table(at_equal_points)
    yield from refused
    if what.by is not None:
        for run in runs:
            yield from analysis.run_participation_tables(run, [what.by], at_end.split)
