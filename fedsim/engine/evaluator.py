"""Evaluating while a run goes on, and learning from it: what selectors ask for, and whether to stop."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedsim.common.stopwatch import Stopwatch
from fedsim.data.federated_data import SOME
from fedsim.engine.record_words import PERSONAL
from fedsim.engine.state import Plan, Records, RunState
from fedsim.engine.trainer import Pending, Trainer
from fedsim.training.evaluation import Evaluation


class Evaluator:
    """Evaluates when steps or time ask for it, on the state of one run.

    Args:
        measure: the watched metric of an evaluation, if `plan.stop` has one.
    """

    def __init__(
        self,
        plan: Plan,
        trainer: Trainer,
        records: Records,
        run_state: RunState,
        clock: Stopwatch,
        measure: Callable[[Evaluation], float] | None = None,
    ) -> None:
        self.plan, self.trainer, self.records, self.run_state = plan, trainer, records, run_state
        self.clock, self.measure = clock, measure
        if not run_state.begun:
            run_state.evaluate_us = plan.evaluate.every_us

    def until(self, time_us: int) -> None:
        """Evaluate at the instants that time asks for, before anything happens at `time_us`."""
        run_state, every_us = self.run_state, self.plan.evaluate.every_us
        if every_us and run_state.evaluate_us < time_us:
            run_state.now_us = run_state.evaluate_us  # at later ones there is no other model
            run_state.evaluate_us += -(-(time_us - run_state.evaluate_us) // every_us) * every_us
            self._evaluate()

    def after_step(self) -> None:
        """Evaluate if the number of steps asks for it."""
        every = self.plan.evaluate.every_steps
        if self.run_state.step == 0 or (every > 0 and self.run_state.step % every == 0):
            self._evaluate()

    def last(self) -> None:
        """Evaluate the final model on every client."""
        whole = self.plan.evaluate.clients is not None
        self._evaluate(everybody=True, again=whole)

    def _evaluate(self, everybody: bool = False, again: bool = False) -> None:
        run_state, how = self.run_state, self.plan.evaluate
        if run_state.evaluated == run_state.step and not again:
            return
        run_state.evaluated = run_state.step
        split = how.split if everybody or how.clients is None else how.split + SOME
        result = self._found(split, how.split)
        if how.personal:
            self._found(split, how.split + PERSONAL, personal=True)
        if self.measure is not None or "accuracy" in self.plan.selector.needs:
            self._learn(result())

    def _found(self, split: str, name: str, *, personal: bool = False) -> Pending[Evaluation]:
        """Evaluate the current model, and record it under this name."""
        with self.clock.part("evaluate"):
            result = self.trainer.evaluate(split, personal=personal)

        def waited() -> Evaluation:
            with self.clock.part("evaluate"):
                return result()

        with self.clock.part("record"):
            self.records.evaluation(self.run_state.step, self.run_state.now_us, name, waited)
        return waited

    def _learn(self, found: Evaluation) -> None:
        """Note what an evaluation tells to selectors and to the rules that end a run."""
        run_state, stop = self.run_state, self.plan.stop
        run_state.client_records.accuracy[found.clients] = found.accuracy
        if self.measure is None:
            return
        value = self.measure(found)
        sign = 1.0 if stop.rising else -1.0
        first = math.isnan(run_state.best) and not math.isnan(value)
        better = first or sign * (value - run_state.best) > stop.least
        if stop.patience is None or run_state.unimproved < stop.patience:  # else the run ends
            run_state.best, run_state.unimproved = (
                (value, 0) if better else (run_state.best, run_state.unimproved + 1)
            )
        run_state.reached |= stop.target is not None and sign * (value - stop.target) >= 0
