"""Orders of samples, and groups of jobs side by side."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsim.common.errors import DataError
from fedsim.common.rng import hashes, mixed
from fedsim.data.federated_data import Split
from fedsim.training import minibatches
from fedsim.training.job import Cohort
from fedsim.training.minibatches import (
    GroupLimits,
    Steps,
    groups,
    job_losses,
    loss_rows,
    minibatch_losses,
    orders,
)
from fedsim.training.settings import LocalSGD


def order(*segments: tuple[int, int, int, int], seed: int = 1, purpose: str = "batches") -> list[list[int]]:
    """Return the order of each (client, nth, epoch, size)."""
    clients, nths, epochs, sizes = np.array(segments, dtype=np.int64).T
    found = orders(seed, purpose, clients, nths, epochs, sizes)
    return [part.tolist() for part in np.split(found, np.cumsum(sizes)[:-1])]


def test_each_order_is_a_permutation_of_its_own() -> None:
    found = order((0, 0, 0, 30), (1, 0, 0, 30), (0, 1, 0, 30), (0, 0, 1, 30), (5, 0, 0, 0), (7, 2, 0, 1))
    assert all(sorted(o) == list(range(len(o))) for o in found)
    assert [len(o) for o in found] == [30, 30, 30, 30, 0, 1]
    assert len({tuple(o) for o in found[:4]}) == 4
    assert order((0, 0, 0, 30), seed=2)[0] != found[0] != order((0, 0, 0, 30), purpose="own")[0]


def test_who_else_is_drawn_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [(client, client % 3, 0, 1 + client % 17) for client in range(50)]
    together = order(*segments)
    assert [order(segment)[0] for segment in segments] == together
    monkeypatch.setattr(minibatches, "_MOST_SEGMENTS", 7)
    assert order(*segments) == together


def test_more_segments_than_are_sorted_at_once() -> None:
    n = 2**16 + 2
    clients, none = np.arange(n), np.zeros(n, dtype=np.int64)
    found = orders(1, "batches", clients, none, none, none + 2).reshape(n, 2)
    assert (found.sum(axis=1) == 1).all(), "each its own two positions"
    for part in (slice(0, 9), slice(n - 9, n)):
        alone = orders(1, "batches", clients[part], none[part], none[part], none[part] + 2)
        assert found[part].ravel().tolist() == alone.tolist()


def test_samples_are_sorted_by_28_bits_and_position() -> None:
    """Some fifteen pairs of so many samples have equal bits, and as many differ in the last bit alone."""
    size, one = 2**16, [np.array([value]) for value in (4, 2, 1)]
    bits = mixed(mixed(np.arange(size, dtype=np.uint64)) ^ hashes(1, "batches", *one)) // np.uint64(2**36)
    expected = np.argsort(bits, kind="stable")
    assert len(np.unique(bits)) < size
    assert len(np.unique(bits // np.uint64(2))) < len(np.unique(bits))
    assert orders(1, "batches", *one, np.array([size])).tolist() == expected.tolist()


def test_every_position_is_as_likely_everywhere() -> None:
    n, size = 20_000, 6
    found = np.array(order(*((client, 0, 0, size) for client in range(n))))
    counts = np.array([np.bincount(found[:, place], minlength=size) for place in range(size)])
    assert abs(counts - n / size).max() < 5 * np.sqrt(n / size)


def test_more_than_a_million_samples_are_refused() -> None:
    with pytest.raises(DataError, match="client 4 has 1,048,577 samples"):
        orders(0, "batches", *(np.array([3, value]) for value in (4, 0, 0, 2**20 + 1)))


def cohort(shares: list[float]) -> Cohort:
    k = np.arange(len(shares))
    return Cohort(k, k, 0 * k, 0 * k, np.array(shares), 0 * k)


@pytest.mark.parametrize(
    ("share", "size", "epochs", "total"),
    [(1.0, 25, 2, 6), (0.5, 25, 2, 3), (0.4, 25, 2, 2), (0.01, 25, 2, 1), (0.999, 25, 2, 5), (0.5, 5, 3, 1)],
)
def test_a_share_is_so_many_steps_rounded_down(share: float, size: int, epochs: int, total: int) -> None:
    steps = Steps.of(cohort([share]), np.array([size]), LocalSGD(epochs=epochs, batch_size=10))
    assert steps.total.tolist() == [total]


@pytest.mark.parametrize(("batch_size", "totals"), [(10, [2, 4, 6]), (None, [2, 2, 2])])
def test_who_has_no_samples_takes_no_steps(batch_size: int | None, totals: list[int]) -> None:
    sizes = np.array([0, 10, 11, 30])
    steps = Steps.of(cohort([1.0] * 4), sizes, LocalSGD(epochs=2, batch_size=batch_size))
    assert steps.total.tolist() == [0, *totals]
    split = Split(np.arange(51), np.concatenate([[0], np.cumsum(sizes)]))
    nobody = list(groups(cohort([1.0]), split, LocalSGD(batch_size=batch_size), 1, GroupLimits(9)))
    assert [group.active for group in nobody] == [[]]


def test_a_group_holds_each_sample_once_an_epoch() -> None:
    sizes = [23, 5, 10]
    split = Split(100 + np.arange(38), np.concatenate([[0], np.cumsum(sizes)]))
    sgd = LocalSGD(epochs=2, batch_size=8)
    (made,) = groups(cohort([1.0, 1.0, 1.0]), split, sgd, 1, GroupLimits(9))
    assert made.jobs.tolist() == [0, 2, 1], "those with most steps first"
    assert made.active == [3, 3, 2, 2, 1, 1]
    for place, job in enumerate(made.jobs.tolist()):
        used = made.weight[:, place] > 0
        rows = made.index[:, place][used].tolist()
        assert sorted(rows) == sorted(2 * split.rows(job).tolist())
        assert made.counts[:, place].sum() == 2 * sizes[job]
    sums = made.weight.sum(dim=2)
    np.testing.assert_allclose(sums[made.counts > 0], 1.0, rtol=1e-6)


def test_groups_are_of_equal_width_and_learning_rate() -> None:
    sizes = [3, 30, 12, 7, 31]
    split = Split(np.arange(83), np.concatenate([[0], np.cumsum(sizes)]))
    none, versions = np.zeros(5, int), np.array([0, 0, 1, 1, 0])
    jobs = Cohort(np.arange(5), np.arange(5), none, versions, np.ones(5), none)
    made = list(groups(jobs, split, LocalSGD(batch_size=None, lr=1.0, lr_decay=0.5), 1, GroupLimits(9)))
    assert sorted((g.index.shape[2], g.lr, sorted(g.jobs.tolist())) for g in made) == [
        (8, 0.5, [3]),
        (8, 1.0, [0]),
        (16, 0.5, [2]),
        (32, 1.0, [1, 4]),
    ]
    assert [len(g.jobs) for g in groups(jobs, split, LocalSGD(batch_size=2), 1, GroupLimits(2))] == [2, 2, 1]


@pytest.mark.parametrize(
    ("samples", "clients"), [(None, [3, 2]), (1000, [3, 2]), (16, [2, 2, 1]), (4, [1] * 5)]
)
def test_a_group_has_few_samples_in_a_step(samples: int | None, clients: list[int]) -> None:
    split = Split(np.arange(40), np.arange(0, 41, 8))
    made = groups(cohort([1.0] * 5), split, LocalSGD(batch_size=None), 1, GroupLimits(3, samples=samples))
    assert [len(group.jobs) for group in made] == clients


@pytest.mark.parametrize(
    ("batch_size", "even", "widths"),
    [(8, 1, [8]), (7, 1, [7]), (7, 4, [8]), (12, 8, [8, 16]), (None, 1, [8, 24]), (100, 8, [8, 24])],
)
def test_minibatches_are_as_wide_as_need_be(batch_size: int | None, even: int, widths: list[int]) -> None:
    split = Split(np.arange(28), np.array([0, 5, 28]))
    made = groups(cohort([1.0, 1.0]), split, LocalSGD(batch_size=batch_size), 1, GroupLimits(9, even))
    assert sorted({group.index.shape[2] for group in made}) == widths


SIZES = np.array([5, 40, 0, 12, 9, 1])
SPLIT = Split(np.random.default_rng(2).permutation(67), np.concatenate([[0], np.cumsum(SIZES)]))


def probe(clients: list[int], version: int = 0, most: int | None = 9, seed: int = 1) -> list[list[int]]:
    rows = loss_rows(SPLIT, np.array(clients), np.full(len(clients), version), most, seed)
    return [own.tolist() for own in rows]


def test_losses_are_taken_on_all_samples_or_on_some_of_them() -> None:
    every = [SPLIT.rows(client).tolist() for client in range(6)]
    assert probe([0, 1, 2, 3, 4, 5], most=None) == probe([0, 1, 2, 3, 4, 5], most=40) == every
    some = probe([0, 1, 2, 3, 4, 5])
    assert [len(own) for own in some] == [5, 9, 0, 9, 9, 1]
    assert all(some[client] == every[client] for client in (0, 2, 4, 5))
    for client in (1, 3):
        places = [every[client].index(row) for row in some[client]]
        assert places == sorted(set(places)), "in the order of the client's samples, none twice"


def test_which_samples_depends_on_seed_client_and_version_alone() -> None:
    together = probe([3, 1, 4])
    assert [probe([client])[0] for client in (3, 1, 4)] == together
    assert probe([1, 1]) == [together[1]] * 2
    assert probe([1], version=1)[0] != together[1] != probe([1], seed=2)[0]


def test_every_sample_is_as_likely_to_be_probed() -> None:
    n = 4_000
    found = loss_rows(SPLIT, np.full(n, 3), np.arange(n), 9, 1)
    counts = np.bincount(np.concatenate(found), minlength=67)[SPLIT.rows(3)]
    assert abs(counts - n * 9 / 12).max() < 5 * np.sqrt(n * 9 / 12 * 3 / 12)


def test_what_pads_a_minibatch_counts_nothing() -> None:
    """Padding is some sample of the set, whose loss may be anything."""
    weight = torch.tensor([[[0.5, 0.5, 0.0, 0.0]]])
    found = minibatch_losses(torch.tensor([[[1.0, 3.0, math.inf, math.nan]]]), weight)
    assert found.flatten().tolist() == [2.0, 5.0]


@pytest.mark.parametrize("clients", [1, 3])
def test_a_loss_of_nothing_has_no_sign(clients: int) -> None:
    """Its bits would be others in the records, for a client that fits its samples exactly."""
    counts = np.full((2, clients), 4.0)
    each = torch.full((2, clients, 4), -0.0)
    found = job_losses(counts, minibatch_losses(each, torch.full((2, clients, 4), 0.25)))
    for losses in found:
        np.testing.assert_array_equal(losses, np.zeros(clients))
        assert not np.signbit(losses).any()
    assert len(found) == 3
