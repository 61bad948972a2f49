"""The sections of a report on participation: fairness against it, for runs and for a study, and selectors of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.study import Study
from fedsim.analysis.plots.paired_differences import paired_differences
from fedsim.analysis.plots.participation_groups import participation_groups
from fedsim.analysis.plots.selection_regret import regret_over_time
from fedsim.analysis.report.comparison_blocks import difference_block
from fedsim.analysis.report.document import (
    Block,
    Column,
    Figure,
    Gallery,
    Heading,
    Table,
    Text,
    frame_table,
    slugs,
)
from fedsim.analysis.statistics.bootstrap import FEW_NOTE, spread_of
from fedsim.analysis.tables.difference_tables import conditions
from fedsim.analysis.tables.group_tables import (
    ONE_BY_ONE,
    groups_of_levels,
    participation_differences,
    run_participation,
    study_participation,
)
from fedsim.analysis.tables.headings import heading_of
from fedsim.analysis.worlds.choices import participation_gap, regrets
from fedsim.common.errors import ConfigError, DataError, RunError, TraceError
from fedsim.common.units import US
from fedsim.records.file_names import CLIENTS, WORLD

if TYPE_CHECKING:
    import pandas as pd

HEADING = "Fairness against participation"
_WEIGHTS = (
    "Quartiles are of clients: the first is there least. From and to are shares of time for availability, samples/s"
    " for compute, bytes/s for links, and numbers of jobs, updates or samples. Of the two means one counts each client"
    f" once and one each sample once; intervals are 95 % bootstrap intervals over {ONE_BY_ONE}. {FEW_NOTE} A"
    " correlation says what goes together, not what causes what."
)
_MOST_GROUPINGS = 4
"""Groupings in the figure; the table has all."""
_GROUPS = {
    "from": Column("from", None),
    "to": Column("to", None),
    "mean_percent": Column("mean over clients, %", 2),
    "low": Column("95 % low", 2),
    "high": Column("95 % high", 2),
    "mean_over_samples_percent": Column("mean over samples, %", 2),
    "std_percent": Column("std, %", 2),
    "min_percent": Column("least, %", 2),
}


_VALUE = {"value": Column("correlation", 3, signed=True)}
_CAPTIONS = {
    "groups": "Accuracy by group of clients",
    "losses": "Survivors against victims of dropout: clients by the jobs that they lost",
    "correlations": "Correlation of a client's accuracy with its participation",
}
_SPREAD = {
    "seeds": Column("seeds"),
    "mean_percent": Column("mean over clients, %", 2),
    "low": Column("95 % low", 2),
    "high": Column("95 % high", 2),
    "std_percent": Column("s.d. over seeds, %", 2),
    "fewest": Column("fewest clients"),
    "most": Column("most clients"),
}


def runs_participation(runs: Sequence[Run]) -> Iterator[Block]:
    """Yield the accuracy of groups of clients, for runs that were evaluated."""
    participation: dict[str, dict[str, pd.DataFrame]] = {}
    refused = []
    for run in runs:
        try:
            if run.evaluations():
                participation[run.label] = run_participation(run)
        except (RunError, TraceError) as error:
            refused.append(Text(f"{run.label}: not shown: {error}.", "note"))
    if not participation and not refused:
        return
    yield Heading(HEADING)
    yield from refused
    drawn = {run.label: _first_groupings(participation.get(run.label)) for run in runs}
    if any(len(table) for table in drawn.values()):
        draw = partial(participation_groups, drawn, "a 95 % interval over clients")
        yield Figure("participation-groups", draw)
    for name, caption in _CAPTIONS.items():
        if len(joined := _joined(participation, name)):
            yield frame_table(f"participation-{name}", caption, joined, _GROUPS | _VALUE)
    yield Text(_WEIGHTS, "note")


def study_participation_blocks(study: Study) -> Iterator[Block]:
    """Yield the accuracy of groups over the seeds of a study, and paired differences in the measures of groups."""
    yield Heading(HEADING)
    try:
        participation = study_participation(study)
        families = participation_differences(study, participation["measures"])
    except (ConfigError, DataError, RunError, TraceError) as error:
        yield Text(f"Not shown: {error}.", "note")
        return
    groups, axis = participation["groups"], study.axis() if study.axes else ""
    spread = _over_seeds(study, groups)
    yield Gallery(tuple(_group_figures(study, spread, axis)))
    by = str(groups["by"].iloc[0]).replace("_", " ")
    place = f"at the end of the runs{conditions(study)}"
    caption = f"Accuracy by {by} {place}: the mean over seeds and its 95 % bootstrap interval"
    yield frame_table("participation-groups", caption, spread.drop(columns="by"), _SPREAD)
    yield _measures(study, participation["measures"])
    by_name = {family[0].metric.replace("_", "-"): family for family in families}
    draw = {name: partial(paired_differences, family, study.axes[axis]) for name, family in by_name.items()}
    yield Gallery(tuple(Figure(f"difference-{name}", each) for name, each in draw.items()))
    for name, family in by_name.items():
        yield difference_block(f"differences-{name}", family, study)


def _first_groupings(frames: dict[str, pd.DataFrame] | None) -> pd.DataFrame:
    """Return the groups to draw; none for a run without evaluation, which keeps its place among the arms."""
    import pandas as pd

    if frames is None or not len(frames["groups"]):
        return pd.DataFrame(columns=["by", "group", "mean_percent", "low", "high", "fewest", "most"])
    groups = frames["groups"].assign(fewest=frames["groups"]["clients"], most=frames["groups"]["clients"])
    return groups[groups["by"].isin(list(dict.fromkeys(groups["by"]))[:_MOST_GROUPINGS])]


def _joined(participation: dict[str, dict[str, pd.DataFrame]], name: str) -> pd.DataFrame:
    """Stack the frames of runs, with a first column `run` if there are several."""
    import pandas as pd

    frames = {label: frames[name] for label, frames in participation.items() if len(frames[name])}
    if not frames:
        return pd.DataFrame()
    together = pd.concat(frames, names=["run"]).reset_index(level="run").reset_index(drop=True)
    return together if len(participation) > 1 else together.drop(columns="run")


def _over_seeds(study: Study, groups: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of each group over seeds with its interval, a row per combination of levels."""
    import pandas as pd

    rows = []
    for key, name, part in groups_of_levels(study, groups):
        spread = spread_of(part["mean_percent"].to_numpy(dtype=float))
        numbers = [spread[each] for each in ("mean", "low", "high", "std")]
        sizes = part["clients"].min(), part["clients"].max()
        rows.append((*key, part["by"].iloc[0], name, len(part), *numbers, *sizes))
    spreads = ["mean_percent", "low", "high", "std_percent"]
    names = [*study.axes, "by", "group", "seeds", *spreads, "fewest", "most"]
    return pd.DataFrame(rows, columns=names)


def _group_figures(study: Study, spread: pd.DataFrame, axis: str) -> Iterator[Figure]:
    """Yield a figure per combination of the other levels, with the compared ones side by side."""
    others = [name for name in study.axes if name != axis]
    parts = [(key, part) for key, part in spread.groupby(others, sort=False)] if others else [((), spread)]
    names = slugs("-".join(map(str, key)) or "all" for key, _ in parts)
    for slug, (key, part) in zip(names, parts, strict=True):
        where = ", ".join(f"{name}={level}" for name, level in zip(others, key, strict=True))
        arms = {str(k): t for k, t in part.groupby(axis, sort=False)} if axis else {study.name: part}
        draw = partial(participation_groups, arms, "a 95 % interval over seeds", where)
        yield Figure(f"participation-groups{f'-{slug}' if others else ''}", draw)


def _measures(study: Study, measures: pd.DataFrame) -> Table:
    """Return mean and standard deviation over seeds of each measure, and the seeds of those that some cells lack."""
    names = [str(name) for name in measures if name not in (*study.axes, "seed")]
    statistics = {
        name: ("mean", "std", *(["count"] if measures[name].isna().any() else [])) for name in names
    }
    columns = [*map(Column, study.axes or ("study",)), Column("seeds")]
    for name, of in statistics.items():
        wide = name.startswith("spearman")
        columns += [Column(heading_of(name), 3, wide=wide), Column("s.d.", 3, wide=wide)]
        columns += [Column("of seeds", wide=wide)] * ("count" in of)
    parts = measures.groupby(list(study.axes), sort=False) if study.axes else [((study.name,), measures)]
    rows = []
    for key, part in parts:
        numbers = [part[name].agg(each) for name, of in statistics.items() for each in of]
        rows.append((*key, len(part), *numbers))
    caption = "Fairness against participation: means over seeds, and standard deviations over seeds"
    return Table("participation-measures", caption, tuple(columns), tuple(rows))


# Selection

_SELECTION = (
    Column("run"),
    Column("choices looked at"),
    Column("mean regret", 3),
    Column("time lost per choice, s", 1),
    Column("jobs to move, %", 1),
    Column("used updates to move, %", 1),
)
_SELECTION_NOTE = (
    "Regret compares each choice with the best one among the same candidates, by the world's true times: a step ahead,"
    " along the run's own history. Jobs to move: the share of jobs that would have to go to other clients for all to"
    " have the same share; used updates likewise."
)


def selection_blocks(runs: Sequence[Run]) -> Iterator[Block]:
    """Yield the blocks about the selectors of runs; none without a finished run whose world and clients are known."""
    known = [run for run in runs if run.done and all((run.folder / n).is_file() for n in (WORLD, CLIENTS))]
    known = [run for run in known if len(run.jobs)]
    if not known:
        return
    yield Heading("Selection")
    try:
        found = regrets(known)
        rows = tuple(_selection_row(run, found[run.label]) for run in known)
    except (ConfigError, RunError, TraceError) as error:
        yield Text(f"Not shown: {error}.", "note")
        return
    yield Table("selection", "Choices of the selectors", _SELECTION, rows)
    yield Text(_SELECTION_NOTE, "note")
    if any(frame["regret"].any() for frame in found.values()):
        yield Figure("selection-regret", partial(regret_over_time, found))
    else:
        yield Text("No choice could have been faster among its candidates.")


def _selection_row(run: Run, frame: pd.DataFrame) -> tuple[object, ...]:
    lost_s = float((frame["took_us"] - frame["best_us"]).mean()) / US
    gaps = (100 * participation_gap(run), 100 * participation_gap(run, used=True))
    return run.label, len(frame), float(frame["regret"].mean()), lost_s, *gaps
