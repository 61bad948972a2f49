"""The minibatches of jobs: random orders of samples for whole cohorts, and groups of jobs that train side by side.

A client's order of samples in an epoch is a function of (seed, purpose, client, nth job, epoch). It depends neither on
the other clients nor on the batching mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import DataError
from fedsim.common.rng import hashes, mixed
from fedsim.data.federated_data import Split
from fedsim.training.job import Cohort
from fedsim.training.settings import LocalSGD

_POSITION_BITS, _NOISE_BITS = 20, 28
_MOST_SEGMENTS = 2 ** (64 - _POSITION_BITS - _NOISE_BITS)
_EVEN = 8
"""Minibatches of a client's whole training set are padded to a multiple of this many samples."""


def orders(seed: int, purpose: str, clients: Ints, nths: Ints, epochs: Ints, sizes: Ints) -> Ints:
    """Return for each (client, nth job, epoch) a permutation of its `size` positions, concatenated: [sum(sizes)].

    Samples are sorted by 28 hashed bits each, and by position where these are equal. Raises DataError if a client has
    more than 2**20 samples.
    """
    if len(sizes) > _MOST_SEGMENTS:
        parts = [slice(a, a + _MOST_SEGMENTS) for a in range(0, len(sizes), _MOST_SEGMENTS)]
        columns = (clients, nths, epochs, sizes)
        return np.concatenate([orders(seed, purpose, *(c[part] for c in columns)) for part in parts])
    most = int(sizes.max(initial=0))
    if most > 2**_POSITION_BITS:
        client, limit = clients[sizes.argmax()], 2**_POSITION_BITS
        raise DataError(f"client {client} has {most:,} samples: at most {limit:,} can be shuffled")
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


def loss_rows(split: Split, clients: Ints, versions: Ints, most: int | None, seed: int) -> list[Ints]:
    """Return the samples on which each of k clients measures the loss of a model version, as k arrays of rows.

    They are all training samples of the client. A client with more than `most` samples draws `most` of them without
    replacement, anew for each version.
    """
    rows, sizes = [split.rows(client) for client in clients.tolist()], split.sizes[clients]
    if most is None or most >= sizes.max(initial=0):
        return rows
    places = orders(seed, "losses", clients, versions, np.zeros_like(clients), sizes)
    by_client = np.split(places, np.cumsum(sizes)[:-1])
    return [own[np.sort(order[:most])] for own, order in zip(rows, by_client, strict=True)]


@dataclass(frozen=True, slots=True)
class Steps:
    """The local work of k jobs: arrays [k]."""

    sizes: Ints
    """Training samples."""
    epochs: Ints
    """Epochs, the last of which may be incomplete."""
    per_epoch: Ints
    """Minibatches of an epoch."""
    total: Ints
    """Steps in all."""
    widths: Ints
    """Samples of a minibatch, padding included."""

    @staticmethod
    def of(cohort: Cohort, sizes: Ints, sgd: LocalSGD, even: int = 1) -> Steps:
        """Return the steps of clients with `sizes` [k] samples; widths are multiples of `even`.

        A job with a share below 1 takes that share of its steps, rounded down, and at least one.
        """
        per_epoch = -(-sizes // (sgd.batch_size or np.maximum(sizes, 1)))
        whole = sgd.epochs * per_epoch
        part = np.maximum(1, np.floor(cohort.shares * whole + 1e-9)).astype(np.int64)
        epochs = np.ceil(cohort.shares * sgd.epochs).astype(np.int64)
        total = np.where(cohort.shares == 1.0, whole, np.minimum(part, epochs * per_epoch))
        widths = -(-sizes // _EVEN) * _EVEN
        if sgd.batch_size is not None:
            widths = np.minimum(widths, -(-sgd.batch_size // even) * even)
        return Steps(sizes, epochs, per_epoch, total, widths)


@dataclass(frozen=True, slots=True)
class Group:
    """g jobs that train side by side, those with most steps first, in minibatches padded to B samples."""

    jobs: Ints
    """[g] Positions of the jobs in the cohort."""
    index: Tensor
    """[S, g, B] Rows of the samples of each step; padding is row 0."""
    weight: Tensor
    """[S, g, B] 1 / (samples of the minibatch), and 0 for padding."""
    counts: Floats
    """[S, g] Samples of each minibatch."""
    active: list[int]
    """[S] Number of jobs that still train in each step; they come first."""
    lr: float
    views: Tensor | None = None
    """[S, g, B] View of each sample; None without augmentation."""

    def on(self, device: torch.device) -> Group:
        """Return the group with its tensors on a device."""
        views = None if self.views is None else self.views.to(device)
        return replace(self, index=self.index.to(device), weight=self.weight.to(device), views=views)


@dataclass(frozen=True, slots=True)
class Terms:
    """How g clients that train side by side step: `V - lr (factor G + proximal (V - W) + offsets)`, G the gradients."""

    factor: float = 1.0
    proximal: float = 0.0
    anchors: Sequence[Tensor] | None = None
    """g vectors [P], the rows of W; None: the models that the clients start from."""
    offsets: Tensor | None = None
    """[g, P]; None: 0."""


def minibatch_losses(each: Tensor, weight: Tensor) -> Tensor:
    """Return [2, S, g] the mean and the mean square of the losses `each` [S, g, B] in each minibatch.

    `weight` is the `Group.weight`, which is 0 for padding.
    """
    each = each.where(weight > 0, 0.0)
    squares = (each.double().square() * weight).sum(dim=2)
    return torch.stack([(each * weight).sum(dim=2).double(), squares])


def job_losses(counts: Floats, by_minibatch: Tensor) -> tuple[Floats, Floats, Floats]:
    """Return [g] the mean and the root mean square of the losses of a job, and the latter of its last minibatch.

    Args:
        counts: samples of the minibatches [S, g].
        by_minibatch: the result of `minibatch_losses` [2, S, g].
    """
    means, squares = np.where(counts > 0, by_minibatch.cpu().numpy(), 0.0)
    samples, last = counts.sum(axis=0), np.count_nonzero(counts, axis=0) - 1
    with np.errstate(invalid="ignore", over="ignore"):
        of_last = np.where(samples > 0, squares[last, np.arange(len(last))], math.nan)
        return _added(means * counts) / samples, np.sqrt(_added(squares * counts) / samples), np.sqrt(of_last)


def _added(values: Floats) -> Floats:
    """Return the sums [g] of [S, g], added step by step: `np.sum` adds in another order where g is 1.

    Adding 0.0 turns a sum of -0.0 into 0.0.
    """
    return np.asarray(np.cumsum(values, axis=0)[-1] + 0.0) if len(values) else np.zeros(values.shape[1])


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How large a group may be; a client's bits are the same in a group of any size."""

    clients: int
    width_multiple: int = 1
    """Minibatches are padded to a multiple of this many samples, at most to the configured size rounded up to it."""
    samples: int | None = None
    """Most samples in a step of all clients, if that admits one client."""

    def most(self, width: int) -> int:
        """Return the most clients with minibatches of `width` samples."""
        return (
            self.clients if self.samples is None else max(1, min(self.clients, self.samples // max(width, 1)))
        )


def groups(
    cohort: Cohort, split: Split, sgd: LocalSGD, seed: int, limits: GroupLimits, purpose: str = "batches"
) -> Iterator[Group]:
    """Cut a cohort into groups of jobs with minibatches of equal width. `purpose` names the random draws."""
    steps = Steps.of(cohort, split.sizes[cohort.clients], sgd, limits.width_multiple)
    ages = cohort.versions if sgd.lr_decay != 1.0 else np.zeros_like(cohort.versions)
    order = np.lexsort((cohort.ids, -steps.total, ages, steps.widths))
    cuts = np.flatnonzero(np.diff(steps.widths[order]) | np.diff(ages[order])) + 1
    for alike in np.split(order, cuts):
        most = limits.most(int(steps.widths[alike].max(initial=0)))
        for a in range(0, len(alike), most):
            yield _group(cohort, steps, alike[a : a + most], split, sgd, seed, purpose)


def _uses(
    cohort: Cohort, steps: Steps, jobs: Ints, batch_size: int | None, seed: int, purpose: str
) -> tuple[Ints, ...]:
    """Draw the samples that jobs train on: five arrays [n] with an entry for each use of a sample.

    These are the job, from 0 to g - 1, the epoch, the step, the position of the sample among the client's samples, and
    its position in the minibatch. `jobs` [g] are positions in the cohort.
    """
    sizes, epochs = steps.sizes[jobs], steps.epochs[jobs]
    segment = np.repeat(np.arange(len(jobs)), epochs)  # a segment is an epoch of a job
    epoch = np.arange(len(segment)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
    lengths, owner = sizes[segment], jobs[segment]
    sample = orders(seed, purpose, cohort.clients[owner], cohort.nths[owner], epoch, lengths)
    place = np.arange(len(sample)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    job, lap = np.repeat(segment, lengths), np.repeat(epoch, lengths)
    batch, column = np.divmod(place, sizes[job] if batch_size is None else batch_size)
    step = lap * steps.per_epoch[jobs][job] + batch
    used = np.flatnonzero(step < steps.total[jobs][job])
    if len(used) == len(step):
        return job, lap, step, sample, column
    return job[used], lap[used], step[used], sample[used], column[used]


def _group(
    cohort: Cohort, steps: Steps, jobs: Ints, split: Split, sgd: LocalSGD, seed: int, purpose: str
) -> Group:
    total, clients, nths = steps.total[jobs], cohort.clients[jobs], cohort.nths[jobs]
    job, epoch, step, sample, column = _uses(cohort, steps, jobs, sgd.batch_size, seed, purpose)
    shape = s, g, width = int(total.max(initial=0)), len(jobs), int(steps.widths[jobs[0]])
    minibatch = step * g + job
    counts = np.bincount(minibatch, minlength=s * g).astype(np.float64)

    def padded(values: NDArray[Any], rest: Any = 0) -> Tensor:
        table = np.full(shape, rest, dtype=values.dtype)
        table.reshape(-1)[minibatch * width + column] = values
        return torch.from_numpy(table)

    offsets = split.offsets[clients]
    first = split.indices[offsets][:, None]  # in places without a sample the client's first one, of weight 0
    views = None
    if sgd.augment is not None:
        views = padded(sgd.augment.drawn(seed, purpose, clients[job], nths[job], epoch, sample))
    return Group(
        jobs=jobs,
        index=padded(split.indices[offsets[job] + sample], first),
        weight=padded((1.0 / counts[minibatch]).astype(np.float32)),
        counts=counts.reshape(s, g),
        active=np.searchsorted(-total, -np.arange(s), side="left").tolist(),
        lr=sgd.rate(int(cohort.versions[jobs[0]])),
        views=views,
    )
