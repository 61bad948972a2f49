"""Paired differences as a frame, and as a table for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from fedsim.analysis.statistics.bootstrap import FEWEST
from fedsim.analysis.statistics.paired import PairedDifference
from fedsim.analysis.statistics.paired_tests import ALPHA, smallest_p
from fedsim.common.terminal import shown

if TYPE_CHECKING:
    import pandas as pd

PLACES: dict[str, str] = {
    "end": "at the end of each run",
    "steps": "after equal rounds",
    "time": "after equal virtual time",
    "bytes": "after equal bytes moved",
}
LEAST_P = 0.001
"""Smaller p values are written as `<0.001`, since three decimals would show 0."""
_HEADINGS = (
    "metric",
    "level",
    "n",
    "difference\nbootstrap\nStudent's t",
    "p sign\np rank\np Holm",
    "d_z\nbetter",
    "seeds\nfor\n80 %",
    "pairing\nfactor",
)


def difference_frame(differences: Sequence[PairedDifference]) -> pd.DataFrame:
    """Return one row per comparison, with the fields of `PairedDifference` as columns.

    The ends of intervals are `low` and `high`, `t_low` and `t_high`, `pairing_low` and `pairing_high`; NaN with too few
    seeds. `better` and `worse` are shares of seeds; `missing` lists the seeds left out.
    """
    import pandas as pd

    return pd.DataFrame([_row(each) for each in differences])


def on_split(split: str | None) -> str:
    """Return on which split runs are compared, in words; empty if that is up to their configurations."""
    return "" if split is None else f" on the {split} split"


def difference_table(differences: Sequence[PairedDifference], split: str | None = None) -> Table:
    """Return comparisons at one point as a table for the terminal; its caption explains the numbers.

    `split` is named in the title.
    """
    first = differences[0]
    table = Table(
        box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, caption=shown(notes(differences))
    )
    place = f"{PLACES.get(first.at, first.at)}{on_split(split)}"
    table.title = shown(f"{first.axis}: difference from {first.baseline}, {place}")
    table.caption_justify, table.title_justify = "left", "left"
    for i, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="left" if i < 2 else "right", overflow="fold", no_wrap=i > 1)
    for row in map(cells, differences):
        table.add_row(*map(shown, row))
    return table


def cells(each: PairedDifference) -> list[str]:
    """Return a comparison as the cells of a row, of up to three lines each; a dash stands for a missing number."""
    return [
        each.metric.replace("_", " "),
        "\n".join([each.level, *(f"{axis}={level}" for axis, level in each.others.items())]),
        str(each.n),
        f"{_signed(each.mean)}\n{span(each.interval)}\n{span(each.t_interval)}",
        f"{_p(each.sign_p)}\n{_p(each.p_value)}\n{_p(each.p_holm)}",
        f"{_signed(each.effect_size)}\n{f'{100 * each.better:.0f} %' if each.n else '–'}",
        "–" if each.seeds_needed is None else f"{each.seeds_needed:,}",
        f"{plain(each.pairing_factor)}\n{span(each.pairing_interval, '')}",
    ]


def notes(differences: Sequence[PairedDifference]) -> str:
    """Return the notes on comparisons: intervals, tests, corrections and warnings."""
    return " ".join(_notes(differences))


def _notes(differences: Sequence[PairedDifference]) -> Iterator[str]:
    ns = [each.n for each in differences]
    family = len(
        [
            each
            for each in differences
            if each.metric == differences[0].metric and not math.isnan(each.p_value)
        ]
    )
    yield (
        "Differences are paired by seed (n of them); brackets are 95 % intervals over seeds. p: exact sign test and "
        "exact Wilcoxon signed-rank test, two-sided."
    )
    if family > 1:
        yield f"Holm corrects the rank test for the {family} comparisons of each metric; metrics are not counted."
    if min(ns) < FEWEST:
        yield f"With fewer than {FEWEST} seeds no interval is given."
    yield from _out_of_reach(differences, family)
    if FEWEST <= min(ns) < 6:
        yield "Below 6 seeds the bootstrap interval covers less than 95 %: look at that of t."
    if any((each.values == 0).any() for each in differences):
        yield "Seeds without a difference are left out of both tests."
    yield from _warnings(differences)


def _out_of_reach(differences: Sequence[PairedDifference], family: int) -> Iterator[str]:
    """Yield a warning if too few seeds differ for a p value, or one corrected for `family` comparisons, below 5 %."""
    counts = [int((each.values != 0).sum()) for each in differences]
    differing = min((n for n in counts if n), default=0)
    least = smallest_p(differing)
    if least > ALPHA:
        few = f"With {differing} seeds that differ"
        yield f"{few} neither test can give a p below {least:.3g}, whatever the difference."
    elif (corrected := family * smallest_p(max(counts))) > ALPHA:
        yield (
            f"With {max(counts)} seeds that differ none of {family} comparisons can have a p Holm below"
            f" {corrected:.3g}, whatever the difference."
        )


def _warnings(differences: Sequence[PairedDifference]) -> Iterator[str]:
    missing = {(each.level, each.where): each.missing for each in differences if each.missing}
    for (level, where), seeds in missing.items():
        beside = f" ({where})" if where else ""
        listed = ", ".join(map(str, seeds))
        yield f"Left out for {level}{beside}: seeds {listed}, of which a run is not done or has no value."
    gap = max((each.point_gap for each in differences if not math.isnan(each.point_gap)), default=0.0)
    if gap > 0:
        yield f"Evaluations lie up to {100 * gap:.1f} % apart: evaluate more often for a closer comparison."


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
        "p_value",
        "p_holm",
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


def plain(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


def _p(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}" if value >= LEAST_P else f"<{LEAST_P:g}"


def span(interval: tuple[float, float] | None, sign: str = "+") -> str:
    if interval is None or math.isnan(interval[0]):
        return "–"
    return f"[{interval[0]:{sign}.3g}, {interval[1]:{sign}.3g}]"
