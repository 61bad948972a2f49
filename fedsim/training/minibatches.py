"""Which samples a client uses when: orders of whole cohorts, drawn at once, and groups of jobs laid side by side.

A client's order in an epoch is a function of (seed, purpose, client, nth job, epoch), so it depends neither on who else
trains nor on how.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.errors import DataError
from fedsim.common.rng import hashes, mixed
from fedsim.data.federated_data import Split
from fedsim.training.job import Cohort, Floats, Ints

if TYPE_CHECKING:
    from fedsim.training.settings import LocalSGD

_POSITION_BITS, _NOISE_BITS = 20, 28
_MOST_SEGMENTS = 2 ** (64 - _POSITION_BITS - _NOISE_BITS)
_EVEN = 8
"""Minibatches that hold all that a client has are padded to a multiple of this many samples."""


def orders(seed: int, purpose: str, clients: Ints, nths: Ints, epochs: Ints, sizes: Ints) -> Ints:
    """Return [sum(sizes)] for each (client, nth job, epoch) a permutation of its `size` positions, one after the other.

    Samples are sorted by 28 hashed bits each, equal ones by position. Raises DataError for more than a million samples.
    """
    if len(sizes) > _MOST_SEGMENTS:
        parts = [slice(a, a + _MOST_SEGMENTS) for a in range(0, len(sizes), _MOST_SEGMENTS)]
        columns = (clients, nths, epochs, sizes)
        return np.concatenate([orders(seed, purpose, *(c[part] for c in columns)) for part in parts])
    most = int(sizes.max(initial=0))
    if most > 2**_POSITION_BITS:
        client = int(clients[int(sizes.argmax())])
        raise DataError(
            f"client {client} has {most:,} samples: at most {2**_POSITION_BITS:,} can be shuffled"
        )
    owner = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    position = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    noise = mixed(np.arange(most, dtype=np.uint64))[position]
    noise ^= np.repeat(hashes(seed, purpose, clients, nths, epochs), sizes)
    keys = mixed(noise) >> np.uint64(64 - _NOISE_BITS)
    keys |= owner << np.uint64(_NOISE_BITS)
    keys <<= np.uint64(_POSITION_BITS)
    keys |= position.astype(np.uint64)
    keys.sort()
    return (keys & np.uint64(2**_POSITION_BITS - 1)).astype(np.int64)


def probed(split: Split, clients: Ints, versions: Ints, most: int | None, seed: int) -> list[Ints]:
    """Return the rows [k] of the samples on which each client takes the loss of a version of the model.

    They are all of its samples, or `most` of them where it has more: drawn without replacement, anew for each version.
    """
    rows, sizes = [split.rows(client) for client in clients.tolist()], split.sizes[clients]
    if most is None or most >= sizes.max(initial=0):
        return rows
    found = orders(seed, "losses", clients, versions, np.zeros_like(clients), sizes)
    places = np.split(found, np.cumsum(sizes)[:-1])
    return [own[np.sort(order[:most])] for own, order in zip(rows, places, strict=True)]


@dataclass(frozen=True, slots=True)
class Steps:
    """How much local work each of k jobs does: arrays [k]."""

    sizes: Ints
    """Training samples."""
    epochs: Ints
    """Epochs begun."""
    per_epoch: Ints
    """Minibatches of an epoch."""
    total: Ints
    """Steps in all."""

    @staticmethod
    def of(cohort: Cohort, sizes: Ints, sgd: LocalSGD) -> Steps:
        """A job with a share below 1 does so much of its steps, rounded down, and at least one."""
        per_epoch = -(-sizes // (sgd.batch_size or np.maximum(sizes, 1)))
        whole = sgd.epochs * per_epoch
        some = np.maximum(1, np.floor(cohort.shares * whole + 1e-9)).astype(np.int64)
        epochs = np.ceil(cohort.shares * sgd.epochs).astype(np.int64)
        total = np.where(cohort.shares == 1.0, whole, np.minimum(some, epochs * per_epoch))
        return Steps(sizes, epochs, per_epoch, total)


@dataclass(frozen=True, slots=True)
class Group:
    """g jobs that train side by side, those with most steps first, in minibatches padded to B samples."""

    jobs: Ints
    """[g] Their positions in the cohort."""
    index: torch.Tensor
    """[S, g, B] Rows of the samples of each step; padding repeats some row."""
    weight: torch.Tensor
    """[S, g, B] 1 / (samples of the minibatch), 0 for padding."""
    counts: Floats
    """[S, g] Samples of each minibatch."""
    active: list[int]
    """[S] How many jobs still train in each step; they are the first ones."""
    lr: float
    views: torch.Tensor | None = None
    """[S, g, B] In which view each sample is seen, where images are augmented."""

    def on(self, device: torch.device) -> Group:
        """Return the group with its tensors on a device."""
        views = None if self.views is None else self.views.to(device)
        return replace(self, index=self.index.to(device), weight=self.weight.to(device), views=views)


def of_minibatches(each: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return [2, S, g] mean and mean square of the losses `each` [S, g, B] of the samples of minibatches.

    `weight` is that of a Group: what pads a minibatch counts nothing.
    """
    each = each.where(weight > 0, 0.0)
    squares = (each.double().square() * weight).sum(dim=2)
    return torch.stack([(each * weight).sum(dim=2).double(), squares])


def mean_losses(counts: Floats, found: torch.Tensor) -> tuple[Floats, Floats, Floats]:
    """Return [g] mean and root mean square of the losses of samples, and the latter for the last minibatch alone.

    `found` is what `of_minibatches` returns of minibatches of `counts` [S, g] samples.
    """
    means, squares = np.where(counts > 0, found.cpu().numpy(), 0.0)
    samples, last = counts.sum(axis=0), np.count_nonzero(counts, axis=0) - 1
    with np.errstate(invalid="ignore", over="ignore"):
        of_last = np.where(samples > 0, squares[last, np.arange(len(last))], math.nan)
        return _added(means * counts) / samples, np.sqrt(_added(squares * counts) / samples), np.sqrt(of_last)


def _added(values: Floats) -> Floats:
    """Return the sums [g] of [S, g], step after step: NumPy's own sum takes another order where g is 1.

    A loss of 0 may come as -0; as in any sum that begins with 0, it is 0 here.
    """
    return np.asarray(np.cumsum(values, axis=0)[-1] + 0.0) if len(values) else np.zeros(values.shape[1])


def groups(
    cohort: Cohort,
    split: Split,
    sgd: LocalSGD,
    seed: int,
    most: int,
    purpose: str = "batches",
    even: int = 1,
) -> Iterator[Group]:
    """Cut a cohort into groups of at most `most` jobs that can train side by side, in widths that `even` divides."""
    steps = Steps.of(cohort, split.sizes[cohort.clients], sgd)
    whole = -(-steps.sizes // _EVEN) * _EVEN
    widths = whole if sgd.batch_size is None else np.minimum(whole, -(-sgd.batch_size // even) * even)
    ages = cohort.versions if sgd.lr_decay != 1.0 else np.zeros_like(cohort.versions)
    order = np.lexsort((cohort.ids, -steps.total, ages, widths))
    cuts = np.flatnonzero(np.diff(widths[order]) | np.diff(ages[order])) + 1
    for alike in np.split(order, cuts):
        for a in range(0, len(alike), most):
            jobs = alike[a : a + most]
            yield _group(
                cohort, split, steps, jobs, int(widths[jobs[0]]), seed, purpose, sgd, int(ages[jobs[0]])
            )


def _group(
    cohort: Cohort,
    split: Split,
    steps: Steps,
    jobs: Ints,
    width: int,
    seed: int,
    purpose: str,
    sgd: LocalSGD,
    age: int,
) -> Group:
    g, sizes, epochs, total = len(jobs), steps.sizes[jobs], steps.epochs[jobs], steps.total[jobs]
    segment = np.repeat(np.arange(g), epochs)  # a segment is an epoch of a job
    epoch = np.arange(len(segment)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
    clients, nths = cohort.clients[jobs], cohort.nths[jobs]
    order = orders(seed, purpose, clients[segment], nths[segment], epoch, sizes[segment])
    lengths = sizes[segment]
    place = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    job = np.repeat(segment, lengths)
    batch = sizes[job] if sgd.batch_size is None else np.full(len(job), sgd.batch_size)
    step = np.repeat(epoch * steps.per_epoch[jobs][segment], lengths) + place // batch
    lap = np.repeat(epoch, lengths)
    kept = np.flatnonzero(step < total[job])
    if len(kept) < len(step):
        order, place, job, step, batch, lap = (c[kept] for c in (order, place, job, step, batch, lap))
    s = int(total.max(initial=0))
    rows = split.indices[split.offsets[clients][job] + order]
    at = (step * g + job) * width + place % batch
    index = np.zeros(s * g * width, dtype=np.int64)
    index[at] = rows
    counts = np.bincount(step * g + job, minlength=s * g).astype(np.float64)
    weight: NDArray[np.float32] = np.zeros(s * g * width, dtype=np.float32)
    weight[at] = (1.0 / counts[step * g + job]).astype(np.float32)
    views = None
    if sgd.augment is not None:
        views = np.zeros(s * g * width, dtype=np.int64)
        views[at] = sgd.augment.drawn(seed, purpose, clients[job], nths[job], lap, order)
    return Group(
        jobs=jobs,
        index=torch.from_numpy(index).view(s, g, width),
        weight=torch.from_numpy(weight).view(s, g, width),
        counts=counts.reshape(s, g),
        active=np.searchsorted(-total, -np.arange(s), side="left").tolist(),
        lr=sgd.lr * sgd.lr_decay**age,
        views=None if views is None else torch.from_numpy(views).view(s, g, width),
    )
