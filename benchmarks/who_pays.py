"""Own losses, or those of clients with the same labels: the tables of `docs/results/who_pays.md`.

Reads the folder of the study `examples/studies/dropout.toml`. For each rate, rule and seed it fits over clients

    change of accuracy = constant + own * (own lost share) + shared * (mean lost share of others that share a label)

by least squares. The change is that from the same seed without dropout, at equal virtual time: the end of the runs. The
lost share is that of the jobs whose upload began and ended: chance decides there, not how long a client is online.

    python benchmarks/who_pays.py runs/dropout --last 6 --figure docs/images
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fedsim import analysis
from fedsim.analysis.drawing.picture import COLOURS, GREY, Picture, arm_marker, panels
from fedsim.analysis.opening.evaluation import latest
from fedsim.analysis.opening.study import Study
from fedsim.analysis.report.document import Document, Figure
from fedsim.analysis.report.report_files import write_figures
from fedsim.analysis.statistics.paired.differences import t_interval
from fedsim.analysis.statistics.paired.significance import holm, signed_rank_test
from fedsim.analysis.statistics.participation import held_labels, label_counts
from fedsim.common.arrays import Floats

PHASE, BASELINE = "upload", "none"
TERMS = {"own": "own", "shared": "others, same label"}
POINTS = 10
"""Coefficients are percentage points of accuracy for so many percentage points of jobs lost."""
THIRDS = ("least", "middle", "most")


@dataclass(frozen=True, slots=True)
class Effect:
    """A coefficient over seeds."""

    rate: str
    rule: str
    term: str
    spread: float
    """Standard deviation of the lost share over clients, in percentage points."""
    values: Floats
    """[seeds]"""
    interval: tuple[float, float]
    """95 % of Student's t."""
    p: float
    """Wilcoxon's exact signed-rank test."""

    @property
    def text(self) -> str:
        """Mean and interval."""
        return f"{self.values.mean():+.2f} [{self.interval[0]:+.2f}, {self.interval[1]:+.2f}]"


def others_share(lost: Floats, held: NDArray[np.bool_]) -> Floats:
    """Return [K] the mean of `lost` [K] over the other clients that share a label of `held` [K, C]; NaN without any.

    Clients whose own share is unknown (NaN) do not count.
    """
    known = ~np.isnan(lost)
    alike = (held.astype(np.int64) @ held.T > 0) & known
    np.fill_diagonal(alike, False)
    count = alike.sum(axis=1)
    shares: Floats = np.divide(
        alike @ np.nan_to_num(lost), count, out=np.full(len(lost), np.nan), where=count > 0
    )
    return shares


def fitted(change: Floats, lost: Floats, others: Floats) -> dict[str, float]:
    """Return the coefficient of each of `TERMS`, in percentage points per `POINTS`; NaN if they cannot be told apart.

    And `explained`, the share in % of the variance of changes over clients that both explain together.

    `change` [K] is in percentage points; `lost` and `others` [K] are shares, 0 to 1. Clients with NaN are left out.
    """
    known = ~np.isnan(lost + others)
    design = np.column_stack([np.ones(known.sum()), lost[known], others[known]])
    found, _, rank, _ = np.linalg.lstsq(design, change[known], rcond=None)
    slopes = found[1:] * POINTS / 100 if rank == 3 else np.full(2, np.nan)
    explained = 100 * float(np.var(design @ found) / np.var(change[known]))
    return {**dict(zip(TERMS, slopes.tolist(), strict=True)), "explained": explained}


def lost_share(run: analysis.Run, clients: int) -> Floats:
    """Return [clients] the share of each client's jobs that were lost in the upload, of those whose upload ended."""
    jobs = run.frame("jobs")
    tried = jobs[(jobs.compute_us >= 0) & (jobs.status != "unfinished")]
    count = np.bincount(tried.client, minlength=clients)
    lost = np.bincount(tried.client[tried.status == "lost"], minlength=clients)
    shares: Floats = np.divide(lost, count, out=np.full(clients, np.nan), where=count > 0)
    return shares


def accuracy(run: analysis.Run, last: int) -> Floats:
    """Return [K] the accuracies of clients in %, means over the `last` evaluations."""
    return np.asarray(
        100 * np.mean([each.accuracy for each in latest(run.folder, run.evaluations(), last)], axis=0)
    )


def measured(study: Study, last: int = 1) -> pd.DataFrame:
    """Return a row per rate, rule and seed: coefficients, spreads of lost shares, and changes by third of losses."""
    cells = {
        (cell.levels["rate"], cell.levels["rule"], cell.seed): cell
        for cell in study.finished
        if cell.levels["phase"] == PHASE
    }
    held: dict[int, NDArray[np.bool_]] = {}
    rows = []
    for (rate, rule, seed), cell in cells.items():
        if rate == BASELINE or (BASELINE, rule, seed) not in cells:
            continue
        run, base = study.afresh(cell), study.afresh(cells[BASELINE, rule, seed])
        if seed not in held:
            held[seed] = held_labels(label_counts(run))
        change = accuracy(run, last) - accuracy(base, last)
        lost = lost_share(run, len(change))
        others = others_share(lost, held[seed])
        spreads = {
            f"{term}_spread": 100 * np.nanstd(x) for term, x in zip(TERMS, (lost, others), strict=True)
        }
        where = {"rate": rate, "rule": rule, "seed": seed}
        rows.append(where | fitted(change, lost, others) | spreads | thirds(change, lost))
    return pd.DataFrame(rows)


def thirds(change: Floats, lost: Floats) -> dict[str, float]:
    """Return mean lost share in % and mean change of the third of the clients that lost least, the middle, the most."""
    order = np.argsort(lost, kind="stable")[: int((~np.isnan(lost)).sum())]
    parts = dict(zip(THIRDS, np.array_split(order, len(THIRDS)), strict=True))
    shares = {f"{name}_lost": 100 * float(lost[part].mean()) for name, part in parts.items()}
    return shares | {name: float(change[part].mean()) for name, part in parts.items()}


def effects(frame: pd.DataFrame) -> list[Effect]:
    """Return the coefficient of each rate, rule and term over the seeds of `measured`."""
    return [
        _effect(str(rate), str(rule), term, part) for (rate, rule), part in _parts(frame) for term in TERMS
    ]


def _effect(rate: str, rule: str, term: str, part: pd.DataFrame) -> Effect:
    values = part[term].to_numpy(np.float64)
    spread = float(part[f"{term}_spread"].mean())
    bounds = t_interval(values) or (np.nan, np.nan)
    return Effect(rate, rule, term, spread, values, bounds, signed_rank_test(values))


def _parts(frame: pd.DataFrame) -> Iterable[tuple[Any, pd.DataFrame]]:
    return frame.groupby(["rate", "rule"], sort=False)


def picture(found: Sequence[Effect]) -> Picture:
    """Draw the coefficients: small marks are seeds, large ones their means, bars 95 % intervals of Student's t."""
    rules = list(dict.fromkeys(each.rule for each in found))
    groups = [[each for each in found if each.term == term] for term in TERMS]
    figure, axes = panels([0.34 + 0.36 * len(group) for group in groups], share_x=False)
    for ax, group in zip(axes, groups, strict=True):
        ax.axvline(0, color=GREY, linewidth=1)
        for y, each in enumerate(group):
            _draw(ax, y, each, rules.index(each.rule))
        ax.set_yticks(range(len(group)), [f"{each.rule}, {each.rate}" for each in group])
        ax.set_ylim(len(group) - 0.45, -0.45)
        ax.grid(visible=False, axis="y")
        ax.set_title(
            f"lost by: {TERMS[group[0].term]}", fontsize=9, loc="left", color=ax.xaxis.label.get_color()
        )
    axes[-1].set_xlabel(f"change of accuracy, points per {POINTS} points of jobs lost", fontsize=9)
    words = "; ".join(f"{each.rule}, {each.rate}, {TERMS[each.term]}: {each.text}" for each in found)
    return Picture(figure, f"Change of accuracy per {POINTS} points of jobs lost. {words}.", "")


def _draw(ax: Axes, y: int, each: Effect, index: int) -> None:
    colour, marker = COLOURS[index], arm_marker(index)
    below = y + 0.27 + 0.16 * np.linspace(-0.5, 0.5, len(each.values))
    seeds: dict[str, Any] = {"linestyle": "", "markersize": 4.5, "alpha": 0.6, "markeredgewidth": 0}
    ax.plot(each.values, below, marker=marker, color=colour, **seeds)
    ax.plot(each.interval, (y, y), color=colour, linewidth=2.2, solid_capstyle="butt")
    ax.plot(each.values.mean(), y, marker=marker, color=colour, markersize=8)


def show(frame: pd.DataFrame, found: Sequence[Effect]) -> None:
    """Print both tables."""
    print(
        f"Points of accuracy per {POINTS} points of jobs lost; s.d. over clients of the lost share, in points\n"
    )
    print("| rate | rule | lost by | s.d. | points [95 %, t] | p | p Holm |\n|---|---|---|---|---|---|---|")
    for each, p_holm in zip(found, holm([each.p for each in found]), strict=True):
        spread, p = f"{each.spread:.1f}", f"{each.p:.3f} | {p_holm:.3f}"
        print("|", " | ".join([each.rate, each.rule, TERMS[each.term], spread, each.text, p]), "|")
    print(
        "\nMean change of accuracy of thirds of the clients by their lost share, which is in parentheses; share of the"
    )
    print("variance of changes over clients that own losses and those of others explain together\n")
    thirds = " | ".join(f"{name} lost" for name in THIRDS)
    print(f"| rate | rule | {thirds} | explained |\n|---|---|---|---|---|---|")
    for key, part in _parts(frame):
        cells = [f"{part[name].mean():+.1f} ({part[f'{name}_lost'].mean():.0f} %)" for name in THIRDS]
        print("|", " | ".join([*key, *cells, f"{part.explained.mean():.0f} %"]), "|")


def main() -> None:
    """Print the tables, and write the figure if asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument(
        "--last", type=int, default=1, help="evaluations at the end to average accuracies over"
    )
    parser.add_argument("--figure", type=Path, help="folder for who-pays.svg")
    options = parser.parse_args()
    frame = measured(analysis.open_study(options.study), options.last)
    found = effects(frame)
    show(frame, found)
    if options.figure:
        drawn = Document("", "", (Figure("who-pays", partial(picture, found)),))
        write_figures(drawn, options.figure, "svg")


if __name__ == "__main__":
    main()
