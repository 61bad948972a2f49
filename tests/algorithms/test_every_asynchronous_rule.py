"""FedBuff, FedAsync, FedStaleWeight and MIFA: staleness, and the memory of everybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.algorithms.mathematics.staleness import discounts
from fedsim.server.combine import Combined
from rule_calls import combine
from stacks import assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)
sizes = st.integers(1, 8)


def run(rule: str, rows: Any, **given: Any) -> Combined[Any]:
    return combine(rule, rows, losses=None, **given)


@fast
@given(seeds, sizes, st.floats(0.1, 3), st.sampled_from(["none", "sqrt"]))
def test_fedbuff_of_fresh_updates_is_the_mean_times_the_server_step(
    seed: int, m: int, server_lr: float, staleness: str
) -> None:
    rows = updates(seed, m, 5)
    options = {"server_lr": server_lr, "staleness": staleness}
    assert_same(run("fedbuff", rows, options=options).direction, server_lr * rows.mean(axis=0), 1e-12)


def test_fedbuff_shortens_stale_updates() -> None:
    stale: dict[str, Any] = {"staleness": [0, 3, 8]}
    np.testing.assert_allclose(run("fedbuff", np.eye(3), **stale).weights[0] * 3, [1, 1 / 2, 1 / 3])
    plain = run("fedbuff", np.eye(3), **stale, options={"staleness": "none"})
    np.testing.assert_allclose(plain.weights[0] * 3, [1, 1, 1])
    shares = run("fedbuff", np.eye(3), **stale, options={"normalise": True, "server_lr": 2.0})
    np.testing.assert_allclose(shares.weights[0], 2 * np.array([6, 3, 2]) / 11)


def test_fedasync_with_full_weight_jumps_to_the_client_s_model() -> None:
    params, local = np.array([1.0, 2.0]), np.array([[3.0, -1.0]])
    result = run("fedasync", params - local, alpha=1.0)
    assert_same(params - result.direction, local[0], 1e-12)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"staleness": "constant"}, [0.6, 0.6, 0.6]),
        ({"staleness": "polynomial", "a": 0.5}, [0.6, 0.3, 0.2]),
        ({"staleness": "hinge", "a": 10.0, "b": 6.0}, [0.6, 0.6, 0.6 / 21]),
    ],
)
def test_fedasync_discounts_by_staleness(options: dict[str, Any], expected: list[float]) -> None:
    steps = run("fedasync", np.eye(3), staleness=[0, 3, 8], options={"alpha": 0.6, **options})
    np.testing.assert_allclose(steps.weights[0], expected)


@fast
@given(st.integers(0, 50), st.floats(0.1, 10), st.floats(0, 10))
def test_discounts_start_at_one_and_never_rise(s: int, a: float, b: float) -> None:
    for kind in ("constant", "polynomial", "hinge", "sqrt"):
        values = discounts(np.array([0, s, s + 1]), kind, a, b)  # type: ignore[arg-type]
        assert values[0] == 1
        assert 0 < values[2] <= values[1] <= 1


def test_fedstaleweight_averages_the_last_observations_of_each_client() -> None:
    state = None
    for staleness in ([4, 0], [2, 0], [0, 6]):
        result = run("fedstaleweight", np.eye(2), staleness=staleness, window=2, state=state)
        state = result.state
    np.testing.assert_allclose(result.weights[0], [1 / 4, 3 / 4])  # averages 1 and 3
    assert state["staleness"][0].tolist() == [2, 0]


def test_fedstaleweight_of_fresh_updates_is_the_plain_mean() -> None:
    assert run("fedstaleweight", np.eye(4)).weights[0].tolist() == [0.25] * 4
    shifted = run("fedstaleweight", np.eye(2), staleness=[0, 2], offset=1.0)
    np.testing.assert_allclose(shifted.weights[0], [1 / 4, 3 / 4])


def test_mifa_averages_the_last_update_of_everybody() -> None:
    given_rows: dict[str, Any] = {"clients": [4, 2, 4, 9, 7], "ages": [0, 0, 0, 3, 50]}
    rows = updates(1, 5, 3)
    result = run("mifa", rows, **given_rows, n_clients=20)
    assert_same(result.direction, rows[1:].mean(axis=0), 1e-12)
    every = run("mifa", rows, **given_rows, n_clients=20, divisor="all")
    assert_same(every.direction, rows[1:].sum(axis=0) / 20, 1e-12)
