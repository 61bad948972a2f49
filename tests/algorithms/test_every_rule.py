"""What every rule must do, alone and inside every wrapper; both are found by their folders."""

from __future__ import annotations

import copy
import dataclasses
import pkgutil
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsim import algorithms
from fedsim.common.errors import ConfigError
from fedsim.plugins import build, names, summary
from fedsim.server.combine import Combined
from fedsim.server.rule import Algorithm, State
from fedsim.server.rule_factory import build_rule
from rule_calls import combine
from stacks import assert_same, distinct_losses, updates

BUILT = {name: build_rule(name, {}, lr=0.1) for name in names("rule")}
RULES = [name for name, built in BUILT.items() if not built.client and built.start == "current"]
HALVES = [name for name, built in BUILT.items() if built.client]
"""Rules that are one half of a method, whose other half is a client method; runs test them."""
WRAPPERS = names("wrapper")
SIZES = [4, 7, 9]
MODULES = [
    import_module(found.name) for found in pkgutil.walk_packages(algorithms.__path__, "fedsim.algorithms.")
]
MADE_OF = [
    f"{module.__name__}.{name}"
    for module in MODULES
    for name, value in vars(module).items()
    if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
]


def given(m: int, remembered: int = 0, seed: int = 0) -> dict[str, Any]:
    n = m + remembered
    return {
        "updates": updates(seed, n, sum(SIZES)),
        "losses": distinct_losses(seed, n),
        "n_samples": np.arange(10, 10 + n),
        "clients": np.arange(100, 100 + n),
        "ages": np.array([0] * m + [1 + i % 2 for i in range(remembered)]),
        "blocks": SIZES,
        "participations": np.full(n, 3),
        "staleness": np.arange(n) % 4,
        "losses_after": distinct_losses(seed + 1, n),
        "accuracies_after": np.linspace(0.2, 0.9, n),
        "local_steps": 1 + np.arange(n) % 3,
        "n_clients": 200,
        "total_samples": 4000,
    }


def make(rule: str, *wrappers: str) -> Algorithm:
    """Build a rule with its own defaults for clients of learning rate 0.1."""
    return build_rule(rule, {}, [{"name": name} for name in wrappers], lr=0.1)


def steps(
    rule: str | Algorithm,
    inputs: dict[str, Any],
    state: State | None = None,
    vectors: Any = None,
    first: int = 5,
) -> list[Combined[Any]]:
    """Take three steps with the same updates, passing state and vectors on."""
    results = []
    algorithm = make(rule) if isinstance(rule, str) else rule
    for step in range(first, first + 3):
        results.append(combine(algorithm, **inputs, state=state, vectors=vectors, step=step))
        state, vectors = results[-1].state, results[-1].vectors
    return results


def reloaded(state: State) -> State:
    """Pass a state through arrays and numbers, as a checkpoint does."""
    loaded: State = {}
    for name, value in state.items():
        assert isinstance(name, str)
        assert isinstance(value, (bool, int, float, np.ndarray, np.generic)), (
            f"{name} is a {type(value).__name__}"
        )
        array = np.array(value)
        assert array.dtype != object
        loaded[name] = array if isinstance(value, np.ndarray) else array.item()
    return loaded


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("half", HALVES)
def test_one_half_of_a_method_needs_the_simulator(half: str) -> None:
    with pytest.raises(
        ConfigError, match=r"one half of a method whose other half is the client method '\w+'"
    ):
        combine(make(half), **given(3))


def test_rule_is_documented_and_made_without_options(rule: str) -> None:
    assert isinstance(make(rule), Algorithm)
    assert len(summary("rule", rule)) > 20


@pytest.mark.parametrize(("m", "remembered"), [(1, 0), (2, 0), (9, 0), (1, 4), (5, 3)])
def test_result_has_the_right_shape_and_is_finite(rule: str, m: int, remembered: int) -> None:
    inputs = given(m, remembered)
    for result in steps(rule, inputs):
        assert result.direction.shape == (sum(SIZES),)
        assert np.isfinite(result.direction).all()
        assert result.weights.shape in {(1, m + remembered), (len(SIZES), m + remembered)}
        per_column = np.repeat(np.broadcast_to(result.weights, (3, m + remembered)), SIZES, axis=0).T
        weighted = per_column * inputs["updates"]
        if (columns := make(rule).columns) is not None:
            used = np.sort(weighted[result.weights[0] != 0], axis=0)
            assert_same(result.direction, columns(torch.from_numpy(used)).numpy(), 1e-12)
        elif make(rule).then is None:
            assert_same(result.direction, weighted.sum(axis=0), 1e-12)
        assert all(isinstance(v, float) for v in result.diagnostics.values())


def test_a_rule_that_weighs_by_losses_says_so(rule: str) -> None:
    found = []
    for losses in (distinct_losses(0, 8), 3 * distinct_losses(0, 8)[::-1]):
        results = steps(rule, given(6, 2) | {"losses": losses})
        found.append([result.weights.tolist() for result in results])
    assert make(rule).needs.losses is (found[0] != found[1])


@pytest.mark.parametrize("path", MADE_OF)
def test_what_plug_ins_are_made_of_cannot_be_changed(path: str) -> None:
    """It holds settings; what goes on from step to step is a state, which a checkpoint has."""
    module, _, name = path.rpartition(".")
    kind = getattr(import_module(module), name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(object.__new__(kind), dataclasses.fields(kind)[0].name, None)


def test_equal_calls_give_equal_bytes(rule: str) -> None:
    one, two = steps(rule, given(6, 2)), steps(rule, given(6, 2))
    assert [r.direction.tobytes() for r in one] == [r.direction.tobytes() for r in two]


def test_inputs_and_state_are_left_unchanged(rule: str) -> None:
    inputs = given(6, 2)
    last = steps(rule, inputs)[-1]
    kept = (inputs, last.state, {name: vector.numpy() for name, vector in last.vectors.items()})
    before = copy.deepcopy(kept)
    steps(rule, inputs, last.state, last.vectors)
    np.testing.assert_equal(kept, before)


def test_state_survives_saving_and_loading(rule: str) -> None:
    inputs = given(5, 1)
    last = steps(rule, inputs)[-1]
    kept = steps(rule, inputs, last.state, last.vectors, 8)
    loaded = steps(rule, inputs, reloaded(last.state), {n: v.clone() for n, v in last.vectors.items()}, 8)
    assert [r.direction.tobytes() for r in kept] == [r.direction.tobytes() for r in loaded]


def test_order_of_the_rows_does_not_matter(rule: str) -> None:
    inputs = given(6, 2)
    order = np.random.default_rng(1).permutation(8)
    by_row = {k: v[order] for k, v in inputs.items() if isinstance(v, np.ndarray)}
    plain, shuffled = steps(rule, inputs), steps(rule, {**inputs, **by_row})
    for one, two in zip(plain, shuffled, strict=True):
        assert_same(two.direction, one.direction, 1e-8)
        assert_same(two.weights, one.weights[:, order], 1e-8)


@pytest.mark.parametrize("rule", [name for name in RULES if make(name).columns is not None])
@pytest.mark.parametrize("wrappers", [(), ("with_absent",), ("discounted", "with_absent")], ids=str)
def test_order_of_the_rows_changes_no_bit_of_a_rule_of_columns(rule: str, wrappers: tuple[str, ...]) -> None:
    inputs, order = given(6, 2), np.random.default_rng(1).permutation(8)
    inputs["updates"][:3, :5] = np.array([0.0, -0.0, 0.0])[:, None]
    by_row = {k: v[order] for k, v in inputs.items() if isinstance(v, np.ndarray)}
    algorithm = make(rule, *wrappers)
    plain, shuffled = steps(algorithm, inputs), steps(algorithm, {**inputs, **by_row})
    assert [r.direction.tobytes() for r in plain] == [r.direction.tobytes() for r in shuffled]


@pytest.mark.parametrize("remembered", [0, 2])
def test_float32_rows_give_nearly_the_same_direction(rule: str, remembered: int) -> None:
    inputs = given(4, remembered)
    small: NDArray[np.float32] = inputs["updates"].astype(np.float32)
    result = combine(make(rule), **{**inputs, "updates": torch.from_numpy(small)}, step=5)
    assert isinstance(result.direction, torch.Tensor)
    assert result.direction.dtype == torch.float32
    assert_same(result.direction.numpy(), combine(make(rule), **inputs, step=5).direction, 1e-3)


def test_unknown_options_are_refused_with_the_closest_name(rule: str) -> None:
    with pytest.raises(ConfigError, match=f"rule '{rule}' has no option 'alhpa'"):
        build("rule", rule, {"alhpa": 1})
    with pytest.raises(ConfigError, match=f"there is no rule '{rule}x'; did you mean '{rule}'"):
        build("rule", f"{rule}x", {})


def refusal(rule: str, wrapper: str) -> str | None:
    """Return why this rule cannot be wrapped so, as the documentation says it."""
    algorithm = make(rule)
    if algorithm.columns is not None and wrapper in ("layerwise", "external"):
        return "column by column"
    reasons = {
        "layerwise": {"none": "no inner products", "blocks": "layer by layer already"}.get(
            algorithm.needs.gram
        ),
        "external": "remembers absent clients" if algorithm.needs.memory else None,
        "with_absent": "remembers absent clients" if algorithm.needs.memory else None,
        "discounted": "the same length" if algorithm.needs.scale_free else None,
        "clipped": "the same length" if algorithm.needs.scale_free else None,
        "server_opt": "momentum or optimiser already" if algorithm.then else None,
    }
    return reasons[wrapper]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_rule_keeps_the_contract_or_is_refused_with_the_reason(rule: str, wrapper: str) -> None:
    reason = refusal(rule, wrapper)
    if reason is not None:
        with pytest.raises(ConfigError, match=f"wrapper '{wrapper}' of rule '{rule}': .*{reason}"):
            make(rule, wrapper)
        return
    algorithm, inputs = make(rule, wrapper), given(5, 3)
    before = copy.deepcopy(inputs)
    results = steps(algorithm, inputs)
    assert all(np.isfinite(result.direction).all() for result in results)
    np.testing.assert_equal(inputs, before)
    first = results[0]
    again = steps(algorithm, inputs, reloaded(first.state), first.vectors, 6)
    assert [r.direction.tobytes() for r in again[:2]] == [r.direction.tobytes() for r in results[1:]]
    order = np.random.default_rng(1).permutation(8)
    by_row = {k: v[order] for k, v in inputs.items() if isinstance(v, np.ndarray)}
    shuffled = steps(algorithm, {**inputs, **by_row})
    for one, two in zip(results, shuffled, strict=True):
        assert_same(two.direction, one.direction, 1e-7)


@pytest.mark.parametrize("outer", WRAPPERS)
@pytest.mark.parametrize("inner", WRAPPERS)
def test_wrappers_nest_or_are_refused(inner: str, outer: str) -> None:
    inputs = given(4, 2)
    try:
        algorithm = build_rule("fedfv", {"tau": 0}, [{"name": inner}, {"name": outer}])
    except ConfigError as error:
        assert f"wrapper '{outer}' of rule 'fedfv'" in str(error)  # noqa: PT017 - either outcome is fine
        return
    assert all(np.isfinite(result.direction).all() for result in steps(algorithm, inputs))
    alone = steps(algorithm, given(1, 0))
    assert all(np.isfinite(result.direction).all() for result in alone)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_are_documented_and_check_their_options(wrapper: str) -> None:
    assert len(summary("wrapper", wrapper)) > 20
    with pytest.raises(ConfigError, match=f"wrapper '{wrapper}' has no option 'alhpa'"):
        build_rule("fedavg", {}, [{"name": wrapper, "alhpa": 1}])
    with pytest.raises(ConfigError, match=f"there is no wrapper '{wrapper}x'; did you mean '{wrapper}'"):
        build_rule("fedavg", {}, [{"name": f"{wrapper}x"}])
