"""Tested claims about the levels of a study, as tables for the terminal and as a frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from fedsim.analysis.opening.points import Point, place_of
from fedsim.analysis.opening.study import Study
from fedsim.analysis.statistics.claims import ClaimedPair, ClaimResult, claim_results
from fedsim.analysis.statistics.paired.differences import t_interval
from fedsim.analysis.tables.difference_tables import conditions, p_text, span
from fedsim.common import arguments
from fedsim.common.terminal import ruled_table, shown

if TYPE_CHECKING:
    import pandas as pd


@arguments.checked
def claim_table(study: Study, claims: Sequence[str], at: Point = "end") -> Table:
    """Return the difference, the corrected p value and the verdict of each pair of levels that `claims` order.

    Claims are tested as `claim_results` does, whose errors this raises.
    """
    results = claim_results(study, claims, at)
    table = ruled_table(f"{study.name}, {place_of(at)}{conditions(study, at)}", _note(results))
    axes = _other_axes(results)
    for heading in ("claim", *axes, "verdict", "difference", "p Holm"):
        table.add_column(shown(heading), overflow="fold", justify="right" if heading == "p Holm" else "left")
    for result in results:
        others = [result.others.get(axis, "") for axis in axes]
        for pair in result.pairs:
            numbers = (
                [" ".join(_difference(pair)), p_text(pair.p_holm)] if len(pair.differences) else ["", ""]
            )
            claim = f"{pair.column.replace('_', ' ')}: {_order(pair)}"
            table.add_row(*map(shown, [claim, *others, pair.verdict, *numbers]))
    return table


def verdict_table(results: Sequence[ClaimResult], title: str) -> Table:
    """Return a table with a row for each claim, and its least certain pair."""
    table = ruled_table(title, f"pairs: hold / do not hold / cannot be told. {_note(results)}", padding=1)
    axes = _other_axes(results)
    for heading in ("claim", *axes, "verdict", "pairs", "least certain pair", "difference", "p Holm"):
        table.add_column(shown(heading), overflow="fold", justify="right" if heading == "p Holm" else "left")
    for result in results:
        table.add_row(*map(shown, _verdict_cells(result, axes)))
    return table


def _verdict_cells(result: ClaimResult, axes: Sequence[str]) -> list[str]:
    counts = (result.count(verdict) for verdict in ("holds", "does not hold", "cannot be told"))
    pairs, missing = " / ".join(map(str, counts)), result.count("not run")
    known = [result.text, *(result.others.get(axis, "") for axis in axes), result.verdict]
    if missing == len(result.pairs):
        return [*known, f"{missing} not run", "", "", ""]
    pair, not_run = _least_certain(result), f"\n{missing} not run" if missing else ""
    claim, difference = f"{pair.column.replace('_', ' ')}:\n{_order(pair)}", "\n".join(_difference(pair))
    return [*known, pairs + not_run, claim, difference, p_text(pair.p_holm)]


def _least_certain(result: ClaimResult) -> ClaimedPair:
    """Return the pair that contradicts a claim most clearly, else the one that supports it least."""
    against = [pair for pair in result.pairs if pair.verdict == "does not hold"]
    if against:
        return min(against, key=lambda pair: pair.p_holm)
    tested = [pair for pair in result.pairs if pair.verdict != "not run"]
    return max(tested, key=lambda pair: 2.0 if math.isnan(pair.p_holm) else pair.p_holm)


def _note(results: Sequence[ClaimResult]) -> str:
    """Return how the claims were tested."""
    tested = sum(not math.isnan(pair.p_holm) for result in results for pair in result.pairs)
    how = (
        f"corrected for {tested} {'pair' if tested == 1 else 'pairs'} (Holm)" if tested else "from 3 seeds on"
    )
    seeds = sorted({len(pair.differences) for result in results for pair in result.pairs} - {0})
    uneven = (
        f" Pairs have {seeds[0]} to {seeds[-1]} seeds, as some runs are missing or have no value: p values are not yet "
        "those of the whole study."
        if len(seeds) > 1
        else ""
    )
    return (
        "Differences are paired by seed, the higher level minus the lower, with 95 % t intervals; p is that of "
        f"Student's t, {how}.{uneven}"
    )


def _other_axes(results: Sequence[ClaimResult]) -> list[str]:
    """Return the axes whose levels the results are for, beside the axes that the claims are about."""
    return list(dict.fromkeys(axis for result in results for axis in result.others))


def _order(pair: ClaimedPair) -> str:
    if pair.within is None:
        return f"{pair.lower} < {pair.higher}"
    return f"{pair.lower} = {pair.higher} ± {pair.within:g}"


def _difference(pair: ClaimedPair) -> list[str]:
    """Return the mean difference and its interval."""
    return ["–" if math.isnan(pair.mean) else f"{pair.mean:+.3g}", span(t_interval(pair.differences))]


def claim_frame(results: Sequence[ClaimResult]) -> pd.DataFrame:
    """Return a row for each pair of levels, with the levels of the other axes."""
    import pandas as pd  # imported here: most commands do not need it

    return pd.DataFrame([_row(result, pair) for result in results for pair in result.pairs])


def _row(result: ClaimResult, pair: ClaimedPair) -> dict[str, object]:
    low, high = t_interval(pair.differences) or (math.nan, math.nan)
    return {
        "claim": result.text,
        **result.others,
        "verdict": result.verdict,
        "metric": pair.column,
        "lower": pair.lower,
        "higher": pair.higher,
        "within": math.nan if pair.within is None else pair.within,
        "n": len(pair.differences),
        "mean": pair.mean,
        "low": low,
        "high": high,
        "p_value": pair.p_value(),
        "p_holm": pair.p_holm,
        "pair": pair.verdict,
    }
