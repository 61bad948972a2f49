"""What every rule must do; the rules are found by their folder."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from stacks import assert_same, distinct_losses, updates

from fedsim.combine import Combined, combine
from fedsim.errors import ConfigError
from fedsim.plugins import build, names, summary
from fedsim.stack import Algorithm, State

RULES = names("rule")
SIZES = [4, 7, 9]


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
        "n_clients": 200,
        "total_samples": 4000,
    }


def steps(
    rule: str, inputs: dict[str, Any], state: State | None = None, first: int = 5
) -> list[Combined[Any]]:
    """Take three steps with the same updates, passing the state on."""
    results = []
    for step in range(first, first + 3):
        results.append(combine(rule, **inputs, state=state, step=step))
        state = results[-1].state
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


def test_rule_is_documented_and_made_without_options(rule: str) -> None:
    assert isinstance(build("rule", rule, {}), Algorithm)
    assert len(summary("rule", rule)) > 20


@pytest.mark.parametrize(("m", "remembered"), [(1, 0), (2, 0), (9, 0), (1, 4), (5, 3)])
def test_result_has_the_right_shape_and_is_finite(rule: str, m: int, remembered: int) -> None:
    inputs = given(m, remembered)
    for result in steps(rule, inputs):
        assert result.direction.shape == (sum(SIZES),)
        assert np.isfinite(result.direction).all()
        assert result.weights.shape in {(1, m + remembered), (len(SIZES), m + remembered)}
        per_column = np.repeat(np.broadcast_to(result.weights, (3, m + remembered)), SIZES, axis=0).T
        assert_same(result.direction, (per_column * inputs["updates"]).sum(axis=0), 1e-12)
        assert all(isinstance(v, float) for v in result.diagnostics.values())


def test_equal_calls_give_equal_bytes(rule: str) -> None:
    one, two = steps(rule, given(6, 2)), steps(rule, given(6, 2))
    assert [r.direction.tobytes() for r in one] == [r.direction.tobytes() for r in two]


def test_inputs_and_state_are_left_unchanged(rule: str) -> None:
    inputs = given(6, 2)
    state = steps(rule, inputs)[-1].state
    before = copy.deepcopy((inputs, state))
    steps(rule, inputs, state)
    np.testing.assert_equal((inputs, state), before)


def test_state_survives_saving_and_loading(rule: str) -> None:
    inputs = given(5, 1)
    state = steps(rule, inputs)[-1].state
    kept, loaded = steps(rule, inputs, state, 8), steps(rule, inputs, reloaded(state), 8)
    assert [r.direction.tobytes() for r in kept] == [r.direction.tobytes() for r in loaded]


def test_order_of_the_rows_does_not_matter(rule: str) -> None:
    inputs = given(6, 2)
    order = np.random.default_rng(1).permutation(8)
    by_row = {k: v[order] for k, v in inputs.items() if isinstance(v, np.ndarray)}
    plain, shuffled = steps(rule, inputs), steps(rule, {**inputs, **by_row})
    for one, two in zip(plain, shuffled, strict=True):
        assert_same(two.direction, one.direction, 1e-8)
        assert_same(two.weights, one.weights[:, order], 1e-8)


@pytest.mark.parametrize("remembered", [0, 2])
def test_float32_rows_give_nearly_the_same_direction(rule: str, remembered: int) -> None:
    inputs = given(4, remembered)
    small: NDArray[np.float32] = inputs["updates"].astype(np.float32)
    result = combine(rule, **{**inputs, "updates": torch.from_numpy(small)}, step=5)
    assert isinstance(result.direction, torch.Tensor)
    assert result.direction.dtype == torch.float32
    assert_same(result.direction.numpy(), combine(rule, **inputs, step=5).direction, 1e-3)


def test_unknown_options_are_refused_with_the_closest_name(rule: str) -> None:
    with pytest.raises(ConfigError, match=f"rule '{rule}' has no option 'alhpa'"):
        build("rule", rule, {"alhpa": 1})
    with pytest.raises(ConfigError, match=f"there is no rule '{rule}x'; did you mean '{rule}'"):
        build("rule", f"{rule}x", {})
