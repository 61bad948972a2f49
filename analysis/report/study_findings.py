"""What a study says: levels of the compared axis against the baseline, paired by seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedsim.analysis.opening.points import place_of
from fedsim.analysis.opening.study import Cell, Study, Test
from fedsim.analysis.report.document import Finding, Topic
from fedsim.analysis.report.doubts import doubts, examine
from fedsim.analysis.report.lost_work import Work, lost_work, together, work_of
from fedsim.analysis.report.run_findings import (
    PARTICIPATION,
    against,
    least_participation,
    participation_sentence,
)
from fedsim.analysis.report.sentences import Claims, listed, seeds, sentence, told
from fedsim.analysis.statistics.bootstrap import FEWEST
from fedsim.analysis.statistics.contrasts import Contrast, by_seed
from fedsim.analysis.statistics.paired.differences import Better, PairedDifference, differences_of
from fedsim.analysis.statistics.paired.interaction import interactions
from fedsim.analysis.statistics.paired.significance import ALPHA, smallest_p
from fedsim.analysis.tables.difference_tables import averaged, by_axis, conditions, on_split
from fedsim.analysis.tables.headings import heading_of, heading_of_difference
from fedsim.analysis.tables.study_tables import metrics_of, points_of
from fedsim.common.arrays import Floats
from fedsim.common.errors import ConfigError, RunError

_MEAN, _WORST = "mean_percent", ("worst10_percent", "worst5_percent", "min_percent")
_WORDS = {
    "mean_percent": "in mean accuracy",
    "worst10_percent": "for the worst 10 % of clients",
    "worst5_percent": "for the worst 5 % of clients",
    "min_percent": "for the worst client",
}
_TAKES: dict[Test, str] = {
    "rank": "also takes a rank test with p Holm up to 5 %",
    "t": "takes one that leaves out 0",
}
"""What a difference must have beside an interval for a sentence to call it better or worse."""


def study_findings(study: Study) -> Iterator[Finding]:
    """Yield what a study says. Raises RunError if a finished run's files cannot be read."""
    if study.last > 1:
        study.frame([], points_of(study)[0])  # raises an error that the sentences below would hide
    seen = _Seen.of(study)
    metrics = _headlines(study)
    families = _families(study, metrics)
    by = seen.by(study)
    gaps: list[tuple[str, Floats, Better]] = [
        (name, np.array(values), "larger") for name, values in seen.gaps.get(by, {}).items()
    ]
    compared = [each for family in families for each in family]
    told_together = [*((_name(study, each), each.values, each.better_is) for each in compared), *gaps]
    sizes = [len(values) for _, values, _ in told_together]
    contrasts = by_seed(told_together, study.test)
    topics: tuple[Topic, ...] = ("accuracy", "worst-off clients")
    if not families:
        yield Finding("accuracy", _levels(study, metrics[0]))
    for topic, family in zip(topics, families, strict=False):
        chosen, contrasts = contrasts[: len(family)], contrasts[len(family) :]
        yield Finding(topic, _compared(family, chosen, study))
    yield from _interactions(study, metrics[0])
    if contrasts:
        text = participation_sentence(contrasts, by, seen.counts[by], study.split)
        yield Finding("participation", text)
    if study.finished:
        each = f"with each {' and '.join(study.axes)}"
        yield Finding("lost work", lost_work({n: together(works) for n, works in seen.works.items()}, each))
    if clauses := list(_doubts(study, compared, sizes, seen)):
        yield Finding("doubts", sentence("; ".join(clauses)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of each finished run, so that the tables of only one are in memory."""

    works: dict[str, list[Work]] = field(default_factory=dict)
    """By combination of levels."""
    gaps: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """By measure and combination, for each seed: mean accuracy of clients that take part least minus that of others."""
    counts: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """By measure: clients that take part least, and all clients."""
    examined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    without: Counter[str] = field(default_factory=Counter)
    """By combination of levels: runs that end without an accuracy."""

    @classmethod
    def of(cls, study: Study) -> _Seen:
        """Read the finished runs of a study, one after the other."""
        seen = cls()
        for cell in study.finished:
            run, name = study.afresh(cell), _combination(study, cell)
            seen.works.setdefault(name, []).append(work_of(run))
            seen.examined[cell.name] = examine(run)
            last = run.evaluations(study.split)[-1:]
            seen.without[name] += any(np.isnan(each.accuracy[each.n > 0]).any() for each in last)
            for by, (group, others) in least_participation(run, study.split, study.last).items():
                gap = float(group.mean() - others.mean())
                seen.gaps.setdefault(by, {}).setdefault(name, []).append(gap)
                seen.counts.setdefault(by, set()).add((len(group), len(group) + len(others)))
        return seen

    def by(self, study: Study) -> str:
        """Return the measure of participation to tell about: that of `[compare]`, else the best known."""
        wanted = study.compare.get("group")
        return next((by for by in (wanted, *PARTICIPATION) if by in self.gaps), "")


def _headlines(study: Study) -> tuple[str, str]:
    """Return the metric of the first sentence and one of the worst-off clients, those of `[compare]` before others."""
    wanted = metrics_of(study)
    first = _MEAN if _MEAN in wanted else wanted[0]
    others = [name for name in _WORST if name != first]
    return first, next((name for name in others if name in wanted), others[0])


def _families(study: Study, metrics: Sequence[str]) -> list[list[PairedDifference]]:
    """Return the comparisons of each metric that have seeds; none if there is nothing to compare."""
    at = points_of(study)[0]
    try:
        frame = study.frame(list(metrics), at, axis=study.axis())
        families = [differences_of(study, frame, metric, at) for metric in metrics]
    except (ConfigError, RunError):
        return []
    some = [[each for each in family if each.n] for family in families]
    return some if all(some) else []


def _compared(family: Sequence[PairedDifference], contrasts: Sequence[Contrast], study: Study) -> str:
    first = family[0]
    heading, unit = heading_of_difference(first.metric)
    same_baseline = len({(each.where, each.seeds) for each in family}) == 1
    is_named = same_baseline and first.metric.endswith("_percent")
    level = float(first.baseline_values.mean()) if is_named else None
    place = on_split(study.split) + ("" if first.at == "end" else f" {place_of(first.at)}") + averaged(study)
    words = _WORDS.get(first.metric, f"in {heading}")
    clauses = told(contrasts, against(first.baseline, level, unit))
    return f"{words[:1].upper()}{words[1:]}{place}, {clauses}."


def _interactions(study: Study, metric: str) -> Iterator[Finding]:
    """Yield whether the differences of a metric depend on another axis, a sentence per axis.

    The interactions of all axes are corrected together, apart from all other sentences.
    """
    if len(study.axes) < 2:
        return
    try:
        found = [each for each in interactions(study, metric, points_of(study)[0]) if each.n]
    except (ConfigError, RunError):
        return
    named = [(_name_of_interaction(study, each), each.values, each.better_is) for each in found]
    contrasts = by_seed(named, study.test)
    by_name = {each.name: each for each in contrasts}
    for family in by_axis(found):
        chosen = [by_name[_name_of_interaction(study, each)] for each in family]
        corrected = f" (corrected for {len(found)} interactions)" if len(found) > 1 else ""
        yield Finding("interaction", sentence(_interaction(study, metric, family, chosen) + corrected))


def _interaction(
    study: Study, metric: str, family: Sequence[PairedDifference], contrasts: Sequence[Contrast]
) -> str:
    """Return whether the differences of a metric depend on the axis of `family`, as a clause."""
    first = family[0]
    base = f"{study.baseline(study.axis())} than at {first.axis}={first.baseline}"
    heading, unit = heading_of_difference(metric)
    claims = Claims(
        better="{these} {are} better against {base}",
        worse="{these} {are} worse against {base}",
        unseen="no other difference from {base} is seen for {these}",
        unconfirmed="the rank test does not confirm another difference from {base} for {these}",
        unit=unit,
        base=base,
    )
    words = _WORDS.get(metric, f"in {heading}")
    return f"{words[:1].upper()}{words[1:]}, {told(contrasts, claims)}"


def _name_of_interaction(study: Study, each: PairedDifference) -> str:
    level = each.others[study.axis()]
    places = [f"{each.axis}={each.level}", *(f"{a}={x}" for a, x in each.others.items() if a != study.axis())]
    return f"{level} at {', '.join(places)}"


def _levels(study: Study, metric: str) -> str:
    """Return how the runs ended where nothing is compared."""
    try:
        frame = study.frame([metric])
    except RunError:
        return "No run was evaluated, so nothing can be said about accuracy."
    if frame.empty:
        return "No run of the study is done, so nothing can be said about accuracy."
    frame = frame.dropna(subset=[metric])
    if frame.empty:
        return "No run of the study has an accuracy, so nothing can be said about it."
    axes = list(study.axes)
    parts = frame.groupby(axes, sort=False) if axes else [((study.name,), frame)]
    heading, _, unit = heading_of(metric).partition(", ")
    ends = [
        f"{part[metric].mean():.3g} {unit} ({', '.join(map(str, key))}, {seeds(len(part))})"
        for key, part in parts
    ]
    words = _WORDS.get(metric, f"in {heading}")
    words += conditions(study)
    return f"{words[:1].upper()}{words[1:]}, the runs end at {listed(ends)}; there is nothing to compare."


def _name(study: Study, each: PairedDifference) -> str:
    return f"{each.level} at {each.where}" if each.where else each.level


def _combination(study: Study, cell: Cell) -> str:
    """Return the levels of a cell in words, that of the compared axis first."""
    if not study.axes:
        return study.name
    axis = study.axis()
    others = ", ".join(f"{name}={level}" for name, level in cell.levels.items() if name != axis)
    return f"{cell.levels[axis]} at {others}" if others else cell.levels[axis]


def _doubts(
    study: Study, compared: Sequence[PairedDifference], sizes: Sequence[int], seen: _Seen
) -> Iterator[str]:
    """Yield the clauses of the last sentence; `sizes` has the number of seeds of each comparison told."""
    if sizes:
        comparisons, n = len(sizes), max(sizes)
        apart = " (tables correct each metric by itself)"
        corrected = f", corrected for {comparisons} comparisons{apart}" if comparisons > 1 else ""
        intervals = f"Brackets are 95 % intervals of Student's t over seeds{corrected}"
        if n < FEWEST:
            intervals = f"{seeds(n)} {'gives' if n == 1 else 'give'} no interval"
        yield f"{intervals}, and better or worse {_TAKES[study.test]}"
        if study.test == "rank" and comparisons * smallest_p(n) > ALPHA:
            least = next(k for k in range(n, 100) if comparisons * smallest_p(k) <= ALPHA)
            yield f"{seeds(n)} {'is' if n == 1 else 'are'} too few for that whatever the difference: it takes {least}"
    counts = Counter(cell.status for cell in study.cells if cell.status != "done")
    for status, n in counts.items():
        yield f"{n} of {len(study.cells)} runs {'is' if n == 1 else 'are'} {status} and left out"
    for name, n in seen.without.items():
        if n:
            yield f"{n} of {len(seen.works[name])} runs of {name} end without an accuracy and are left out"
    gap = max((each.point_gap for each in compared if not math.isnan(each.point_gap)), default=0.0)
    if gap > 0:
        yield f"compared evaluations lie up to {100 * gap:.1f} % apart"
    yield from doubts(seen.examined)
