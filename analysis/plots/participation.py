"""Who was online, who was chosen, and what became of it: clients by virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from numpy.typing import NDArray

from analysis.arrays import Floats, Ints
from analysis.closing import virtual_end_us
from analysis.plots._picture import GREY, Key, Picture, panels, time_unit, whole_numbers
from analysis.run import Run
from analysis.tables import WORLD
from fedsim.errors import RunError
from fedsim.trace import read_trace
from fedsim.world import World

ROWS, BINS = 200, 600
"""At most so many rows of clients and bins of time, however large the run is."""

OUTCOMES = {
    "lost": ("#d55e00", ("lost",)),
    "late": ("#e69f00", ("late",)),
    "other": ("#cc79a7", ("unfinished", "nonfinite")),
    "aggregated": ("#0072b2", ("aggregated",)),
}
"""Colour and job statuses of each outcome; where several fall into one cell, the first of them is shown."""
_IDLE_ALPHA = 0.4


@dataclass(frozen=True, slots=True)
class Raster:
    """Clients by time, binned: rows are groups of clients, those most online first."""

    end_us: int
    sizes: Ints
    """[R] clients in each row."""
    online: Floats
    """[R, T] share of the row's clients that were online in the middle of the bin."""
    in_job: dict[str, Ints]
    """[R, T] jobs that touched the bin, by outcome."""


def raster(run: Run, rows: int = ROWS, bins: int = BINS) -> Raster:
    """Bin a run's world and jobs. Raises RunError if the run kept no world or covers no time."""
    end_us = virtual_end_us(run)
    if end_us <= 0:
        raise RunError(f"{run.folder}: the run covers no virtual time")
    online = _online(run, end_us, bins)
    highest = int(run.jobs["client"].to_numpy().max(initial=-1))
    if highest >= len(online):
        raise RunError(f"{run.folder}: a job names client {highest}, but the world has {len(online)} clients")
    order = np.argsort(-online.mean(axis=1), kind="stable")
    k = len(order)
    rows = min(rows, k)
    row_of = np.empty(k, dtype=np.int64)
    row_of[order] = np.arange(k) * rows // k
    sizes = np.bincount(row_of, minlength=rows)
    totals = np.add.reduceat(
        online[order], np.concatenate([[0], np.cumsum(sizes)[:-1]]), axis=0, dtype=np.float64
    )
    return Raster(end_us, sizes, totals / sizes[:, None], _jobs(run, row_of, rows, bins, end_us))


def participation(run: Run) -> Picture:
    """Draw the number of clients online over a raster of clients by virtual time.

    Raises RunError if the run kept no world or covers no time, TraceError if the world cannot be read.
    """
    cells = raster(run)
    figure, (above, below) = panels([1.0, 4.0], width_in=9.5)
    scale, unit = time_unit(cells.end_us)
    edges = np.linspace(0, cells.end_us / scale, cells.online.shape[1] + 1)
    count = (cells.online * cells.sizes[:, None]).sum(axis=0)
    above.stairs(count, edges, fill=True, color=GREY, alpha=0.5)
    above.set_ylim(0, 1.05 * max(float(count.max()), 1.0))
    whole_numbers(above.yaxis, 4)
    above.set_ylabel("clients\nonline", fontsize=9)
    _image(below, cells, edges[-1])
    below.set_xlabel(f"virtual time, {unit}", fontsize=9)
    figure.align_ylabels([above, below])
    return Picture(figure, _alt(run, cells, count), _caption(cells), _keys(cells))


def _online(run: Run, end_us: int, bins: int) -> NDArray[np.bool_]:
    """Return [K, T] whether each client was online in the middle of each bin."""
    path = run.folder / WORLD
    if not path.is_file():
        raise RunError(f"{run.folder}: {WORLD} is missing")
    world = World(read_trace(path), _clients(run))
    middles = (2 * np.arange(bins) + 1) * end_us // (2 * bins)
    return np.stack([world.online(int(t)) for t in middles], axis=1)


def _clients(run: Run) -> int | None:
    """Return the number of clients in the run (a trace may hold more), if the configuration says it."""
    task = run.config.get("task")
    said = task.get("clients") if isinstance(task, dict) else None
    return said if isinstance(said, int) else None


def _jobs(run: Run, row_of: Ints, rows: int, bins: int, end_us: int) -> dict[str, Ints]:
    status = np.asarray(run.jobs["status"].cast(pa.string()).to_pylist(), dtype=object)
    row = row_of[run.jobs["client"].to_numpy()]
    first = _bin(run.jobs["dispatch_us"].to_numpy(), bins, end_us)
    last = _bin(run.jobs["end_us"].to_numpy(), bins, end_us)
    found = {}
    for outcome, (_, statuses) in OUTCOMES.items():
        mine = np.isin(status, statuses)
        change = np.zeros((rows, bins + 1), dtype=np.int64)
        np.add.at(change, (row[mine], first[mine]), 1)
        np.add.at(change, (row[mine], last[mine] + 1), -1)
        found[outcome] = change.cumsum(axis=1)[:, :bins]
    return found


def _bin(time_us: Ints, bins: int, end_us: int) -> Ints:
    share = time_us.astype(np.float64) / end_us
    return np.clip((share * bins).astype(np.int64), 0, bins - 1)


def _image(ax: Axes, cells: Raster, end: float) -> None:
    k = int(cells.sizes.sum())
    ax.imshow(pixels(cells), extent=(0, end, k, 0), aspect="auto", interpolation="none")
    ax.grid(visible=False)
    ax.set_ylabel("clients, most online first", fontsize=9)
    whole_numbers(ax.yaxis)


def pixels(cells: Raster) -> NDArray[np.uint8]:
    """Return [R, T, 4] RGBA: nothing where offline, grey where online, the outcome's colour where in a job.

    In a row of several clients the grey is as dense as the share online, and a job's colour as the share in
    jobs.
    """
    image = np.zeros((*cells.online.shape, 4))
    image[..., :3] = _rgb(GREY)
    image[..., 3] = _IDLE_ALPHA * cells.online
    busy = sum(cells.in_job.values())
    density = np.clip(np.asarray(busy) / cells.sizes[:, None], 0, 1)
    for outcome in reversed(OUTCOMES):
        here = cells.in_job[outcome] > 0
        image[here, :3] = _rgb(OUTCOMES[outcome][0])
        image[here, 3] = 0.6 + 0.4 * density[here]
    return np.asarray(np.rint(255 * image), dtype=np.uint8)


def _rgb(colour: str) -> Floats:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def _keys(cells: Raster) -> tuple[Key, ...]:
    names = {
        "aggregated": "in a job, aggregated",
        "lost": "in a job, lost",
        "late": "in a job, late",
        "other": "in a job, unfinished or not finite",
    }
    seen = [o for o in names if cells.in_job[o].any()]
    jobs = tuple(Key(names[o], OUTCOMES[o][0], area=True) for o in seen)
    return (Key("online, idle", GREY + "66", area=True), *jobs, Key("offline", "transparent", area=True))


def _caption(cells: Raster) -> str:
    k, rows = int(cells.sizes.sum()), len(cells.sizes)
    grouped = (
        f" Each of the {rows} rows stands for about {k / rows:.0f} clients; in a cell lost goes before late"
        " before aggregated."
        if rows < k
        else ""
    )
    return f"Clients online (above) and what each client did (below).{grouped}"


def _alt(run: Run, cells: Raster, count: Floats) -> str:
    k = int(cells.sizes.sum())
    return (
        f"{run.label}: raster of {k} clients over virtual time under a curve of the number online,"
        f" on average {count.mean():.0f}, from {count.min():.0f} to {count.max():.0f}; {len(run.jobs)} jobs."
    )
