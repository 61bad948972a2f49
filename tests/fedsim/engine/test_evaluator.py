"""When the model is evaluated, under which name it is recorded, and what is learnt from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from fedsim.common.stopwatch import Stopwatch
from fedsim.engine.evaluator import Evaluator
from fedsim.engine.pacing import sync
from fedsim.engine.state import Evaluate, RunState, Stop
from fedsim.engine.trainer import Pending
from fedsim.execution.null_trainer import NullTrainer
from fedsim.training.evaluation import Evaluation
from timelines import plan_of

USUAL, NINE_STEPS = Evaluate(), Stop(steps=9)


class Asked(NullTrainer):
    """Writes down what is evaluated; client i of three gets i + 1 of 4 samples right."""

    def __init__(self) -> None:
        self.splits: list[tuple[str, bool]] = []

    def evaluate(self, split: str, *, personal: bool = False) -> Pending[Evaluation]:
        self.splits.append((split, personal))
        three = np.arange(3)
        return lambda: Evaluation(three, np.full(3, 4), 1 + three, np.zeros(3))


class Written:
    """Writes down what is recorded."""

    def __init__(self) -> None:
        self.evaluations: list[tuple[int, int, str]] = []

    def step(self, result: Any, rows: Any) -> None: ...

    def crowded(self) -> None: ...

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        assert len(result().clients) == 3
        self.evaluations.append((step, time_us, split))


def evaluator(
    how: Evaluate = USUAL, stop: Stop = NINE_STEPS, *, accuracy: bool = False
) -> tuple[Evaluator, Written, list[tuple[str, bool]]]:
    """Return an evaluator, what it records and what it asks for."""
    plan = replace(plan_of(sync(1), 3, stop), evaluate=how)
    if accuracy:
        plan = replace(plan, selector=replace(plan.selector, needs=frozenset({"accuracy"})))
    asked, written = Asked(), Written()
    return Evaluator(plan, asked, written, RunState(3), Stopwatch()), written, asked.splits


def test_the_initial_model_and_that_of_every_so_many_steps_is_evaluated_once() -> None:
    made, written, _ = evaluator(Evaluate(every_steps=3))
    for step in (0, 0, 1, 2, 3, 3, 4, 6, 7):
        made.run_state.step, made.run_state.now_us = step, 10 * step
        made.after_step()
    assert written.evaluations == [(0, 0, "test"), (3, 30, "test"), (6, 60, "test")]


def test_without_steps_between_them_only_the_initial_and_the_final_model_are() -> None:
    made, written, _ = evaluator(Evaluate(every_steps=0))
    for step in range(4):
        made.run_state.step = step
        made.after_step()
    made.last()
    made.last()
    assert [step for step, *_ in written.evaluations] == [0, 3]


def test_time_asks_at_its_instants_before_anything_happens_later() -> None:
    made, written, _ = evaluator(Evaluate(every_steps=0, every_us=7))
    for step, time_us in ((0, 7), (1, 8), (1, 14), (2, 15), (3, 35), (3, 36)):
        made.run_state.step = step
        made.until(time_us)
    assert written.evaluations == [(1, 7, "test"), (2, 14, "test"), (3, 21, "test")]
    assert made.run_state.evaluate_us == 42, "an instant at which something happens comes after that"


def test_without_an_interval_time_never_asks() -> None:
    made, written, _ = evaluator(Evaluate(every_us=0))
    made.until(10**15)
    assert written.evaluations == []
    assert made.run_state.now_us == 0


def test_a_run_that_goes_on_keeps_the_instant_at_which_time_asks_next() -> None:
    made, *_ = evaluator(Evaluate(every_us=7))
    assert made.run_state.evaluate_us == 7
    begun = RunState(3, begun=True, evaluate_us=21)
    assert Evaluator(made.plan, Asked(), Written(), begun, Stopwatch()).run_state.evaluate_us == 21


@pytest.mark.parametrize("personal", [False, True])
def test_a_part_is_recorded_under_the_name_of_the_split_and_all_at_the_end(personal: bool) -> None:
    made, written, asked = evaluator(Evaluate(split="valid", personal=personal, clients=np.array([0, 2])))
    made.after_step()
    made.last()
    names = ["valid", "valid_personal"] if personal else ["valid"]
    assert [name for *_, name in written.evaluations] == 2 * names
    both = (False, True) if personal else (False,)
    assert asked == [("valid_some", own) for own in both] + [("valid", own) for own in both]


def test_further_splits_are_evaluated_at_the_same_times_without_personal_models() -> None:
    how = Evaluate(split="valid", also=("train",), personal=True, clients=np.array([0, 2]))
    made, written, asked = evaluator(how)
    made.after_step()
    made.last()
    assert [name for *_, name in written.evaluations] == 2 * ["valid", "train", "valid_personal"]
    part = [("valid_some", False), ("train_some", False), ("valid_some", True)]
    assert asked == part + [(name.removesuffix("_some"), own) for name, own in part]


@pytest.mark.parametrize(("split", "best"), [(None, 2.0), ("train", 0.5)])
def test_the_loss_of_the_chosen_split_is_watched(split: str | None, best: float) -> None:
    losses = {"test": [1.0, 4.0], "train": [0.25, 1.0]}
    stop = Stop(metric="loss", split=split, rising=False, target=best)
    made, *_ = evaluator(Evaluate(also=("train",)), stop)

    def evaluate(name: str, *, personal: bool = False) -> Pending[Evaluation]:
        return lambda: Evaluation(np.arange(2), np.array([2, 1]), np.ones(2), np.array(losses[name]))

    with patch.object(made.trainer, "evaluate", evaluate), patch.object(made, "records"):
        made.after_step()
    assert (made.run_state.best, made.run_state.reached) == (best, True)


def test_who_all_were_evaluated_already_is_not_again_at_the_end() -> None:
    made, written, _ = evaluator()
    made.after_step()
    made.last()
    assert len(written.evaluations) == 1


@pytest.mark.parametrize(("accuracy", "known"), [(True, [0.25, 0.5, 0.75]), (False, [math.nan] * 3)])
def test_selectors_learn_accuracies_if_they_ask_for_them(accuracy: bool, known: list[float]) -> None:
    made, *_ = evaluator(accuracy=accuracy)
    made.after_step()
    np.testing.assert_array_equal(made.run_state.client_records.accuracy, known)


def watched(values: Sequence[float], stop: Stop) -> tuple[list[tuple[float, int]], bool]:
    """Return the best value and the evaluations since then after each, and whether the target was reached."""
    made, *_ = evaluator(Evaluate(every_steps=1), stop)
    found = []
    with patch("fedsim.engine.evaluator._value", side_effect=values):
        for step in range(len(values)):
            made.run_state.step = step
            made.after_step()
            found.append((made.run_state.best, made.run_state.unimproved))
    return found, made.run_state.reached


def test_only_more_than_the_least_gain_is_an_improvement() -> None:
    rising = Stop(metric="mean_percent", patience=9, least=0.5)
    assert watched((1.0, 1.5, 1.625, 1.625), rising)[0] == [(1.0, 0), (1.0, 1), (1.625, 0), (1.625, 1)]
    falling = replace(rising, rising=False)
    assert watched((1.0, 0.5, 0.375, 2.0), falling)[0] == [(1.0, 0), (1.0, 1), (0.375, 0), (0.375, 1)]
    assert watched((1.0, 1.0, 1.25), replace(rising, least=0.0))[0] == [(1.0, 0), (1.0, 1), (1.25, 0)]


def test_a_value_that_is_no_number_is_no_improvement_and_no_target() -> None:
    found, reached = watched((math.nan, 3.0, math.nan), Stop(metric="gini", patience=5, target=9.0))
    assert repr(found) == "[(nan, 1), (3.0, 0), (3.0, 1)]"
    assert not reached


def test_a_patience_that_is_at_its_end_stays_so() -> None:
    found, _ = watched((3.0, 1.0, 1.0, 4.0), Stop(metric="mean_percent", patience=2))
    assert found == [(3.0, 0), (3.0, 1), (3.0, 2), (3.0, 2)]


def test_without_a_patience_the_best_value_is_followed_for_ever() -> None:
    assert watched((3.0, 1.0, 1.0, 4.0), Stop(metric="mean_percent", target=9.0))[0][-2:] == [
        (3.0, 2),
        (4.0, 0),
    ]


@pytest.mark.parametrize(
    ("value", "rising", "reached"),
    [(50.0, True, True), (49.9, True, False), (50.0, False, True), (50.1, False, False)],
)
def test_a_target_is_reached_at_its_very_value(value: float, rising: bool, reached: bool) -> None:
    stop = Stop(metric="mean_percent", target=50.0, rising=rising)
    assert watched((value,), stop)[1] == reached
    assert not watched((value,), replace(stop, target=None))[1]
