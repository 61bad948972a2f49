"""What a job moves and computes, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsim.worlds.interval_index import Floats, Ints, Mask, Progress

PHASES = ("", "download", "compute", "upload")


@dataclass(frozen=True, slots=True)
class Work:
    """What jobs move and compute: arrays with one entry per job, or numbers that hold for all."""

    download_bytes: NDArray[Any]
    samples: NDArray[Any]
    """Passes over a sample, times the model's cost relative to the one that the trace was measured with."""
    upload_bytes: NDArray[Any]
    slowness: tuple[ArrayLike, ArrayLike, ArrayLike] = (1.0, 1.0, 1.0)
    """How many times as long as the trace says a unit of download, computation and upload takes."""
    lost_at: ArrayLike = np.inf
    """Jobs below 1 are lost by chance, after this share of the phase `lost_in`, or of their whole duration."""
    lost_in: ArrayLike = 0
    """Index into PHASES; 0 for the whole job."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What becomes of k jobs: arrays of length k."""

    ok: Mask
    """Whether the update arrives."""
    end_us: Ints
    """Arrival or loss, or the `until_us` of the question."""
    download_us: Ints
    """End of the download, -1 if not reached."""
    compute_us: Ints
    """End of the computation, -1 if not reached."""
    phase: NDArray[np.int8]
    """Index into PHASES: where a job that did not arrive was; 0 for those that do."""
    downloaded_bytes: Ints
    """Moved until the end."""
    uploaded_bytes: Ints


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
    """k jobs that start together: what the world has to do, and what that is in bytes."""

    who: Ints
    start_us: Ints
    amounts: tuple[Floats, ...]
    slowness: tuple[Floats, ...]

    @staticmethod
    def of(who: Ints, t_us: int | Ints, work: Work) -> Jobs:
        """Start `work` for clients [k] at `t_us`, one time or [k]. Raises ValueError for amounts below 0."""
        names = ("download_bytes", "samples", "upload_bytes")
        slow = tuple(_amounts("slowness", s, len(who)) for s in work.slowness)
        amounts = tuple(
            _amounts(name, getattr(work, name), len(who)) * factor
            for name, factor in zip(names, slow, strict=True)
        )
        return Jobs(who, np.full(len(who), t_us, dtype=np.int64), amounts, slow)


def outcomes_of(phases: list[Progress], jobs: Jobs) -> Outcomes:
    """Return what became of jobs that got so far in download, computation and upload."""
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
    """Undo the factor; what is a whole number but for the rounding of that is that number."""
    plain = np.divide(moved, slowness, out=moved.copy(), where=slowness > 0)
    return np.asarray(np.floor(np.where(slowness == 1, moved, plain * (1 + 1e-12))), np.int64)


def without(result: Outcomes, lost: Mask) -> Outcomes:
    """Mark jobs as lost; one that had got through is lost at the very end of its upload."""
    return replace(
        result, ok=result.ok & ~lost, phase=np.where(result.ok & lost, 3, result.phase).astype(np.int8)
    )


def _amounts(name: str, given: ArrayLike, k: int) -> Floats:
    amounts = np.broadcast_to(np.asarray(given, dtype=np.float64), k)
    if not (np.isfinite(amounts) & (amounts >= 0)).all():
        raise ValueError(
            f"expected {name} of at least 0, found {amounts[~(amounts >= 0) | ~np.isfinite(amounts)][0]}"
        )
    return amounts
