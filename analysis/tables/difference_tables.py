"""Paired differences as a frame, and as a table for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table

from fedsim.analysis.opening.points import Point, place_of
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.bootstrap import FEWEST
from fedsim.analysis.statistics.paired.differences import PairedDifference
from fedsim.analysis.statistics.paired.significance import ALPHA, NAME_OF, smallest_p
from fedsim.analysis.tables.headings import name_of
from fedsim.common.terminal import ruled_table, shown

if TYPE_CHECKING:
    import pandas as pd

LEAST_P = 0.001
"""Smaller p values are written as `<0.001`, since three decimals would show 0."""
_HEADINGS = (
    "metric",
    "level",
    "n",
    "difference\nbootstrap\nStudent's t",
    "p Holm\n({test})\n(sign)",
    "d_z\nbetter",
    "detects\nseeds\n(80 %)",
    "pairing\nfactor",
)


def difference_frame(differences: Sequence[PairedDifference]) -> pd.DataFrame:
    """Return one row per comparison, with the fields of `PairedDifference` as columns.

    The ends of intervals are `low` and `high`, `t_low` and `t_high`, `pairing_low` and `pairing_high`; NaN with too few
    seeds. `better` and `worse` are shares of seeds; `missing` lists the seeds left out. `p_value` and `sign_p` are not
    corrected for several comparisons, `p_holm` is.
    """
    import pandas as pd

    return pd.DataFrame([_row(each) for each in differences])


def on_split(split: str | None) -> str:
    """Return on which split runs are compared, in words; empty if that is up to their configurations."""
    return "" if split is None else f" on the {split} split"


def on_clients(counted: Iterable[tuple[int, int]]) -> str:
    """Return how many clients count in runs, in words; empty if all do. Pairs are as of `Study.counted_clients`."""
    pairs = list(counted)
    if all(counts == whole for counts, whole in pairs):
        return ""
    least, most = (choose(counts for counts, _ in pairs) for choose in (min, max))
    return f" on {least}{f' to {most}' * (most > least)} of {max(whole for _, whole in pairs)} clients"


def averaged(study: Study) -> str:
    """Return over which evaluations the runs of a study are averaged, in words; empty if that is one."""
    return "" if study.last == 1 else f", averaged over the last {study.last} evaluations"


def conditions(study: Study, at: Point = "end") -> str:
    """Return split, clients and evaluations on which the runs of a study are compared at a point, in words."""
    clients = "" if at == "end" and study.last == 1 else on_clients(study.counted_clients(at))
    return on_split(study.split) + clients + averaged(study)


def difference_table(
    differences: Sequence[PairedDifference], where: str = "", what: str | None = None
) -> Table:
    """Return comparisons at one point as a table for the terminal; its caption explains the numbers.

    The title says `what` is compared, by default the difference from the baseline, and ends with `where`, such as
    `conditions`.
    """
    first = differences[0]
    what = what or f"{first.axis}: difference from {first.baseline}"
    place = f"{place_of(first.at)}{where}"
    table = ruled_table(f"{what}, {place}", notes(differences))
    for i, heading in enumerate(_HEADINGS):
        side: Literal["left", "right"] = "left" if i < 2 else "right"
        table.add_column(heading.format(test=first.test), justify=side, overflow="fold", no_wrap=i > 1)
    for row in map(cells, differences):
        table.add_row(*map(shown, row))
    return table


def interaction_of(study: Study, interactions: Sequence[PairedDifference]) -> str:
    """Return in words what interactions of a study with one other axis are."""
    axis, first = study.axis(), interactions[0]
    return (
        f"interaction of {axis} and {first.axis}: difference from {study.baseline(axis)} at a level of {first.axis}"
        f" minus that at {first.baseline}"
    )


def by_axis(interactions: Sequence[PairedDifference]) -> list[list[PairedDifference]]:
    """Return interactions as a list for each other axis."""
    axes = dict.fromkeys(each.axis for each in interactions)
    return [[each for each in interactions if each.axis == axis] for axis in axes]


def cells(each: PairedDifference) -> list[str]:
    """Return a comparison as the cells of a row, of up to three lines each; a dash stands for a missing number."""
    return [
        name_of(each.metric).replace("_", " "),
        "\n".join([each.level, *(f"{axis}={level}" for axis, level in each.others.items())]),
        str(each.n),
        f"{_signed(each.mean)}\n{span(each.interval)}\n{span(each.t_interval)}",
        f"{p_text(each.p_holm)}\n({p_text(each.p_value)})\n({p_text(each.sign_p)})",
        f"{_signed(each.effect_size)}\n{f'{100 * each.better:.0f} %' if each.n else '–'}",
        f"{_detects(each)}\n{'–' if each.seeds_needed is None else f'{each.seeds_needed:,}'}",
        f"{plain(each.pairing_factor)}\n{span(each.pairing_interval, '')}",
    ]


def notes(differences: Sequence[PairedDifference]) -> str:
    """Return the notes on comparisons: intervals, tests, corrections and warnings."""
    return " ".join(_notes(differences))


def _notes(differences: Sequence[PairedDifference]) -> Iterator[str]:
    ns = [each.n for each in differences]
    test = differences[0].test
    yield (
        "Differences are paired by seed (n of them); brackets are 95 % intervals over seeds, each by itself. p Holm is "
        f"that of the {NAME_OF[test]}, two-sided, corrected for all comparisons of the metric; p values in parentheses "
        f"({test}, exact sign test) are not corrected and decide nothing. detects: the smallest difference that n "
        "seeds find with 80 % power by p Holm; below it, the seeds that the difference found takes."
    )
    if min(ns) < FEWEST:
        yield f"With fewer than {FEWEST} seeds no interval is given."
    if test == "rank":
        yield from _out_of_reach(differences)
    if FEWEST <= min(ns) < 6:
        yield "Below 6 seeds the bootstrap interval covers less than 95 %: look at that of t."
    if any((each.values == 0).any() for each in differences):
        both = "both tests" if test == "rank" else "the sign test"
        yield f"Seeds without a difference are left out of {both}."
    yield from _warnings(differences)


def _out_of_reach(differences: Sequence[PairedDifference]) -> Iterator[str]:
    """Yield a warning for the metrics of which no comparison can have a p Holm of 5 %: too few seeds differ."""
    metrics: dict[str, list[PairedDifference]] = {}
    for each in differences:
        metrics.setdefault(each.metric, []).append(each)
    groups: dict[tuple[int, int], list[str]] = {}
    for metric, family in metrics.items():
        differing = max(int((each.values != 0).sum()) for each in family)
        if differing and family[0].family * smallest_p(differing) > ALPHA:
            groups.setdefault((differing, family[0].family), []).append(name_of(metric).replace("_", " "))
    for (differing, comparisons), names in groups.items():
        seeds = "1 seed that differs" if differing == 1 else f"{differing} seeds that differ"
        yield (
            f"{', '.join(names)}: with {seeds} and {comparisons}"
            f" comparison{'s' * (comparisons > 1)} p Holm cannot be below"
            f" {min(1.0, comparisons * smallest_p(differing)):.3g}, whatever the difference."
        )


def _warnings(differences: Sequence[PairedDifference]) -> Iterator[str]:
    missing: dict[tuple[str, str], dict[tuple[int, ...], list[str]]] = {}
    for each in differences:
        by_seeds = missing.setdefault((each.level, each.where), {})
        by_seeds.setdefault(each.missing, []).append(name_of(each.metric).replace("_", " "))
    for (level, where), by_seeds in missing.items():
        beside = f" ({where})" if where else ""
        for seeds, metrics in by_seeds.items():
            if seeds:
                of = f" of {', '.join(metrics)}" if len(by_seeds) > 1 else ""
                listed = ", ".join(map(str, seeds))
                which = f"seed {listed}" if len(seeds) == 1 else f"seeds {listed}"
                yield f"Left out{of} for {level}{beside}: {which}, of which a run is missing, not done or has no value."
    gap = max((each.point_gap for each in differences if not math.isnan(each.point_gap)), default=0.0)
    if gap > 0:
        yield gap_note(gap)
    if any(each.untrained for each in differences):
        yield "Some runs are compared at step 0, before any training: compare later, or evaluate more often."


def gap_note(gap: float) -> str:
    """Return how far evaluations that are compared lie apart, from the largest relative difference."""
    return f"Evaluations lie up to {100 * gap:.1f} % apart: evaluate more often for a closer comparison."


def _row(each: PairedDifference) -> dict[str, Any]:
    row: dict[str, Any] = {"metric": each.metric, "at": each.at, "axis": each.axis, "level": each.level}
    row |= {"baseline": each.baseline, **each.others, "n": each.n}
    row |= {"missing": ", ".join(map(str, each.missing)), "mean": each.mean, "std": each.std}
    for prefix, interval in (
        ("", each.interval),
        ("t_", each.t_interval),
        ("pairing_", each.pairing_interval),
    ):
        row[f"{prefix}low"], row[f"{prefix}high"] = interval or (math.nan, math.nan)
    same = (
        "sign_p",
        "test",
        "p_value",
        "p_holm",
        "family",
        "effect_size",
        "better",
        "worse",
        "size",
        "pairing_factor",
        "point_gap",
    )
    needed = math.nan if each.seeds_needed is None else each.seeds_needed
    return row | {name: getattr(each, name) for name in same} | {"seeds_needed": needed}


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.3g}"


def _detects(each: PairedDifference) -> str:
    return "none" if math.isinf(each.detectable) else plain(each.detectable)


def plain(value: float) -> str:
    """Return a number with three digits; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.3g}"


def spread_text(spread: Mapping[Any, Any], seeds: int) -> str:
    """Return mean, standard deviation and interval over seeds, and how many there are if they are not `seeds`."""
    of = "" if spread["n"] in (0, seeds) else f"\n{spread['n']} seed{'s' * (spread['n'] != 1)}"
    mean = f"{plain(spread['mean'])} ± {plain(spread['std'])}"
    return f"{mean}\n{span((spread['low'], spread['high']), '')}{of}"


def p_text(value: float) -> str:
    """Return a p value with three decimals; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.3f}" if value >= LEAST_P else f"<{LEAST_P:g}"


def span(interval: tuple[float, float] | None, sign: str = "+") -> str:
    if interval is None or math.isnan(interval[0]):
        return "–"
    return f"[{interval[0]:{sign}.3g}, {interval[1]:{sign}.3g}]"
