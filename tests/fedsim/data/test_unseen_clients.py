"""Clients that are kept out of training: who they are, and what they keep of the division."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.data.federated_data import FederatedData, Split, Task, label_counts
from fedsim.data.split import Division, Fractions, federate
from fedsim.data.unseen_clients import with_unseen

CLIENTS = 12


def divided(fractions: Fractions = (0.6, 0.2, 0.2), seed: int = 4) -> FederatedData:
    """Return 240 samples among 12 clients of different sizes."""
    draws = np.random.default_rng(1)
    task = Task.from_arrays(np.arange(480.0).reshape(240, 2), draws.integers(0, 3, 240))
    options = {"sizes": "lognormal", "sigma": 0.3}
    return federate(
        task,
        n_clients=CLIENTS,
        partitioner="iid",
        options=options,
        division=Division(fractions=fractions),
        seed=seed,
    )


def rows(split: Split) -> list[list[int]]:
    return [split.rows(client).tolist() for client in range(len(split.sizes))]


@pytest.mark.parametrize("count", [1, 3, CLIENTS - 1])
@pytest.mark.parametrize("seed", [0, 4])
def test_each_client_keeps_its_samples_and_the_order_of_the_division(count: int, seed: int) -> None:
    whole = divided()
    data = with_unseen(whole, count, seed)
    assert data.unseen is not None
    unseen = data.unseen.numbers.tolist()
    training = [k for k in range(CLIENTS) if k not in unseen]
    assert (data.n_clients, data.n_unseen) == (CLIENTS - count, count)
    assert unseen == sorted(set(unseen))
    for name in ("train", "valid", "test"):
        before = rows(getattr(whole, name))
        assert rows(getattr(data, name)) == [before[k] for k in training]
        if name != "valid":
            nothing: list[list[int]] = [[]] * len(training)
            assert rows(getattr(data.unseen, name)) == nothing + [before[k] for k in unseen]
    before = rows(whole.train)
    assert [data.training_rows(k).tolist() for k in range(CLIENTS)] == [before[k] for k in training + unseen]


def test_the_clients_that_train_keep_their_names() -> None:
    whole = replace(divided(), names=tuple("abcdefghijkl"))
    data = with_unseen(whole, 3, seed=4)
    assert data.unseen is not None
    left = [name for k, name in enumerate("abcdefghijkl") if k not in data.unseen.numbers]
    assert data.names == tuple(left)


def test_the_seed_alone_draws_them_and_a_larger_share_holds_a_smaller_one() -> None:
    def drawn(data: FederatedData, count: int, seed: int) -> list[int]:
        unseen = with_unseen(data, count, seed).unseen
        assert unseen is not None
        return unseen.numbers.tolist()

    assert drawn(divided(seed=4), 5, 7) == drawn(divided(seed=5), 5, 7)
    assert len({tuple(drawn(divided(), 5, seed)) for seed in range(6)}) > 3
    assert all(set(drawn(divided(), n, 7)) < set(drawn(divided(), n + 1, 7)) for n in range(1, CLIENTS - 1))


def test_none_leaves_the_data_as_they_are() -> None:
    data = divided()
    assert with_unseen(data, 0, 3) is data
    assert list(data.splits()) == ["train", "valid", "test"]
    assert (data.n_clients, data.n_unseen) == (CLIENTS, 0)


def test_the_split_of_some_clients_has_those_of_either_kind() -> None:
    data = with_unseen(divided(), 3, 4)
    assert list(data.splits()) == ["train", "valid", "test", "unseen"]
    some = data.splits(some=(1, 8, 10))
    assert np.flatnonzero(some["test_some"].sizes).tolist() == [1, 8]
    assert np.flatnonzero(some["unseen_some"].sizes).tolist() == [10]
    assert some["unseen_some"].rows(10).tolist() == some["unseen"].rows(10).tolist()
    assert np.flatnonzero(some["unseen"].sizes).tolist() == [9, 10, 11]


def test_labels_of_unseen_clients_are_not_counted_among_those_that_train() -> None:
    data = with_unseen(divided(), 3, 4)
    assert data.unseen is not None
    assert label_counts(data).shape == (9, 3)
    assert label_counts(data).sum() == data.train.sizes.sum()
    own = label_counts(data, data.unseen.train)
    assert own[:9].sum() == 0
    for client in range(9, CLIENTS):
        assert own[client].tolist() == np.bincount(data.y[data.training_rows(client)], minlength=3).tolist()


@pytest.mark.parametrize("count", [CLIENTS, CLIENTS + 1])
def test_one_client_at_least_must_train(count: int) -> None:
    with pytest.raises(
        ConfigError, match=f"task.unseen: expected fewer than the 12 clients .* found {count}"
    ):
        with_unseen(divided(), count, 0)


def test_clients_without_test_samples_cannot_be_unseen() -> None:
    with pytest.raises(ConfigError, match=r"task\.unseen: .* test samples in task\.fractions.* found none"):
        with_unseen(divided((0.8, 0.2, 0.0)), 2, 0)
