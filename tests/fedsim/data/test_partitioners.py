from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim import plugins
from fedsim.common.errors import ConfigError, DataError
from fedsim.common.rng import rng
from fedsim.data.federated_data import Indices
from fedsim.data.label_shares import apportion

quick = settings(max_examples=60, deadline=None)
ALL: dict[str, dict[str, Any]] = {
    "iid": {},
    "iid-lognormal": {"sizes": "lognormal", "sigma": 2.0},
    "shards": {"shards_per_client": 3},
    "pathological": {"classes": 2},
    "pathological-blocks": {"classes": 2, "assignment": "blocks"},
    "pathological-unbalanced": {"classes": 3, "unbalanced": True},
    "dirichlet": {"alpha": 0.5, "min_samples": 2},
}


def divide(name: str, options: dict[str, Any], y: Indices, clients: int, seed: int = 0) -> list[Indices]:
    partition = plugins.build("partitioner", name.partition("-")[0], options)
    parts: list[Indices] = partition(y, int(y.max()) + 1, clients, rng(seed, "partition"))
    return parts


def assert_division(parts: list[Indices], n: int, clients: int) -> None:
    """Each of n samples is used exactly once and no client is empty."""
    assert len(parts) == clients
    assert all(len(p) for p in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


def labels(n: int, classes: int, seed: int = 0) -> Indices:
    return rng(seed, "labels").integers(classes, size=n)


def test_every_partitioner_is_covered_here() -> None:
    """Whole classes fix the number of clients, so they have tests of their own."""
    assert {name.partition("-")[0] for name in ALL} | {"whole_classes"} == set(plugins.names("partitioner"))


@pytest.mark.parametrize("name", ALL)
@quick
@given(clients=st.integers(2, 12), seed=st.integers(0, 2**40))
def test_a_division_uses_each_sample_once(name: str, clients: int, seed: int) -> None:
    y = labels(600, 5, seed)
    assert_division(divide(name, ALL[name], y, max(clients, 3), seed), 600, max(clients, 3))


@pytest.mark.parametrize("name", ALL)
def test_equal_seeds_divide_equally_and_leave_the_labels_alone(name: str) -> None:
    y = labels(600, 5)
    before = y.copy()
    first, repeated = (divide(name, ALL[name], y, 8, seed=3) for _ in range(2))
    for a, b in zip(first, repeated, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == np.int64
    np.testing.assert_array_equal(y, before)


@pytest.mark.parametrize("name", [n for n in ALL if n != "pathological-blocks"])
def test_different_seeds_divide_differently(name: str) -> None:
    y = labels(600, 5)
    one, other = (divide(name, ALL[name], y, 8, seed=seed) for seed in (0, 1))
    assert any(not np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(one, other, strict=True))


@quick
@given(st.data())
def test_pathological_gives_exactly_c_classes_whenever_it_can(data: st.DataObject) -> None:
    n_classes = data.draw(st.integers(1, 12), label="n_classes")
    c = data.draw(st.integers(1, n_classes), label="c")
    clients = data.draw(st.integers(-(-n_classes // c), 40), label="clients")
    options = {
        "classes": c,
        "assignment": data.draw(st.sampled_from(["random", "blocks"])),
        "unbalanced": data.draw(st.booleans()),
    }
    y = rng(1, "order").permutation(np.repeat(np.arange(n_classes), 45))
    parts = divide("pathological", options, y, clients, seed=data.draw(st.integers(0, 99)))
    assert_division(parts, len(y), clients)
    assert [len(np.unique(y[p])) for p in parts] == [c] * clients
    holders = np.array([sum(label in y[p] for p in parts) for label in range(n_classes)])
    assert holders.max() - holders.min() <= 1
    assert holders.sum() == clients * c


def test_pathological_blocks_is_the_authors_rule_where_it_divides() -> None:
    y = np.tile(np.arange(10), 103)
    parts = divide("pathological", {"classes": 2, "assignment": "blocks"}, y, 20)
    assert [np.unique(y[p]).tolist() for p in parts] == [[2 * (k // 4), 2 * (k // 4) + 1] for k in range(20)]
    # class 0 is at rows 0, 10, 20, ...: four slices of 25, and the remainder of 3 goes to the last
    np.testing.assert_array_equal(parts[0][y[parts[0]] == 0], np.arange(25) * 10)
    assert [int((y[parts[k]] == 0).sum()) for k in range(4)] == [25, 25, 25, 28]


def test_pathological_balances_slices_by_default() -> None:
    y = np.repeat(np.arange(10), 100)
    even = [len(p) for p in divide("pathological", {}, y, 30)]
    uneven = [len(p) for p in divide("pathological", {"unbalanced": True}, y, 30)]
    assert max(even) - min(even) <= 2
    assert np.std(uneven) > 3 * np.std(even)


@pytest.mark.parametrize(
    ("options", "clients", "message"),
    [
        ({"classes": 6}, 4, r"cannot give 6 classes .* have 5 classes"),
        ({"classes": 1}, 3, r"hold 3 of the 5 classes; use at least 5 clients or 2 classes per client"),
        ({"classes": 5}, 30, r"class 0 has 20 samples for the 30 clients"),
    ],
)
def test_pathological_refuses_impossible_options(options: dict[str, Any], clients: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        divide("pathological", options, np.repeat(np.arange(5), 20), clients)


def test_pathological_counts_only_classes_that_occur() -> None:
    y = np.repeat(np.array([1, 4, 7]), 30)
    parts = divide("pathological", {"classes": 3}, y, 5)
    assert all(set(y[p]) == {1, 4, 7} for p in parts)


@quick
@given(groups=st.lists(st.integers(1, 4), min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_whole_classes_go_to_one_client_each(groups: list[int], seed: int) -> None:
    classes = sum(groups)
    y = np.concatenate([np.arange(classes), labels(100, classes, seed)])
    parts = divide("whole_classes", {"groups": groups}, y, len(groups))
    assert_division(parts, len(y), len(groups))
    ends = np.cumsum([0, *groups])
    for part, a, b in zip(parts, ends, ends[1:], strict=False):
        assert set(y[part]) == set(range(a, b))
        np.testing.assert_array_equal(part, part[np.lexsort((part, y[part]))])


def test_whole_classes_are_one_each_unless_grouped() -> None:
    """FedMDFG: one class for each of 10 clients, or 1, 2, 2, 2 and 3 classes for 5."""
    y = np.tile(np.arange(10), 30)
    assert [set(y[p]) for p in divide("whole_classes", {}, y, 10)] == [{k} for k in range(10)]
    sizes = [len(p) for p in divide("whole_classes", {"groups": [1, 2, 2, 2, 3]}, y, 5)]
    assert sizes == [30, 60, 60, 60, 90]


@pytest.mark.parametrize(
    ("options", "clients", "message"),
    [
        ({}, 4, r"cannot give 5 whole classes to 4 clients in groups of \[1, 1, 1, 1\]"),
        ({"groups": [2, 3]}, 3, r"to 3 clients in groups of \[2, 3\]: expected one group for each client"),
        ({"groups": [2, 2]}, 2, "groups that add up to the classes"),
    ],
)
def test_whole_classes_refuse_impossible_options(options: dict[str, Any], clients: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        divide("whole_classes", options, np.repeat(np.arange(5), 20), clients)


@quick
@given(n=st.integers(1, 300), clients=st.integers(1, 20), per_client=st.integers(1, 4))
def test_shards_are_runs_of_the_label_order_of_equal_size(n: int, clients: int, per_client: int) -> None:
    y = labels(n, 4)
    n_shards = clients * per_client
    if n < n_shards:
        with pytest.raises(DataError, match=f"{n} samples are too few for {n_shards} shards"):
            divide("shards", {"shards_per_client": per_client}, y, clients)
        return
    parts = divide("shards", {"shards_per_client": per_client}, y, clients)
    assert_division(parts, n, clients)
    rank = np.empty(n, dtype=np.int64)
    rank[np.lexsort((np.arange(n), y))] = np.arange(n)
    breaks = [int((np.diff(rank[p]) != 1).sum()) for p in parts]
    assert max(breaks) <= per_client - 1
    assert {len(p) // per_client for p in parts} <= {n // n_shards, n // n_shards + 1}


def test_shards_have_the_sizes_of_the_paper() -> None:
    """FedFV on MNIST: 60,000 samples in 400 shards of 150, two for each of 200 clients."""
    parts = divide("shards", {}, labels(60_000, 10), 200)
    assert {len(p) for p in parts} == {300}


def test_iid_sizes() -> None:
    y = labels(1003, 3)
    assert sorted({len(p) for p in divide("iid", {}, y, 10)}) == [100, 101]
    skewed = [len(p) for p in divide("iid", {"sizes": "lognormal", "sigma": 1.5}, y, 10)]
    assert max(skewed) > 3 * min(skewed)
    with pytest.raises(DataError, match="3 samples are too few for 4 clients"):
        divide("iid", {}, labels(3, 3), 4)


@quick
@given(shares=st.lists(st.floats(0.01, 100), min_size=1, max_size=20), spare=st.integers(0, 500))
def test_apportioned_sizes_follow_the_shares(shares: list[float], spare: int) -> None:
    total = len(shares) + spare
    sizes = apportion(total, np.array(shares))
    assert sizes.sum() == total
    np.testing.assert_array_less(np.abs(sizes - 1 - spare * np.array(shares) / sum(shares)), 1 + 1e-9)


@quick
@given(alpha=st.floats(1e-3, 1e3), seed=st.integers(0, 2**32), least=st.integers(1, 6))
def test_dirichlet_holds_its_minimum_or_says_why(alpha: float, seed: int, least: int) -> None:
    y = labels(400, 6, seed)
    options = {"alpha": alpha, "min_samples": least, "tries": 50}
    try:
        parts = divide("dirichlet", options, y, 5, seed)
    except DataError as error:
        assert f"min_samples = {least} (at best" in str(error)  # noqa: PT017
        return
    assert_division(parts, 400, 5)
    assert min(map(len, parts)) >= least


def test_dirichlet_shares_match_theory() -> None:
    """The first class meets no full client: shares have mean 1/K, variance (1/K)(1 - 1/K)/(K alpha + 1)."""
    y = np.repeat(np.arange(4), 1000)
    n_clients, alpha = 5, 1.0
    options = {"alpha": alpha, "min_samples": 1}
    shares = np.array(
        [
            [np.mean(y[p] == 0) * len(p) / 1000 for p in divide("dirichlet", options, y, n_clients, s)]
            for s in range(400)
        ]
    )
    mean = 1 / n_clients
    np.testing.assert_allclose(shares.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(shares.var(), mean * (1 - mean) / (n_clients * alpha + 1), rtol=0.15)


def test_dirichlet_gives_full_clients_no_more() -> None:
    """Whoever holds an equal share before a class gets nothing of it, so only the last class overshoots."""
    y = np.repeat(np.arange(10), 100)
    for seed in range(20):
        for p in divide("dirichlet", {"alpha": 0.1, "min_samples": 1}, y, 8, seed):
            per_class = np.bincount(y[p], minlength=10)
            last = np.flatnonzero(per_class)[-1]
            assert per_class[:last].sum() < 1000 / 8


def test_dirichlet_is_more_skewed_for_smaller_alpha() -> None:
    y = labels(5000, 10)

    def classes_held(alpha: float) -> float:
        parts = divide("dirichlet", {"alpha": alpha, "min_samples": 1}, y, 10)
        return float(np.mean([np.sum(np.bincount(y[p]) > 10) for p in parts]))

    assert classes_held(0.05) < classes_held(0.5) < classes_held(50)


def test_dirichlet_defaults_to_as_many_samples_as_classes() -> None:
    y = labels(2000, 10)
    assert min(len(p) for p in divide("dirichlet", {}, y, 20)) >= 10
    with pytest.raises(DataError, match=r"95 samples cannot give 10 clients min_samples = 10 each"):
        divide("dirichlet", {}, np.tile(np.arange(10), 10)[:95], 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pathological", {"classes": 0}, "option 'classes'.*greater than or equal to 1, found 0"),
        ("dirichlet", {"alpha": -1.0}, "option 'alpha'.*greater than 0"),
        ("dirichlet", {"alhpa": 1.0}, "no option 'alhpa'; did you mean 'alpha'"),
        ("iid", {"sizes": "zipf"}, "option 'sizes'"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plugins.build("partitioner", name, options)
