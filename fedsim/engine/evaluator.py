"""Evaluation during a run, and its use: accuracy for selectors, and stopping at a target or out of patience."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedsim import plugins
from fedsim.common.stopwatch import Stopwatch
from fedsim.data.federated_data import SOME, UNSEEN
from fedsim.engine.record_words import PERSONAL
from fedsim.engine.state import LOSS, Plan, Records, RunState
from fedsim.engine.trainer import Pending, Trainer
from fedsim.training.evaluation import Evaluation


class Evaluator:
    """Evaluates the model at the steps and times that the plan sets."""

    def __init__(
        self, plan: Plan, trainer: Trainer, records: Records, run_state: RunState, clock: Stopwatch
    ) -> None:
        self.plan, self.trainer, self.records, self.run_state = plan, trainer, records, run_state
        self.clock, metric = clock, plan.stop.metric
        self._metric = None if metric in (None, LOSS) else plugins.factory("metric", str(metric))
        if not run_state.begun:
            run_state.evaluate_us = plan.evaluate.every_us

    def until(self, time_us: int) -> bool:
        """Evaluate at the first time due before `time_us`, if any, and return whether there was one.

        Later due times would see the same model.
        """
        run_state, every_us = self.run_state, self.plan.evaluate.every_us
        if not every_us or run_state.evaluate_us >= time_us:
            return False
        run_state.now_us = run_state.evaluate_us  # the model stays the same until `time_us`
        run_state.evaluate_us += -(-(time_us - run_state.evaluate_us) // every_us) * every_us
        self._evaluate()
        return True

    def after_step(self) -> None:
        """Evaluate the initial model, and the model after every `evaluate.every_steps` steps."""
        every = self.plan.evaluate.every_steps
        if self.run_state.step == 0 or (every > 0 and self.run_state.step % every == 0):
            self._evaluate()

    def last(self) -> None:
        """Evaluate the final model on every client."""
        partly_evaluated = self.plan.evaluate.clients is not None
        self._evaluate(every_client=True, repeat=partly_evaluated)

    def _evaluate(self, every_client: bool = False, repeat: bool = False) -> None:
        run_state, evaluate = self.run_state, self.plan.evaluate
        if run_state.evaluated == run_state.step and not repeat:
            return
        run_state.evaluated = run_state.step
        some = "" if every_client or evaluate.clients is None else SOME
        results = {name: self._start(name + some, name) for name in (evaluate.split, *evaluate.also)}
        if evaluate.personal:
            self._start(evaluate.split + some, evaluate.split + PERSONAL, personal=True)
        if evaluate.adapted:
            self._start(UNSEEN + some, UNSEEN + PERSONAL, personal=True)
        stop = self.plan.stop
        if stop.metric is not None or "accuracy" in self.plan.selector.needs:
            evaluation = results[evaluate.split]()
            run_state.client_records.accuracy[evaluation.clients] = evaluation.accuracy
            run_state.client_records.accuracy_step[evaluation.clients] = run_state.step
        if stop.metric is not None:
            self._watch(results[stop.split or evaluate.split]())

    def _start(self, split: str, name: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Start evaluating the current model; the record names the split `name`."""
        with self.clock.part("evaluate"):
            result = self.trainer.evaluate(split, personal=personal)

        def waited() -> Evaluation:
            with self.clock.part("evaluate"):
                return result()

        with self.clock.part("record"):
            self.records.evaluation(self.run_state.step, self.run_state.now_us, name, waited)
        return waited

    def _watch(self, evaluation: Evaluation) -> None:
        """Update the run state that decides about stopping."""
        run_state, stop = self.run_state, self.plan.stop
        value = _value(str(stop.metric), self._metric, evaluation)
        if stop.patience is None or run_state.unimproved < stop.patience:  # else the run ends
            run_state.best, run_state.unimproved = (
                (value, 0)
                if stop.improves(value, run_state.best)
                else (run_state.best, run_state.unimproved + 1)
            )
        run_state.reached |= stop.reaches(value)


def _value(name: str, metric: Callable[..., object] | None, evaluation: Evaluation) -> float:
    """Return the mean loss over samples without a `metric`, else its value; NaN if a client has no accuracy."""
    if not len(evaluation.n) or np.isnan(evaluation.accuracy).any():
        return math.nan
    if metric is None:
        return float(np.average(evaluation.loss, weights=evaluation.n))
    return plugins.number_of(name, metric(evaluation.accuracy, evaluation.n))
