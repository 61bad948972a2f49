"""What every selector must do; all are found by their folder."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError, RunError
from fedsim.common.units import US
from fedsim.engine.selector import Choice, Need, Selector, State, View, checked, checked_choice, proposed
from fedsim.plugins import build, names, summary
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import World
from views import NEEDED, choose, lookup, make, pairs, stated, used_view, view

RECORDED = {"replayed"}  # bound to the instants and candidates of one run: any other view is an error
SELECTORS = [name for name in names("selector") if name not in RECORDED]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "availability_forecast": [{"prefer": "leaving", "ahead": "2h"}],
    "biased": [{"by": "label", "labels": [1, 3]}, {"by": "region", "values": ["west"]}, {"by": "speed"}],
    "divfl": [{"share": 0.3}, {"distance": "squared"}],
    "f3ast": [{"b": 0.3, "initial": "samples"}, {"initial": "equal"}],
    "fedcs": [{"deadline": "5s", "upload_share": 0.5}],
    "longest_absent": [{"since": "dispatched"}],
    "loss_based": [{"variant": "afl"}],
    "oort": [
        {"variant": "fedscale"},
        {"fairness": 0.5, "barred_after": 2},
        {"exploration": 0.0, "exploration_floor": 0.0, "pacer": 1},
    ],
    "optimal_sampling": [{"by": "losses", "weights": "uniform"}, {"floor": 0.0}],
    "power_of_choice": [{"losses": "reported", "d": 4}],
    "quota": [{"group": "label", "floor": 1.0}, {"group": "region"}],
    "refl": [{"forecast": "trace"}, {"variant": "released", "forecast": "trace"}, {"adaptive": True}],
    "tifl": [{"policy": "static"}, {"tiers": 2, "credits": 1, "interval": 1, "t_max": "40s"}],
    "ucb_cs": [{"gamma": 1.0}],
    "weighted": [{"replacement": True}],
}
CASES = [(name, options) for name in SELECTORS for options in ({}, *OPTIONS.get(name, []))]
LOCAL = [  # what is known of clients that are not there makes no difference to these
    "uniform",
    "weighted",
    "round_robin",
    "longest_absent",
    "fastest_first",
    "slowest_first",
    "power_of_choice",
    "loss_based",
    "fedcs",
    "biased",
    "optimal_sampling",
    "f3ast",
]
RATES = ["f3ast"]  # their docstrings say that they state rates in the long run
QUICK = settings(max_examples=15, deadline=None)


def world(n: int) -> World:
    """A world whose clients come and go with periods of their own, for a day that repeats."""
    hour = 3600 * US
    rows = [(c, s * hour, (s + 1 + c % 3) * hour) for c in range(n) for s in range(c % 5, 20, 4 + c % 3)]
    client, start, end = zip(*rows, strict=True)
    return World(Trace.of(client, start, end, "online", clients=n, horizon_us=24 * hour, after_end="repeat"))


def shown(selector: Selector, seen: View) -> View:
    return replace(seen, world=world(seen.n_clients)) if selector.clairvoyant else seen


def reloaded(state: State) -> State:
    """Pass a state through a JSON file and an npz file, as a checkpoint may."""
    arrays = {n: v for n, v in state.items() if isinstance(v, np.ndarray)}
    plain = {n: v for n, v in state.items() if n not in arrays}
    assert all(isinstance(v, (bool, int, float, str)) for v in plain.values()), plain
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        return {**json.loads(json.dumps(plain)), **{n: loaded[n] for n in loaded.files}}


def arrays(seen: View) -> dict[str, Any]:
    """Return all arrays that a view shows."""
    columns = {f.name: getattr(seen, f.name) for f in fields(seen)}
    columns |= {f.name: getattr(seen.facts, f.name) for f in fields(seen.facts)} | dict(seen.facts.about)
    return {name: value for name, value in columns.items() if isinstance(value, np.ndarray)}


def chosen_by(selector: Selector, seen: View) -> list[int]:
    return choose(selector, shown(selector, seen), 4)[0]


@st.composite
def situations(draw: st.DrawFn) -> tuple[View, int]:
    n = draw(st.integers(8, 14))
    candidates = draw(st.sets(st.integers(0, n - 1), min_size=1))
    step = draw(st.sampled_from([0, 1, 7, 45]))
    seen = used_view(n, step, draw(st.integers(0, 99)), candidates=np.array(sorted(candidates)))
    if step == 0:
        seen = view(n, candidates)
    return seen, draw(st.integers(1, len(candidates)))


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())])
)
def selector(request: pytest.FixtureRequest) -> Selector:
    name, options = request.param
    return make(name, **options)


@pytest.mark.parametrize("name", SELECTORS)
def test_selector_is_documented_and_checks_its_options(name: str) -> None:
    assert len(summary("selector", name)) > 20
    assert isinstance(make(name), Selector)
    with pytest.raises(ConfigError, match=f"selector '{name}' has no option 'alhpa'"):
        build("selector", name, NEEDED.get(name, {}) | {"alhpa": 1})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("weighted", {"replacement": "perhaps"}, "replacement"),
        ("longest_absent", {"since": "ever"}, "since"),
        ("power_of_choice", {"d": 0}, "greater than or equal to 1, found 0"),
        ("loss_based", {"alpha1": 1.5}, "less than or equal to 1, found 1.5"),
        ("oort", {"variant": "plato"}, "'paper' or 'fedscale', found 'plato'"),
        ("oort", {"exploration": 2}, "less than or equal to 1"),
        ("oort", {"preferred": "soon"}, "selector 'oort', option 'preferred'"),
        ("refl", {"a": 1.0}, "less than 1"),
        ("refl", {"initial": "0s"}, "selector 'refl', option 'initial': expected at least 1 us"),
        ("tifl", {"tiers": 0}, "greater than or equal to 1"),
        ("tifl", {"tiers": 2, "odds": [1.0]}, "option 'odds': expected 2 numbers"),
        ("tifl", {"tiers": 2, "odds": [0.0, 0.0]}, "not all 0"),
        ("fedcs", {"deadline": "late"}, "selector 'fedcs', option 'deadline'"),
        ("availability_forecast", {"ahead": "x"}, "option 'ahead'"),
        ("quota", {"floor": 1.1}, "less than or equal to 1"),
        ("biased", {"strength": -0.1}, "greater than or equal to 0"),
        ("biased", {"sign": 0}, "sign"),
        ("biased", {"by": "label"}, "needs the option 'labels'"),
        ("fixed", {"clients": [-1]}, "clients"),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("selector", name, options)


@given(situation=situations())
@QUICK
def test_contract(selector: Selector, situation: tuple[View, int]) -> None:
    """At most k distinct candidates; equal calls agree; nothing given is changed; the state is plain data."""
    seen, k = shown(selector, situation[0]), situation[1]
    chosen, after = choose(selector, seen, k)
    kept = copy.deepcopy((after, arrays(seen)))
    again, same = choose(selector, seen, k)
    assert again == chosen
    np.testing.assert_equal(same, after)
    later = replace(seen, step=seen.step + 1, now_us=seen.now_us + 900 * US, step_us=seen.step_us + 900 * US)
    first = choose(selector, later, k, 1, after)
    np.testing.assert_equal(choose(selector, later, k, 1, reloaded(after)), first)
    np.testing.assert_equal((after, arrays(seen)), kept)


def test_one_client_alone_is_chosen(selector: Selector) -> None:
    chosen, _ = choose(selector, shown(selector, view(8, [2])), 1)
    assert chosen == [2]


@pytest.mark.parametrize("name", [n for n in SELECTORS if n not in NEEDED])
def test_a_federation_of_one_is_no_exception(name: str) -> None:
    state: State | None = None
    for seen in (view(1), used_view(1, 1), used_view(1, 45)):
        chosen, state = choose(name, seen, 1, 0, state)
        assert chosen == [0]


def test_only_candidates_and_clients_heard_of_are_asked_for(selector: Selector) -> None:
    calls: list[list[int]] = []
    seen = used_view(10, candidates=np.array([1, 4, 6, 9]))
    seen = replace(
        seen, expected_us=lookup(np.full(10, US), calls), ask_losses=lookup(np.arange(10) / 3, calls)
    )
    choose(selector, shown(selector, seen), 3)
    assert {c for call in calls for c in call} <= {1, 4, 6, 9}


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("seed", range(5))
def test_clients_that_are_not_there_make_no_difference(name: str, seed: int) -> None:
    there = np.array([1, 4, 6, 9, 10])
    seen, other = used_view(12, candidates=there), used_view(12, seed=1, candidates=there)
    changed: dict[str, Any] = {}
    for field in fields(View):
        mine, theirs = getattr(seen, field.name), getattr(other, field.name)
        if isinstance(mine, np.ndarray) and mine.shape == (12,):
            changed[field.name] = np.where(np.isin(np.arange(12), there), mine, theirs)
    np.testing.assert_equal(choose(name, replace(seen, **changed), 3, seed), choose(name, seen, 3, seed))


def test_only_the_declared_see_the_future() -> None:
    clairvoyant = {(n, str(o)) for n, o in CASES if make(n, **o).clairvoyant}
    assert clairvoyant == {("refl", str(o)) for o in OPTIONS["refl"] if o.get("forecast") == "trace"}


def test_only_the_declared_use_labels() -> None:
    for name, options in CASES:
        selector, seen = make(name, **options), used_view(10)
        blind = replace(seen, facts=replace(seen.facts, label_counts=np.zeros((10, 4), dtype=np.int64)))
        same = chosen_by(selector, blind) == chosen_by(selector, seen)
        assert same or "labels" in selector.needs, name
    assert make("biased", by="label", labels=[0]).needs == {"labels"}
    assert make("quota", group="label").needs == {"labels"}


def test_only_the_declared_use_losses_and_accuracies() -> None:
    blank, no_pairs = np.full(10, np.nan), pairs(np.full((10, 10), np.nan))
    for name, options in CASES:
        selector, seen = make(name, **options), used_view(10)
        deaf = replace(
            seen,
            last_loss=blank,
            last_train_loss=blank,
            last_loss_rms=blank,
            last_batch_rms=blank,
        )
        without: dict[Need, View] = {
            "losses": deaf,
            "asked": replace(seen, ask_losses=lookup(blank)),
            "accuracy": replace(seen, accuracy=blank),
            "norms": replace(seen, update_norms=lookup(blank)),
            "updates": replace(seen, update_products=no_pairs),
        }
        for need, other in without.items():
            same = chosen_by(selector, other) == chosen_by(selector, seen)
            declared = need in selector.needs or (need == "norms" and "updates" in selector.needs)
            assert same or declared, (name, need)


def test_the_need_of_updates_has_an_effect() -> None:
    seen = used_view(10)
    blind = replace(
        seen, update_norms=lookup(np.full(10, np.nan)), update_products=pairs(np.full((10, 10), np.nan))
    )
    for name, options in CASES:
        if {"norms", "updates"} & (selector := make(name, **options)).needs:
            assert chosen_by(selector, blind) != chosen_by(selector, seen), name


# Inclusion probabilities


@pytest.mark.parametrize("step", [0, 7])
def test_a_stated_probability_is_how_often_the_client_is_chosen(selector: Selector, step: int) -> None:
    """From the same view and state, over many draws; what is not stated is NaN in each of them."""
    seen = shown(selector, used_view(12, 7, candidates=np.arange(1, 9)) if step else view(12, range(1, 9)))
    if step:  # some are alike: their ties are drawn
        alike = np.where(seen.last_duration_us < 0, -1, 30 * US * (1 + seen.last_duration_us // (45 * US)))
        seen = replace(seen, last_duration_us=alike, last_step=np.minimum(seen.last_step, 3))
    state = stated(selector, replace(seen, step=max(step - 1, 0)), 3)[1] if step else selector.start()
    said, count, sizes, draws = np.full((2, 12), np.nan), np.zeros(12), set[int](), 1500
    for seed in range(draws):
        choice, _ = stated(selector, seen, 3, seed, state)
        if np.isnan(choice.inclusion).all() or is_rate(selector):
            return
        count[choice.clients] += 1
        sizes.add(len(choice))
        for row, better in zip(said, (np.fmin, np.fmax), strict=True):
            row[choice.clients] = better(row[choice.clients], choice.inclusion)
    known = ~np.isnan(said[0])
    np.testing.assert_allclose(said[0][known], said[1][known], rtol=1e-9)
    error = np.sqrt(said[0] * (1 - said[0]) / draws)
    assert (abs(count / draws - said[0]) <= 5 * error + 1e-9)[known].all(), (count / draws, said[0])
    if (known == (count > 0)).all():
        assert said[0][known].sum() == pytest.approx(
            count.sum() / draws, rel=1e-9 if len(sizes) == 1 else 0.03
        )


def is_rate(selector: Selector) -> bool:
    return any(selector.select.__qualname__.startswith(f"{name}.") for name in RATES)


@pytest.mark.parametrize(
    ("inclusion", "message"),
    [
        ([0.5], r"each of its 2 clients, it stated float64 of shape \[1\]"),
        ([0.5, 0.0], "above 0 and at most 1 or NaN, it stated 0.0 for client 5"),
        ([1.5, 0.5], "it stated 1.5 for client 2"),
        ([True, True], "it stated bool of shape"),
    ],
)
def test_probabilities_that_are_none_are_refused(inclusion: list[Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        checked_choice(Choice(np.array([2, 5]), np.array(inclusion)), view(8, [2, 5]), 2)


def test_clients_without_a_choice_have_unknown_probabilities() -> None:
    seen = view(8, [2, 5])
    assert np.isnan(checked_choice(np.array([5, 2]), seen, 2).inclusion).all()
    one = checked_choice(Choice(np.array([5]), np.array([np.nan])), seen, 2)
    assert one.clients.tolist() == [5]
    assert np.isnan(one.inclusion).all()


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([[0, 4, -1]], r"clients in 0 to 4, it returned -1 to 4"),
        ([[0, 1, 5]], r"clients in 0 to 4, it returned 0 to 5"),
        ([[0.0, 1.0, 2.0]], r"an array of shape \[1, 3\], it returned float64 in shape \[1, 3\]"),
        ([0, 1, 2], r"an array of shape \[1, 3\], it returned int64 in shape \[3\]"),
    ],
)
def test_proposals_that_are_no_clients_are_refused(found: Any, message: str) -> None:
    numbers = np.full((1, 3), 0.5)
    made = Selector(
        lambda v, k, rng, state: (v.candidates, state), propose=lambda x, n: np.array([[0, n - 1, 2]])
    )
    assert proposed(made, numbers, 5).tolist() == [[0, 4, 2]]
    with pytest.raises(RunError, match=message):
        proposed(replace(made, propose=lambda x, n: np.array(found)), numbers, 5)


@pytest.mark.parametrize("client", [-1, 1, 3, 7, 9])
def test_a_client_alone_that_is_no_candidate_is_refused(client: int) -> None:
    with pytest.raises(
        RunError, match=rf"at most 1 distinct candidates of \[2, 5\], it returned \[{client}\]"
    ):
        checked(np.array([client]), view(8, [2, 5]), 1)


@pytest.mark.parametrize(
    ("n", "end"), [(20, r"19\], it"), (21, r"19\] and 1 more, it"), (45, r"19\] and 25 more, it")]
)
def test_of_many_candidates_twenty_are_written_down(n: int, end: str) -> None:
    with pytest.raises(RunError, match=end):
        checked(np.array([0, 0]), view(n), 2)
