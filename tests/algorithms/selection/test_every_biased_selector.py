"""Selectors that shape a sample on purpose: a floor under participation, and biases of known strength."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.engine.selector import View
from views import after_jobs, choose, lookup, make, shares, view

SIZES = np.array([10, 20, 30, 40])


# By floor


@pytest.mark.parametrize(
    ("group", "floor"), [("client", 0.9), ("client", 1.0), ("region", 0.8), ("region", 1.0)]
)
def test_quota_keeps_the_floor_at_all_times(group: str, floor: float) -> None:
    n = 12
    about = {"region": np.array(["a"] * 9 + ["b"] * 2 + ["c"])}
    group_of = np.arange(n) if group == "client" else np.array([0] * 9 + [1] * 2 + [2])
    n_groups = int(group_of.max()) + 1
    selector, state, draw = make("quota", group=group, floor=floor), {}, np.random.default_rng(5)
    seen = view(n, about=about)
    for _ in range(120):
        chosen, state = selector.select(seen, 2 if group == "client" else 1, draw, state)
        seen = after_jobs(seen, chosen)
        by_group = np.bincount(group_of, seen.dispatched, minlength=n_groups)
        assert (by_group >= floor / n_groups * seen.dispatched.sum() - 1 - 1e-9).all()


def test_quota_makes_up_for_an_absence() -> None:
    seen = view(4, dispatched=[10, 10, 0, 10])
    selector = make("quota", floor=1.0)
    for seed in range(5):
        assert choose(selector, seen, 2, seed)[0][0] == 2


def test_quota_counts_the_places_that_it_gives_at_once() -> None:
    seen = view(6, about={"region": np.array(["a"] * 4 + ["b"] * 2)})
    for seed in range(10):
        chosen = choose(make("quota", group="region", floor=1.0), seen, 4, seed)[0]
        assert sorted(c > 3 for c in chosen) == [False, False, True, True]


def test_quota_without_a_floor_is_uniform() -> None:
    seen = view(5, dispatched=[9, 0, 0, 0, 3])
    assert shares(make("quota", floor=0.0), seen, 2) == pytest.approx(np.full(5, 0.4), abs=0.03)


def test_quota_by_label_goes_by_the_most_frequent_one() -> None:
    counts = np.array([[5, 1], [6, 0], [9, 2], [0, 3]])
    seen = view(4, label_counts=counts, dispatched=[1, 1, 1, 0])
    assert choose(make("quota", group="label", floor=1.0), seen, 1)[0] == [3]


def test_quota_names_the_closest_column() -> None:
    with pytest.raises(ConfigError, match=r"knows no 'regoin' of its clients; did you mean 'region'\?"):
        choose(make("quota", group="regoin"), view(4), 1)
    with pytest.raises(ConfigError, match="knows no 'region' of its clients; it knows nothing about them"):
        choose(make("quota", group="region"), view(4, about={}), 1)


# By bias


BIASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "n_samples": ({}, [3, 2, 1, 0]),
    "speed": ({}, [1, 3, 0, 2]),
    "label": ({"labels": [1]}, [2, 0, 3, 1]),
    "age": ({}, [1, 2, 0, 3]),
}


def biased_view() -> View:
    return view(
        4,
        n_samples=SIZES,
        label_counts=np.array([[5, 5], [9, 1], [1, 9], [8, 2]]),
        about={"age": np.array([3.0, 8.0, 4.0, np.nan]), "region": np.array(["n", "s", "n", "w"])},
        expected_us=lookup(np.array([30, 10, 40, 20]) * US),
    )


@pytest.mark.parametrize("by", BIASES)
def test_full_bias_takes_the_preferred_alone(by: str) -> None:
    options, order = BIASES[by]
    assert choose(make("biased", by=by, strength=1.0, **options), biased_view(), 4)[0] == order
    last = [3] if by == "age" else []  # unknown comes last either way
    reverse = [c for c in reversed(order) if c not in last] + last
    assert choose(make("biased", by=by, strength=1.0, sign=-1, **options), biased_view(), 4)[0] == reverse


@pytest.mark.parametrize("by", BIASES)
@pytest.mark.parametrize("sign", [1, -1])
def test_no_bias_is_uniform(by: str, sign: int) -> None:
    selector = make("biased", by=by, strength=0.0, sign=sign, **BIASES[by][0])
    assert shares(selector, biased_view(), 2) == pytest.approx(np.full(4, 0.5), abs=0.03)


def test_some_bias_lies_between() -> None:
    """For one place: strength for the preferred, the rest of the chance is everybody's."""
    often = shares(make("biased", by="n_samples", strength=0.6), biased_view(), 1)
    assert often == pytest.approx([0.1, 0.1, 0.1, 0.7], abs=0.03)


def test_bias_by_words_names_the_preferred_ones() -> None:
    some, _ = choose(make("biased", by="region", values=["n"], strength=1.0), biased_view(), 2)
    assert sorted(some) == [0, 2]
    with pytest.raises(ConfigError, match="no client has one of \\['North'\\] as 'region'; found n"):
        choose(make("biased", by="region", values=["North"], strength=1.0), biased_view(), 2)
    with pytest.raises(ConfigError, match="'region' holds words"):
        choose(make("biased", by="region"), biased_view(), 4)
    with pytest.raises(ConfigError, match="expected labels below 2, found 7"):
        choose(make("biased", by="label", labels=[7]), biased_view(), 1)


def test_bias_by_numbers_holds_where_some_clients_have_none() -> None:
    """A column of whole numbers with gaps is one of floating-point numbers."""
    for cell in (np.array([0, 2, 1, 2]), np.array([0.0, 2.0, np.nan, 2.0])):
        some, _ = choose(
            make("biased", by="cell", values=[2], strength=1.0), view(4, about={"cell": cell}), 2
        )
        assert sorted(some) == [1, 3]
