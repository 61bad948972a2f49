"""A discount of staleness scales the rows before the rule sees them, whatever the rule does with them afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.server.rule_factory import build_rule
from fedsim.server.server import Server
from fedsim.server.spec import ServerSpec
from fedsim.server.step_input import StepInput
from fedsim.training.job import Report, Reports
from rule_calls import combine

DISCOUNTS: dict[str, Any] = {
    "polynomial": lambda s: (s + 1.0) ** -0.5,
    "sqrt": lambda s: (s + 1.0) ** -0.5,
    "hinge": lambda s: 1 / (0.5 * np.maximum(s - 1.0, 0.0) + 1),
    "constant": np.ones_like,
}
MADE = {name: build_rule(name, {}, lr=0.1) for name in plugins.names("rule")}
RULES = [
    name for name, rule in MADE.items() if not (rule.needs.scale_free or rule.client or rule.start == "last")
]
SIZES = [3, 5]


def wrapped(staleness: str) -> list[tuple[str, dict[str, Any]]]:
    return [("discounted", {"staleness": staleness} | ({"b": 1.0} if staleness == "hinge" else {}))]


def arguments(seed: int, m: int, remembered: int) -> dict[str, Any]:
    draw, n = np.random.default_rng(seed), m + remembered
    return {
        "losses": draw.uniform(0.1, 2, n),
        "losses_after": draw.uniform(0.1, 2, n),
        "accuracies_after": draw.uniform(0.1, 1, n),
        "local_steps": draw.integers(1, 5, n),
        "n_samples": draw.integers(5, 50, n),
        "clients": np.arange(n),
        "ages": np.concatenate([np.zeros(m, dtype=int), np.ones(remembered, dtype=int)]),
        "staleness": draw.integers(0, 6, n),
        "blocks": SIZES,
        "step": 4,
        "n_clients": 20,
        "total_samples": 1000,
    }


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(0, 2), st.sampled_from(list(DISCOUNTS)))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("rule", RULES)
def test_a_discounted_rule_is_the_rule_on_rows_scaled_by_hand(
    rule: str, seed: int, m: int, remembered: int, staleness: str
) -> None:
    known = arguments(seed, m, remembered)
    rows = np.random.default_rng([seed, 1]).normal(size=(m + remembered, sum(SIZES)))
    factors = DISCOUNTS[staleness](np.asarray(known["staleness"] + known["ages"], dtype=np.float64))
    options = {"options": {"lr": 0.1}} if rule in ("qfedavg", "qfedsgd") else {}
    by_hand = combine(rule, factors[:, None] * rows, **known, **options)
    found = combine(rule, rows, wrap=wrapped(staleness), **known, **options)
    np.testing.assert_allclose(found.direction, by_hand.direction, rtol=1e-6, atol=1e-8)
    assert found.keep == by_hand.keep


def test_a_discount_after_the_projection_would_leave_a_conflict() -> None:
    """With g1 = (1, 0) and a stale g2 = (-1, 1) worth half: projected and then discounted, g2 would lose."""
    rows, staleness = np.array([[1.0, 0.0], [-1.0, 1.0]]), [0, 3]
    known: dict[str, Any] = {"losses": [1.0, 2.0], "options": {"alpha": 0.0, "tau": 0}}
    found = combine("fedfv", rows, staleness=staleness, wrap=wrapped("sqrt"), **known)
    np.testing.assert_allclose(found.direction, np.array([1.0, 2.0]) / np.sqrt(40), rtol=1e-12)
    assert (rows @ found.direction >= 0).all()
    plain = combine("fedfv", rows, staleness=staleness, **known)
    afterwards = (plain.weights[0] * [1.0, 0.5]) @ rows
    assert rows[1] @ afterwards < 0


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("fedmdfg", {}),
        ("fedlf", {}),
        ("fedlf_released", {}),
        ("fedmgda_plus", {"server_lr": "median"}),
        ("fedavg_n", {}),
    ],
)
def test_a_rule_that_undoes_the_discount_is_refused(rule: str, options: dict[str, Any]) -> None:
    """Shortening a row of these does not change the direction of the step, as far as it is of their fair parts."""
    for wrapper in ({"name": "discounted"}, {"name": "clipped"}):
        with pytest.raises(
            ConfigError, match=f"wrapper '{wrapper['name']}' of rule '{rule}': .* the same length"
        ):
            build_rule(rule, options, [wrapper])
    build_rule("fedlf", {"lengths": "raw"}, [{"name": "discounted"}])
    build_rule("fedmgda_plus", {"normalise": False}, [{"name": "clipped"}])


def test_the_quadratic_program_of_fedmgda_sees_discounted_rows() -> None:
    """The shortest mixture of (1, 0) and (0, 1) is their mean; of (1, 0) and (0, 1/2) it is (0.2, 0.4)."""
    found = combine("fedmgda", np.eye(2), losses=None, staleness=[0, 3], wrap=wrapped("sqrt"))
    np.testing.assert_allclose(found.direction, [0.2, 0.4], atol=1e-9)


@pytest.mark.parametrize("rule", ["fedfv", "fedlf", "fedmgda", "mifa"])
def test_the_server_discounts_before_the_rule_as_well(rule: str) -> None:
    """One step with rows of different staleness, the first of a run, so that nobody is remembered."""
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    staleness = np.array([0, 1, 3, 8])
    wrap = [{"name": "discounted", "staleness": "sqrt"}]
    blocks, options = ((0, 3), (3, 8)), {"lengths": "raw"} if rule == "fedlf" else {}
    plain, discounting = (
        Server(ServerSpec(rule, options, 10, 100, 4, blocks, wrap=w), torch.zeros(8)) for w in ([], wrap)
    )
    reports = Reports.of([Report(loss_before=1.0 + i, loss_train=1.0) for i in range(4)])
    told = StepInput(9, np.arange(4), staleness, np.full(4, 5), np.arange(4), reports)
    scaled = rows * torch.tensor((staleness + 1.0) ** -0.5, dtype=torch.float32)[:, None]
    plain.step(told, list(scaled))
    discounting.step(told, list(rows))
    torch.testing.assert_close(discounting.params, plain.params, rtol=1e-4, atol=1e-6)
    assert discounting.params.any()
