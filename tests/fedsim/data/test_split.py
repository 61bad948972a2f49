from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim import plugins
from fedsim.common.errors import ConfigError, DataError
from fedsim.common.rng import rng
from fedsim.data.federated_data import FederatedData, Task
from fedsim.data.split import Division, federate, split_sizes

KINDS = ("train", "valid", "test")


def toy(n: int = 400, official: int = 100) -> Task:
    draws = rng(0, "toy")
    return Task(
        name="toy",
        x=draws.normal(size=(n, 3)).astype(np.float32),
        y=draws.integers(4, size=n),
        n_classes=4,
        official_test=np.arange(n) >= n - official,
    )


def natural(sizes: list[int]) -> Task:
    task = toy(sum(sizes), official=0)
    return replace(task, natural=tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])))


def rows(data: FederatedData, client: int) -> list[list[int]]:
    return [getattr(data, kind).rows(client).tolist() for kind in KINDS]


@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 30), seed=st.integers(0, 2**40), pool=st.sampled_from(["all", "train"]))
def test_splits_are_disjoint_and_cover_the_pool(clients: int, seed: int, pool: Any) -> None:
    data = federate(toy(), n_clients=clients, partitioner="iid", division=Division(pool=pool), seed=seed)
    assert data.n_clients == clients
    used = np.concatenate([getattr(data, kind).indices for kind in KINDS])
    np.testing.assert_array_equal(np.sort(used), np.arange(400 if pool == "all" else 300))
    assert all(getattr(data, kind).sizes.min() >= 1 for kind in KINDS)


def test_equal_seeds_federate_equally_and_others_differ() -> None:
    def train(seed: int) -> list[int]:
        split = federate(toy(), n_clients=7, partitioner="dirichlet", options={"alpha": 1.0}, seed=seed).train
        return [*split.indices.tolist(), *split.offsets.tolist()]

    assert train(4) == train(4)
    assert train(4) != train(5)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(3, 40), min_size=1, max_size=12), seed=st.integers(0, 2**40))
def test_a_client_permutes_its_rows_and_cuts_them_at_the_sizes_of_its_parts(
    sizes: list[int], seed: int
) -> None:
    fractions = (0.6, 0.25, 0.15)
    task = natural(sizes)
    data = federate(task, n_clients=len(sizes), division=Division(fractions=fractions), seed=seed)
    assert task.natural is not None
    for client, held in enumerate(task.natural):
        cuts = np.cumsum(split_sizes(len(held), fractions))[:-1]
        parts = np.split(rng(seed, "split", client).permutation(held), cuts)
        assert rows(data, client) == [part.tolist() for part in parts]


def test_a_clients_split_does_not_depend_on_the_other_clients() -> None:
    """Growing client 1 must leave the draw of client 0 alone."""
    one, other = (federate(natural(sizes), n_clients=2, seed=9) for sizes in ([30, 10], [30, 50]))
    assert rows(one, 0) == rows(other, 0)


def test_rows_are_shuffled_before_they_are_split() -> None:
    data = federate(natural([100]), n_clients=1, seed=0)
    assert data.test.rows(0).tolist() != list(range(90, 100))
    assert not np.array_equal(data.train.rows(0), np.sort(data.train.rows(0)))


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 3000),
    parts=st.tuples(st.integers(1, 100), st.integers(0, 100), st.integers(0, 100)),
)
def test_split_sizes_are_within_one_of_the_fractions_for_large_clients(
    n: int, parts: tuple[int, int, int]
) -> None:
    fractions = (parts[0] / sum(parts), parts[1] / sum(parts), parts[2] / sum(parts))
    wanted = [f > 0 for f in fractions]
    if n < sum(wanted):
        return
    sizes = split_sizes(n, fractions)
    assert sum(sizes) == n
    assert [s > 0 for s in sizes] == wanted
    if min(f * n for f in fractions if f > 0) >= 1.5:
        np.testing.assert_allclose(sizes, np.array(fractions) * n, atol=1.01)


@pytest.mark.parametrize(
    ("n", "fractions", "expected"),
    [
        (500, (0.8, 0.1, 0.1), (400, 50, 50)),  # the CIFAR-10 clients of FedFV
        (3, (0.8, 0.1, 0.1), (1, 1, 1)),
        (4, (0.1, 0.45, 0.45), (1, 2, 1)),
        (700, (6 / 7, 0.0, 1 / 7), (600, 0, 100)),  # the Fashion-MNIST clients of FedLF
        (1, (1.0, 0.0, 0.0), (1, 0, 0)),
    ],
)
def test_split_sizes_by_hand(
    n: int, fractions: tuple[float, float, float], expected: tuple[int, int, int]
) -> None:
    assert split_sizes(n, fractions) == expected


def test_a_fraction_of_zero_leaves_that_part_empty() -> None:
    data = federate(
        toy(), n_clients=3, partitioner="iid", division=Division(fractions=(0.8, 0.0, 0.2)), seed=0
    )
    assert data.valid.sizes.tolist() == [0, 0, 0]
    assert data.test.sizes.min() > 0


def test_a_client_too_small_to_split_is_named() -> None:
    with pytest.raises(DataError, match=r"client 1 has 2 samples: too few for 3 non-empty parts"):
        federate(natural([10, 2, 10]), n_clients=3, seed=0)
    assert (
        federate(
            natural([10, 2]), n_clients=2, division=Division(fractions=(0.5, 0.0, 0.5)), seed=0
        ).train.sizes[1]
        == 1
    )


def test_natural_clients_keep_their_rows() -> None:
    data = federate(natural([20, 5, 40]), n_clients=3, seed=0)
    assert [sorted(r for part in rows(data, k) for r in part) for k in range(3)] == [
        list(range(20)),
        list(range(20, 25)),
        list(range(25, 65)),
    ]


def test_the_official_test_set_of_natural_clients_can_be_left_out() -> None:
    task = natural([20, 20])
    task = replace(task, official_test=np.arange(40) % 4 == 0)
    data = federate(task, n_clients=2, division=Division(pool="train"), seed=0)
    assert not task.official_test[np.concatenate([getattr(data, kind).indices for kind in KINDS])].any()


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        (
            natural([9, 9]),
            {"n_clients": 2, "partitioner": "iid"},
            "'toy' has clients of its own: remove .* 'iid'",
        ),
        (natural([9, 9]), {"n_clients": 3}, "'toy' has 2 clients of its own, not 3"),
        (toy(), {"n_clients": 3}, r"give \[partition\] with a name, .* \(known: dirichlet, iid"),
        (toy(), {"n_clients": 3, "partitioner": "dirichelt"}, "did you mean 'dirichlet'"),
        (toy(), {"n_clients": 0, "partitioner": "iid"}, "at least 1 client, found 0"),
        (
            toy(),
            {"n_clients": 3, "partitioner": "iid", "division": Division(fractions=(0.8, 0.1, 0.2))},
            "sum to 1",
        ),
        (
            toy(),
            {"n_clients": 3, "partitioner": "iid", "division": Division(fractions=(0.0, 0.5, 0.5))},
            "the first positive",
        ),
        (
            toy(),
            {"n_clients": 3, "partitioner": "iid", "division": Division(fractions=(1.0, np.nan, 0.0))},
            "sum to 1; found",
        ),
        (
            toy(),
            {"n_clients": 3, "partitioner": "iid", "options": {"sizes": "lognormal", "sigma": 1e3}},
            "option 'sigma'.*found 1000",
        ),
        (
            toy(),
            {"n_clients": 3, "partitioner": "iid", "division": Division(pool="test")},  # type: ignore[arg-type]
            "pool 'all' or 'train' or 'official', found 'test'",
        ),
        (
            toy(),
            {"n_clients": 3, "partitioner": "iid", "division": Division(pool="official")},
            r"test fraction of 0.*found 0\.1",
        ),
        (
            toy(official=0),
            {"n_clients": 3, "partitioner": "iid", "division": Division(pool="train")},
            "no official test set",
        ),
    ],
)
def test_wrong_arguments_are_explained(task: Task, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federate(task, seed=0, **arguments)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[np.arange(5)]", "returned 1 clients, expected 2"),
        ("[np.arange(5), np.arange(4, 9)]", "client 1: .* found sample 4, which client 0 holds"),
        ("[np.arange(5), np.array([400])]", "client 1: expected positions from 0 to 399, found 400"),
        ("[np.arange(5), np.arange(5.0, 9)]", "client 1: expected positions, whole numbers.*found float64"),
        ("[y == 0, y == 1]", r"client 0: .*found bool; np\.flatnonzero"),
        ("[None, None]", "client 0: expected positions, whole numbers"),
        ("{0: [0, 1, 2], 1: [3, 4, 5]}", "expected the positions of each client, .*found a dict"),
        ("[[], range(9)]", "client 0 has 0 samples: too few"),
    ],
)
def test_a_partitioner_from_elsewhere_is_checked(tmp_path: Path, returned: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"import numpy as np\ndef mine():\n    return lambda y, n_classes, n_clients, rng: {returned}\n"
    )
    with pytest.raises(DataError, match=message):
        federate(toy(), n_clients=2, partitioner=f"{file}:mine", seed=0)


# --- the official test set as it is


def with_official(sizes: list[int]) -> Task:
    """Make natural clients of which every fourth sample is in the official test set."""
    task = natural(sizes)
    return replace(task, official_test=np.arange(sum(sizes)) % 4 == 0)


def test_natural_clients_are_tested_on_their_part_of_the_official_test_set() -> None:
    task = with_official([20, 41])
    data = federate(task, n_clients=2, division=Division(pool="official", fractions=(0.9, 0.1, 0.0)), seed=0)
    assert data.test.rows(0).tolist() == [0, 4, 8, 12, 16]
    assert data.test.rows(1).tolist() == list(range(20, 61, 4))
    for client, held in enumerate(task.natural or ()):
        learned = [*data.train.rows(client).tolist(), *data.valid.rows(client).tolist()]
        assert sorted(learned) == [row for row in held.tolist() if row % 4]
    assert data.valid.sizes.tolist() == [2, 3]


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(1, 8), seed=st.integers(0, 2**40))
def test_others_are_tested_on_the_labels_that_they_learn(clients: int, seed: int) -> None:
    task = toy(1200, official=400)
    options = {"alpha": 1.0, "min_samples": 20}
    data = federate(
        task,
        n_clients=clients,
        partitioner="dirichlet",
        options=options,
        division=Division(pool="official", fractions=(1.0, 0.0, 0.0)),
        seed=seed,
    )
    np.testing.assert_array_equal(np.sort(data.test.indices), np.flatnonzero(task.official_test))
    np.testing.assert_array_equal(np.sort(data.train.indices), np.flatnonzero(~task.official_test))
    held, tested = (
        np.array([np.bincount(task.y[split.rows(k)], minlength=4) for k in range(clients)])
        for split in (data.train, data.test)
    )
    np.testing.assert_allclose(tested, held * tested.sum(axis=0) / held.sum(axis=0), atol=1)


def test_a_client_of_one_class_is_tested_on_that_class() -> None:
    task = replace(toy(400), y=np.arange(400) % 4)
    options = {"classes": 1, "assignment": "blocks"}
    data = federate(
        task,
        n_clients=4,
        partitioner="pathological",
        options=options,
        division=Division(pool="official", fractions=(1.0, 0.0, 0.0)),
        seed=0,
    )
    assert [set(task.y[data.test.rows(k)].tolist()) for k in range(4)] == [{0}, {1}, {2}, {3}]
    assert data.test.sizes.tolist() == [25] * 4


def test_a_client_without_official_test_samples_is_named() -> None:
    task = replace(toy(400), official_test=np.arange(400) >= 397)
    with pytest.raises(DataError, match=r"client \d gets no sample of the official test set of task 'toy'"):
        federate(
            task,
            n_clients=5,
            partitioner="iid",
            division=Division(pool="official", fractions=(1.0, 0.0, 0.0)),
            seed=0,
        )


def test_rows_can_be_cut_in_the_order_of_the_partitioner() -> None:
    task = replace(toy(400, official=0), y=np.repeat(np.arange(4), 100))
    options = {"shards_per_client": 5}
    data = federate(
        task, n_clients=4, partitioner="shards", options=options, division=Division(shuffle=False), seed=1
    )
    partition = plugins.build("partitioner", "shards", options)
    for client, held in enumerate(partition(task.y, 4, 4, rng(1, "partition"))):
        assert rows(data, client) == [held[:80].tolist(), held[80:90].tolist(), held[90:].tolist()]
