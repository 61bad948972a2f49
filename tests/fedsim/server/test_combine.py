"""Rules without the simulator: types, orders, defaults and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.common.errors import ConfigError, RunError
from fedsim.server.combine import combine
from fedsim.server.rule import (
    Algorithm,
    Direction,
    GramLevel,
    Needs,
    Stack,
    State,
    StepFacts,
    Vectors,
    VectorStep,
    stateless,
)

ROWS = np.array([[4.0, 0.0], [-1.0, 2.0], [1.0, 1.0]])
SEEN: list[Stack] = []


def _spy(stack: Stack) -> Direction:
    SEEN.append(stack)
    return Direction(np.arange(1.0, stack.n + 1))


SPY = stateless(_spy, Needs(gram="model"))
SPY_OF_LOSSES = stateless(_spy, Needs(gram="model", losses=True))
SPY_AFTER_TRAINING = stateless(_spy, Needs(after=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_come_back_as_they_were(dtype: torch.dtype) -> None:
    rows = torch.tensor(ROWS, dtype=dtype, requires_grad=True)
    direction = combine("fedavg", rows, losses=None).direction
    assert direction.dtype == dtype
    assert not direction.requires_grad
    np.testing.assert_allclose(direction.double().numpy(), ROWS.mean(axis=0), rtol=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8"])
def test_arrays_come_back_as_they_were(dtype: str) -> None:
    rows = ROWS.astype(dtype)
    rows.flags.writeable = False
    direction = combine("fedavg", rows, losses=None).direction
    assert isinstance(direction, np.ndarray)
    assert direction.dtype == np.dtype(dtype)
    np.testing.assert_allclose(direction.astype(float), ROWS.mean(axis=0), rtol=1e-3)


def test_rows_of_any_order_are_sorted_for_the_rule_and_unsorted_for_the_caller() -> None:
    given: dict[str, Any] = {"losses": [1.0, 2.0, 3.0], "clients": [7, 8, 9], "ages": [2, 0, 0]}
    result = combine(SPY_OF_LOSSES, ROWS, **given, online=[True, False, True])
    stack = SEEN.pop()
    assert stack.m == 2
    assert stack.clients.tolist() == [8, 9, 7]
    assert stack.losses.tolist() == [2.0, 3.0, 1.0]
    assert stack.online.tolist() == [False, True, True]
    np.testing.assert_allclose(stack.gram(), (ROWS @ ROWS.T)[[1, 2, 0]][:, [1, 2, 0]])
    assert result.weights.tolist() == [[3.0, 1.0, 2.0]]
    np.testing.assert_allclose(result.direction, [3.0, 1.0, 2.0] @ ROWS)


def test_defaults_describe_the_clients_of_the_call() -> None:
    combine(SPY, ROWS, losses=None, clients=[5, 5, 6], ages=[0, 0, 1], n_samples=[10, 10, 30])
    stack = SEEN.pop()
    assert (stack.n_clients, stack.total_samples, stack.n_seen) == (2, 40, 1)
    assert stack.participations.tolist() == [2, 2, 1]
    assert stack.online.tolist() == [True, True, False]
    assert np.isnan(stack.inclusion).all()
    combine(SPY, ROWS, losses=None, ages=[0, 0, 1], participations=[1, 4, 2])
    assert SEEN.pop().n_seen == 2


def test_probabilities_of_choices_reach_the_rule_in_its_order() -> None:
    combine(SPY, ROWS, losses=None, ages=[1, 0, 0], inclusion=[0.25, np.nan, 1.0])
    np.testing.assert_array_equal(SEEN.pop().inclusion, [np.nan, 1.0, 0.25])
    for wrong, message in (([0.5, 0.0, 1.0], "row 1: expected a probability"), ([0.5], "expected 3 values")):
        with pytest.raises(ConfigError, match=f"argument 'inclusion'.*{message}"):
            combine(SPY, ROWS, losses=None, inclusion=wrong)


def test_weights_by_block_move_each_block() -> None:
    weights = np.array([[1.0, 0, 0], [0, 2.0, 0]])
    rule = stateless(lambda stack: Direction(weights), Needs(gram="blocks"))
    result = combine(rule, ROWS, losses=None, blocks=[1, 1])
    assert result.direction.tolist() == [4.0, 4.0]


@pytest.mark.parametrize(("gram", "made"), [("model", 1), ("blocks", 2)])
def test_a_rule_is_given_the_inner_products_that_it_declared(gram: GramLevel, made: int) -> None:
    seen = stateless(_spy, Needs(gram=gram))
    combine(seen, ROWS, losses=None, blocks=[1, 1])
    assert SEEN.pop().grams.shape == (made, 3, 3)


def test_state_is_passed_on() -> None:
    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        return Direction(np.ones(stack.n)), {"count": state["count"] + 1}

    rule = Algorithm(weigh, init=lambda: {"count": 0})
    first = combine(rule, ROWS, losses=None)
    assert combine(rule, ROWS, losses=None, state=first.state).state == {"count": 2}


def test_vectors_are_passed_on() -> None:
    def apply(direction: torch.Tensor, vectors: Vectors, facts: StepFacts) -> tuple[torch.Tensor, Vectors]:
        assert (facts.m, facts.n_clients, facts.received) == (len(ROWS), len(ROWS), {})
        total = direction + vectors["total"] if vectors else direction
        return total, {"total": total}

    weigh = stateless(lambda stack: Direction(np.ones(stack.n), average=0.5))
    rule = replace(weigh, then=VectorStep(apply))
    first = combine(rule, ROWS, losses=None)
    assert first.direction.tolist() == [4.0, 3.0]
    assert first.average == 0.5
    assert combine(rule, ROWS, losses=None, vectors=first.vectors).direction.tolist() == [8.0, 6.0]


def test_what_clients_report_after_training_reaches_the_rule_in_its_order() -> None:
    after: dict[str, Any] = {"losses_after": [1.0, 2.0, 3.0], "accuracies_after": [0.1, 0.2, 0.3]}
    combine(SPY_AFTER_TRAINING, ROWS, losses=None, ages=[1, 0, 0], **after)
    stack = SEEN.pop()
    assert stack.losses_after is not None
    assert stack.accuracies_after is not None
    assert stack.losses_after.tolist() == [2.0, 3.0, 1.0]
    assert stack.accuracies_after.tolist() == [0.2, 0.3, 0.1]


def test_options_are_apart_from_arguments_of_the_same_name() -> None:
    given: dict[str, Any] = {"losses": None, "staleness": [0, 3, 8]}
    discounted = combine("fedbuff", ROWS, **given)
    plain = combine("fedbuff", ROWS, options={"staleness": "none", "server_lr": 2.0}, **given)
    np.testing.assert_allclose(discounted.weights * 3, [[1, 1 / 2, 1 / 3]])
    np.testing.assert_allclose(plain.weights * 3, [[2, 2, 2]])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"updates": ROWS[0]}, r"'updates': expected floats \[n, P\].* shape \(2,\)"),
    "integers": ({"updates": ROWS.astype(int)}, "'updates': expected floats of at most 64 bits, found int64"),
    "list": ({"updates": ROWS.tolist()}, "'updates': expected a tensor or an array, found list"),
    "nan": ({"updates": np.array([[1.0], [np.nan]])}, "'updates', row 1: expected finite numbers"),
    "length": ({"losses": [1.0]}, r"'losses': expected 3 values, one per row, found shape \(1,\)"),
    "loss": ({"losses": [1.0, np.inf, 2.0]}, "'losses', row 1: expected a finite number, found inf"),
    "no losses": ({"rule": "fedfv", "losses": None}, "'losses': this rule needs the losses"),
    "fraction": ({"ages": [0, 0.5, 0]}, "'ages', row 1: expected a whole number of at least 0, found 0.5"),
    "samples": ({"n_samples": [0, 1, 1]}, "'n_samples', row 0: expected a whole number of at least 1"),
    "words": ({"n_samples": ["a", "b", "c"]}, "'n_samples': expected numbers"),
    "less than none": ({"ages": [0, -1.5, 0]}, "'ages', row 1: expected a whole number of at least 0"),
    "nobody": ({"clients": [-1, 0, 1]}, "'clients', row 0: expected a whole number of at least 0, found -1"),
    "absent": ({"ages": [1, 1, 2]}, "'ages': expected at least one present row"),
    "twice": ({"clients": [3, 3, 4], "ages": [0, 1, 0]}, "'ages': client 3 has a remembered row beside"),
    "twice absent": (
        {"clients": [4, 3, 3], "ages": [0, 1, 2]},
        "'ages': client 3 has a remembered row beside",
    ),
    "blocks": ({"blocks": [1, 2]}, r"'blocks': expected positive sizes of sum 2 \(columns\), found \[1, 2\]"),
    "a block of nothing": ({"blocks": [2, 0]}, r"'blocks': expected positive sizes .* found \[2, 0\]"),
    "level": ({"blocks": "model"}, "'blocks': expected positive sizes of sum 2"),
    "no argument": (
        {"stalenes": [0, 0, 1]},
        "'stalenes': there is none; did you mean 'staleness'.* into 'options'",
    ),
    "option": ({"options": {"weighing": "data"}}, "no option 'weighing'; did you mean 'weighting'"),
    "value": ({"options": {"weighting": "date"}}, "option 'weighting'"),
    "rule": ({"rule": "fedvag"}, "there is no rule 'fedvag'; did you mean 'fedavg'"),
    "after": ({"rule": "fedfa"}, "'losses_after': this rule needs the losses after, found None"),
    "accuracy": ({"accuracies_after": [1.0, 0.5]}, "'accuracies_after': expected 3 values"),
    "own option": (
        {"rule": "fedbuff", "options": {"stale": 1}},
        "no option 'stale'; did you mean 'staleness'",
    ),
    "wrapper": ({"wrap": [("clip", {})]}, "there is no wrapper 'clip'; did you mean 'clipped'"),
    "refused": (
        {"wrap": [("layerwise", {})]},
        "wrapper 'layerwise' of rule 'fedavg': the rule uses no inner",
    ),
    "algorithm": ({"rule": SPY, "options": {"alpha": 1}}, r"options \['alpha'\] go with the name of a rule"),
    "few clients": ({"n_clients": 2}, "'n_clients': expected a whole number of at least 3, found 2"),
    "clients in words": ({"n_clients": "3"}, "'n_clients': expected a whole number of at least 3, found '3'"),
    "few samples": ({"total_samples": 0}, "'total_samples': expected a whole number of at least 3, found 0"),
    "nobody seen": ({"n_seen": -1}, "'n_seen': expected a whole number of at least 0, found -1"),
    "half a step": ({"step": 1.5}, "'step': expected a whole number of at least 0, found 1.5"),
    "too long": (
        {"rule": "fedfv", "updates": np.full((3, 5000), 1e25, np.float32)},
        "'updates', row 0: expected a norm whose square torch.float32 can hold",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"rule": "fedavg", "updates": ROWS, "losses": [1.0, 2.0, 3.0], **changes}
    with pytest.raises(ConfigError, match=message):
        combine(**arguments)


def test_weights_that_are_not_finite_are_an_error() -> None:
    def unknown(stack: Stack) -> Direction:
        return Direction(stack.inclusion)

    with pytest.raises(RunError, match="rule 'of the call': weights that are not finite"):
        combine(stateless(unknown), ROWS, losses=None)


def test_a_rule_cannot_change_the_inner_products() -> None:
    def clearing(stack: Stack) -> Direction:
        stack.grams[0] = 0
        return Direction(np.ones(stack.n))

    with pytest.raises(ValueError, match="read-only"):
        combine(stateless(clearing, Needs(gram="model")), ROWS, losses=None)


GIVEN = np.arange(12, dtype=np.float64).reshape(3, 4) + 1
LOSSES = [1.0, 2.0, 3.0]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no rule": ({"rule": None}, "argument 'rule': expected the name of a rule or an Algorithm, found None"),
    "a class": ({"rule": Algorithm}, "argument 'rule': expected the name"),
    "a function": ({"rule": stateless}, r"found function: call it, stateless\(\.\.\.\)"),
    "wrap by name": ({"wrap": "clipped"}, r"'wrap': expected a list of \(name, options\), found 'clipped'"),
    "wraps by name": (
        {"wrap": ["clipped"]},
        r"'wrap': expected pairs such as \('clipped', {}\), found 'clipped'",
    ),
    "no options": ({"wrap": [("clipped", None)]}, "'wrap': expected pairs"),
    "no wrap": ({"wrap": None}, "'wrap': expected a list"),
    "sparse": ({"updates": torch.ones(3, 4).to_sparse()}, "'updates': .* found a torch.sparse_coo one"),
    "meta": ({"updates": torch.ones(3, 4, device="meta")}, "'updates': .* found a meta one"),
    "masked": ({"updates": np.ma.masked_array(GIVEN, GIVEN > 5)}, "'updates': .* found a masked one"),
    "too short": (
        {"updates": GIVEN * 1e-200},
        "'updates', row 0: .* whose square torch.float64 .* found less",
    ),
    "one too short": ({"updates": GIVEN * [[1], [1e-200], [1]]}, "'updates', row 1: .* found less"),
    "a block too short": (
        {"updates": GIVEN * [1, 1, 1, 1e-200], "blocks": [3, 1]},
        "'updates', row 0: .* found less",
    ),
    "too short beside a block of zeros": (
        {"rule": "fedfv", "updates": GIVEN * [0, 1e-200, 0, 0], "blocks": [1, 3]},
        "'updates', row 0: .* found less",
    ),
    "too long": ({"updates": GIVEN * 1e200}, "'updates', row 0: .* found more"),
    "masked losses": ({"losses": np.ma.masked_array(LOSSES, [0, 1, 0])}, "'losses': .* found a masked one"),
    "sparse losses": ({"losses": torch.ones(3).to_sparse()}, "'losses': .* found a torch.sparse_coo one"),
    "meta losses": ({"losses": torch.ones(3, device="meta")}, "'losses': .* found a meta one"),
    "losses with gradients in a list": (
        {"losses": [torch.ones((), requires_grad=True)] * 3},
        "'losses': expected numbers, one per row, found list: Can't call numpy",
    ),
    "ragged": ({"n_samples": [[1], [1, 2], [3]]}, "'n_samples': expected numbers, one per row, found list"),
    "a block": ({"blocks": 4}, "'blocks': expected a list of sizes, found 4"),
    "no step": ({"step": None}, "'step': expected a whole number of at least 0, found None"),
    "options": ({"options": "alpha"}, "'options': expected a dict or None, found 'alpha'"),
    "state": ({"state": 5}, "'state': expected a dict or None, found 5"),
    "another rule's state": (
        {"rule": "afl", "state": {"x": 1}},
        r"'state': .* with 'mixture', found \['x'\]",
    ),
}


@pytest.mark.parametrize(("given", "message"), WRONG.values(), ids=WRONG.keys())
def test_arguments_of_wrong_types_are_refused_in_words(given: dict[str, Any], message: str) -> None:
    arguments = {"rule": "fedlf", "updates": GIVEN, "losses": LOSSES} | given
    with pytest.raises(ConfigError, match=message):
        combine(arguments.pop("rule"), arguments.pop("updates"), **arguments)


@pytest.mark.parametrize(
    "then", [lambda d, v, f: None, lambda d, v, f: (d[:2], v), lambda d, v, f: (None, v)]
)
def test_a_step_of_ones_own_returns_a_direction(then: Any) -> None:
    rule = Algorithm(lambda stack, state: (Direction(np.ones(3)), state), then=VectorStep(then))
    with pytest.raises(RunError, match="rule 'of the call', then: expected a direction"):
        combine(rule, GIVEN, losses=LOSSES)


def test_a_rule_of_columns_says_its_factors() -> None:
    updates = np.array([[3.0, 0.0], [1.0, 5.0], [2.0, 1.0], [9.0, 9.0]])
    found = combine("coordinate_median", updates, losses=None, ages=[0, 1, 0, 0])
    assert found.direction.tolist() == [3.0, 1.0]
    assert found.weights.tolist() == [[1, 0, 1, 1]]
    tensor = combine("coordinate_median", torch.from_numpy(updates).bfloat16(), losses=None)
    assert (tensor.direction.dtype, tensor.direction.tolist()) == (torch.bfloat16, [2.5, 3.0])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (lambda tile: tile[0] * np.nan, "expected finite numbers, found NaN or infinity"),
        (lambda tile: tile[:, 0], r"expected real numbers \[2\], one per column of the tile \[3, 2\]"),
        (lambda tile: None, "found NoneType"),
    ],
)
def test_columns_of_ones_own_are_numbers(columns: Any, message: str) -> None:
    rule = stateless(lambda stack: Direction(np.ones(stack.n)), columns=columns)
    with pytest.raises(RunError, match=f"step 0, rule 'of the call', columns: .*{message}"):
        combine(rule, np.ones((3, 2)), losses=None)


def test_losses_that_need_gradients_or_are_bfloat16_count_as_numbers() -> None:
    wanted = combine("fedfv", GIVEN, losses=LOSSES).direction
    given = torch.tensor(LOSSES, requires_grad=True)
    for losses in (given, given.detach().to(torch.bfloat16)):
        np.testing.assert_array_equal(combine("fedfv", GIVEN, losses=losses).direction, wanted)


def test_modes_and_defaults_of_the_caller_change_no_bit() -> None:
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    momentum = [("server_opt", {"kind": "momentum"})]
    wanted = combine("fedlf", rows, losses=LOSSES, wrap=momentum).direction
    trimmed = combine("trimmed_mean", rows, losses=None).direction
    for mode in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta")):
        with mode:
            assert torch.equal(combine("fedlf", rows, losses=LOSSES, wrap=momentum).direction, wanted)
            assert torch.equal(combine("trimmed_mean", rows, losses=None).direction, trimmed)


def test_rows_of_zeros_have_a_norm() -> None:
    found = combine("fedlf", GIVEN * [[1], [0], [1]], losses=LOSSES)
    assert np.isfinite(found.direction).all()
