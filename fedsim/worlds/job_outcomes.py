"""Describe what a job moves and computes, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsim.common.arrays import Floats, Ints, Mask
from fedsim.worlds.interval_index import Progress

PHASES = ("", "download", "compute", "upload")


@dataclass(frozen=True, slots=True)
class Work:
    """What jobs move and compute: arrays with one entry per job, or numbers that hold for all jobs."""

    download_bytes: NDArray[Any]
    samples: NDArray[Any]
    """Passes over a sample, times the model's cost relative to the model that the trace was measured with."""
    upload_bytes: NDArray[Any]
    slowness: tuple[ArrayLike, ArrayLike, ArrayLike] = (1.0, 1.0, 1.0)
    """Factors on the time that a unit of download, computation and upload takes in the trace."""
    lost_at: ArrayLike = np.inf
    """Share of the phase `lost_in`, or of the whole job, after which chance loses the job; from 1 on it does not."""
    lost_in: ArrayLike = 0
    """Index into PHASES; 0 for the whole job."""

    def with_vectors(self, received: int, sent: int) -> Work:
        """Return the work of jobs that move so many vectors of the model's size beside it, in each direction."""
        return replace(
            self,
            download_bytes=self.download_bytes * (1 + received),
            upload_bytes=self.upload_bytes * (1 + sent),
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What becomes of k jobs: arrays of length k."""

    ok: Mask
    """Whether the update arrives."""
    end_us: Ints
    """When the job arrives or is lost, or the `until_us` of the question."""
    download_us: Ints
    """End of the download, -1 if not reached."""
    compute_us: Ints
    """End of the computation, -1 if not reached."""
    phase: NDArray[np.int8]
    """Index into PHASES: the phase in which the job ended; 0 for jobs that arrive."""
    downloaded_bytes: Ints
    """Bytes moved by `end_us`."""
    uploaded_bytes: Ints
    """Bytes moved by `end_us`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one job; see Outcomes."""

    ok: bool
    end_us: int
    download_us: int
    compute_us: int
    phase: str
    downloaded_bytes: int
    uploaded_bytes: int


@dataclass(frozen=True, slots=True)
class Jobs:
    """k jobs of different clients: arrays [k], `amounts` and `slowness` for each phase."""

    clients: Ints
    start_us: Ints
    amounts: tuple[Floats, ...]
    """Bytes, samples and bytes, times the phase's slowness."""
    slowness: tuple[Floats, ...]

    @staticmethod
    def of(clients: Ints, t_us: int | Ints, work: Work) -> Jobs:
        """Start `work` for `clients` [k] at `t_us`, one time or [k]. Raises ValueError for amounts below 0."""
        k, names = len(clients), ("download_bytes", "samples", "upload_bytes")
        slowness = tuple(_amounts("slowness", factor, k) for factor in work.slowness)
        amounts = tuple(
            _amounts(name, getattr(work, name), k) * factor
            for name, factor in zip(names, slowness, strict=True)
        )
        return Jobs(clients, np.full(k, t_us, dtype=np.int64), amounts, slowness)


def outcomes_of(phases: list[Progress], jobs: Jobs) -> Outcomes:
    """Return the outcomes of jobs, given their progress in download, computation and upload."""
    download, compute, upload = phases
    downloaded = download.done
    computed = downloaded & compute.done
    ok = computed & upload.done
    down, _, up = jobs.slowness
    return Outcomes(
        ok=ok,
        end_us=upload.end_us,
        download_us=np.where(downloaded, download.end_us, -1),
        compute_us=np.where(computed, compute.end_us, -1),
        phase=np.select([ok, computed, downloaded], [0, 3, 2], 1).astype(np.int8),
        downloaded_bytes=_bytes(download.moved, down),
        uploaded_bytes=np.where(computed, _bytes(upload.moved, up), 0),
    )


def _bytes(moved: Floats, slowness: Floats) -> Ints:
    """Divide moved amounts by the slowness and round down, forgiving the rounding error of the division."""
    plain = np.divide(moved, slowness, out=moved.copy(), where=slowness > 0)
    return np.asarray(np.floor(np.where(slowness == 1, moved, plain * (1 + 1e-12))), np.int64)


def without(outcomes: Outcomes, lost: Mask) -> Outcomes:
    """Mark jobs as lost; a job that had arrived is lost at the very end of its upload."""
    phase = np.where(outcomes.ok & lost, 3, outcomes.phase).astype(np.int8)
    return replace(outcomes, ok=outcomes.ok & ~lost, phase=phase)


def _amounts(name: str, values: ArrayLike, k: int) -> Floats:
    amounts = np.broadcast_to(np.asarray(values, dtype=np.float64), k)
    sound = np.isfinite(amounts) & (amounts >= 0)
    if not sound.all():
        raise ValueError(f"expected {name} of at least 0, found {amounts[~sound][0]}")
    return amounts
