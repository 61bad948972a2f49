"""Clients by virtual time: online, phases of their jobs, and outcomes of their jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fedsim.analysis.drawing.picture import GREY, Key, Picture, panels, time_unit, whole_numbers
from fedsim.analysis.opening.run import Run
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import FolderError
from fedsim.records.file_names import WORLD
from fedsim.worlds.trace import read_trace
from fedsim.worlds.world import World

ROWS, BINS = 200, 600
"""Most rows of clients, and most bins of time."""

STATES = {"downloading": "#56b4e9", "training": "#009e73", "uploading": "#f0e442"}
"""Colour of each phase of a job."""
OUTCOMES = {
    "lost": ("#d55e00", ("lost",)),
    "late": ("#e69f00", ("late", "stale")),
    "other": ("#cc79a7", ("unfinished", "nonfinite", "void")),
    "aggregated": ("#0072b2", ("aggregated", "remembered")),
}
"""Colour and job statuses of each outcome; a cell with several outcomes shows the first."""
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
    in_phase: dict[str, Ints]
    """[R, T] jobs that touched the bin in a phase, by state."""


def raster(run: Run, rows: int = ROWS, bins: int = BINS) -> Raster:
    """Bin a run's world and jobs. Raises FolderError if the folder has no world or the run covers no virtual time."""
    end_us = run.virtual_us
    if end_us <= 0:
        raise FolderError(f"{run.folder}: the run covers no virtual time")
    online = _online(run, end_us, bins)
    highest = int(run.jobs["client"].to_numpy().max(initial=-1))
    if highest >= len(online):
        raise FolderError(
            f"{run.folder}: a job names client {highest}, but the world has {len(online)} clients"
        )
    order = np.argsort(-online.mean(axis=1), kind="stable")
    k = len(order)
    rows = min(rows, k)
    row_of = np.empty(k, dtype=np.int64)
    row_of[order] = np.arange(k) * rows // k
    sizes = np.bincount(row_of, minlength=rows)
    totals = np.add.reduceat(
        online[order], np.concatenate([[0], np.cumsum(sizes)[:-1]]), axis=0, dtype=np.float64
    )
    grid = _Grid(row_of, rows, bins, end_us)
    return Raster(end_us, sizes, totals / sizes[:, None], _outcomes(run, grid), _phases(run, grid))


def participation(run: Run) -> Picture:
    """Draw the number of clients online, and two rasters of clients by virtual time: phases and outcomes of jobs.

    Raises FolderError if the folder has no world or the run covers no virtual time, TraceError if the world cannot be
    read.
    """
    cells = raster(run)
    figure, (above, middle, below) = panels([0.9, 2.7, 2.7], width_in=9.5)
    scale, unit = time_unit(cells.end_us)
    edges = np.linspace(0, cells.end_us / scale, cells.online.shape[1] + 1)
    count = (cells.online * cells.sizes[:, None]).sum(axis=0)
    above.stairs(count, edges, fill=True, color=GREY, alpha=0.5)
    above.set_ylim(0, 1.05 * max(float(count.max()), 1.0))
    whole_numbers(above.yaxis, 4)
    above.set_ylabel("clients\nonline", fontsize=9)
    _image(middle, phase_pixels(cells), cells, edges[-1], "what they do")
    _image(below, pixels(cells), cells, edges[-1], "what becomes of it")
    below.set_xlabel(f"virtual time, {unit}", fontsize=9)
    figure.align_ylabels([above, middle, below])
    return Picture(figure, _alt(run, cells, count), _caption(cells), _keys(cells))


def _online(run: Run, end_us: int, bins: int) -> NDArray[np.bool_]:
    """Return [K, T] whether each client was online in the middle of each bin."""
    path = run.folder / WORLD
    if not path.is_file():
        raise FolderError(f"{run.folder}: {WORLD} is missing")
    world = World(read_trace(path), run.training_clients, unknown=run.unknown)
    middles = (2 * np.arange(bins) + 1) * end_us // (2 * bins)
    return np.stack([world.online(int(t)) for t in middles], axis=1)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The cells in which jobs are counted."""

    row_of: Ints
    """[K] the row of each client."""
    rows: int
    bins: int
    end_us: int

    def count(self, client: Ints, start_us: Ints, end_us: Ints) -> Ints:
        """Return [R, T] the number of stretches that touch each cell."""
        row, change = self.row_of[client], np.zeros((self.rows, self.bins + 1), dtype=np.int64)
        np.add.at(change, (row, _bin(start_us, self.bins, self.end_us)), 1)
        np.add.at(change, (row, _bin(end_us, self.bins, self.end_us) + 1), -1)
        return change.cumsum(axis=1)[:, : self.bins]


def _outcomes(run: Run, grid: _Grid) -> dict[str, Ints]:
    status = np.asarray(run.jobs["status"].cast(pa.string()).to_pylist(), dtype=object)
    client, start, end = (run.jobs[name].to_numpy() for name in ("client", "dispatch_us", "end_us"))
    masks = {outcome: np.isin(status, statuses) for outcome, (_, statuses) in OUTCOMES.items()}
    return {name: grid.count(client[mask], start[mask], end[mask]) for name, mask in masks.items()}


def _phases(run: Run, grid: _Grid) -> dict[str, Ints]:
    """Count the stretches of each phase that jobs reached; a phase cut short ends with its job."""
    names = ("client", "dispatch_us", "download_us", "compute_us", "end_us")
    client, *times = (run.jobs[name].to_numpy() for name in names)
    end, reached, counts = times[-1], np.ones(len(client), dtype=bool), {}
    for state, start, stop in zip(STATES, times[:-1], times[1:], strict=True):
        mask = reached & (end > start)
        counts[state] = grid.count(client[mask], start[mask], np.where(stop < 0, end, stop)[mask])
        reached &= stop >= 0
    return counts


def _bin(time_us: Ints, bins: int, end_us: int) -> Ints:
    share = time_us.astype(np.float64) / end_us
    return np.clip((share * bins).astype(np.int64), 0, bins - 1)


def _image(ax: Axes, image: NDArray[np.uint8], cells: Raster, end: float, topic: str) -> None:
    k = int(cells.sizes.sum())
    ax.imshow(image, extent=(0, end, k, 0), aspect="auto", interpolation="none")
    ax.grid(visible=False)
    ax.set_ylabel(f"clients:\n{topic}", fontsize=9)
    whole_numbers(ax.yaxis)


def pixels(cells: Raster) -> NDArray[np.uint8]:
    """Return [R, T, 4] RGBA: transparent while offline, grey while online, the outcome's colour during a job.

    In a row of several clients, the opacity of grey is the share online, and that of a job's colour grows with the
    share of clients in jobs.
    """
    image = idle_pixels(cells)
    busy = np.asarray(sum(cells.in_job.values()))
    for outcome in reversed(OUTCOMES):
        paint(image, cells.in_job[outcome] > 0, OUTCOMES[outcome][0], busy / cells.sizes[:, None])
    return np.asarray(np.rint(255 * image), dtype=np.uint8)


def phase_pixels(cells: Raster) -> NDArray[np.uint8]:
    """Return the same with the colour of the phase of most jobs in a cell; ties go to the earlier phase."""
    image = idle_pixels(cells)
    counts = np.stack([cells.in_phase[state] for state in STATES])
    most, busy = counts.argmax(axis=0), counts.sum(axis=0)
    for index, colour in enumerate(STATES.values()):
        paint(image, (busy > 0) & (most == index), colour, busy / cells.sizes[:, None])
    return np.asarray(np.rint(255 * image), dtype=np.uint8)


def idle_pixels(cells: Raster) -> Floats:
    """Return [R, T, 4] RGBA from 0 to 1: grey, as opaque as the share of a row's clients that is online."""
    image = np.zeros((*cells.online.shape, 4))
    image[..., :3] = _rgb(GREY)
    image[..., 3] = _IDLE_ALPHA * cells.online
    return image


def paint(image: Floats, here: NDArray[np.bool_], colour: str, density: Floats) -> None:
    """Give the cells `here` of an image a colour, more opaque where the density, from 0 to 1, is larger."""
    image[here, :3] = _rgb(colour)
    image[here, 3] = 0.6 + 0.4 * np.clip(density, 0, 1)[here]


def _rgb(colour: str) -> Floats:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def _keys(cells: Raster) -> tuple[Key, ...]:
    names = {
        "aggregated": "aggregated",
        "lost": "lost",
        "late": "late",
        "other": "unfinished, not finite, or in a void round",
    }
    phases = tuple(Key(state, STATES[state], area=True) for state in STATES if cells.in_phase[state].any())
    seen = [o for o in names if cells.in_job[o].any()]
    jobs = tuple(Key(f"job {names[o]}", OUTCOMES[o][0], area=True) for o in seen)
    idle = (Key("offline", "transparent", area=True), Key("online, idle", GREY + "66", area=True))
    return (*idle, *phases, *jobs)


def _caption(cells: Raster) -> str:
    k, rows = int(cells.sizes.sum()), len(cells.sizes)
    grouped = (
        f" Each of the {rows} lines stands for about {k / rows:.0f} clients; in a cell the phase of most of its jobs is"
        " shown, and lost goes before late before aggregated."
        if rows < k
        else ""
    )
    return (
        "Clients online (above); what each client does (middle) and what becomes of its jobs (below), those most online"
        f" first.{grouped}"
    )


def _alt(run: Run, cells: Raster, count: Floats) -> str:
    k = int(cells.sizes.sum())
    return (
        f"{run.label}: what clients do over virtual time. Two rasters of {k} clients under a curve of the number"
        f" online, on average {count.mean():.0f}, from {count.min():.0f} to {count.max():.0f}; {len(run.jobs)} jobs."
    )
