"""The event loop: pop an event; if enough updates arrived, take a step; fill the free places.

Time is integer microseconds of the world's clock. Which worker finishes first never matters. Events at equal times
happen in this order: arrivals, losses, the deadline, wake-ups; within a kind by client, then by row of the job table.
`docs/event_loop.md` defines the behaviour.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from fedsim import plugins
from fedsim.common.arrays import Ints
from fedsim.common.stopwatch import Stopwatch
from fedsim.engine.dispatch import Dispatcher
from fedsim.engine.evaluator import Evaluator
from fedsim.engine.state import Kind, Plan, Records, RunState
from fedsim.engine.trainer import Pending, Stepped, Trainer
from fedsim.server.rule_check import checked_state
from fedsim.server.step_input import StepInput
from fedsim.training.job import Cohort
from fedsim.worlds.world import World

_ARRIVE, _LOST, _DEADLINE, _WAKE = map(int, Kind)
_CROWD = 50_000
"""Jobs that may end between two steps before the loop asks the records to write them."""
_HOPELESS = 100_000
"""Losses between two updates after which a run without a time limit ends."""


class EventLoop:
    """Runs a plan in a world, from `run_state` on; without one, from the start."""

    def __init__(
        self,
        world: World,
        plan: Plan,
        trainer: Trainer,
        records: Records,
        run_state: RunState | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.world, self.plan, self.trainer, self.records = world, plan, trainer, records
        self.clock, self.ended_by = stopwatch or Stopwatch(), ""
        self.run_state = run_state = run_state or RunState(world.clients)
        if not run_state.begun:
            start = f"{plan.selector_named}, start"
            with plugins.contained(start):
                selector_state = plan.selector.start()
            expected = f"{start}: it must return a state that is a dict"
            run_state.selector_state = checked_state(selector_state, expected)
        self.dispatcher = Dispatcher(world, plan, trainer, run_state, self.clock)
        self.evaluator = Evaluator(plan, trainer, records, run_state, self.clock)
        self._begun: deque[tuple[int, int, int]] = deque(maxlen=2)
        """Of the last two steps, which may not be recorded yet: step, `JobTable.mark` and time at its beginning."""

    def run(self) -> str:
        """Run to the end; return the cause, as `ended_by` has it."""
        for _ in self.instants():
            pass
        return self.ended_by

    def instants(self, watch: Callable[[RunState], None] = lambda run_state: None) -> Iterator[None]:
        """Run to the end; pause after the first dispatch and after each instant, when a checkpoint may be taken.

        Then `ended_by` is `steps`, `time`, `bytes`, `target`, `patience`, `wall` or `world`. A caller that sets it
        during a pause ends the run for that cause. `watch` is called after each step.
        """
        self._watch = watch
        if not self.run_state.begun:
            self.evaluator.after_step()
            self.dispatcher.refill()
            self.run_state.begun = True
        yield
        while not (cause := self._ended()):
            self._advance()
            yield
        self.ended_by = cause
        self.evaluator.last()

    def abandon(self, steps: int | None = None) -> None:
        """End every job that is running or waits for its step as `unfinished`.

        `steps`: number of recorded steps. If a further one has begun, go back to its beginning before: with workers,
        its error may come when the loop is ahead of it.
        """
        run_state, job_table = self.run_state, self.run_state.job_table
        for step, mark, now_us in self._begun:
            if step == steps:
                run_state.step, run_state.now_us = step, now_us
                run_state.buffer, run_state.overdue = [], []
                job_table.go_back(mark, version=step)
                break
        waiting = np.array([*run_state.buffer, *run_state.overdue], dtype=np.int64)
        rows = np.concatenate([job_table.running(), waiting])
        rows = rows[np.argsort(job_table.table["id"][rows], kind="stable")]
        run_state.buffer, run_state.overdue, run_state.in_flight = [], [], 0
        self._end_now(rows, "unfinished")

    # The end of a run

    def _ended(self) -> str:
        """Return what ends the run now, an empty string if the run continues."""
        run_state, stop = self.run_state, self.plan.stop
        heap = run_state.heap
        if stop.steps is not None and run_state.step >= stop.steps:
            return "steps"
        if stop.moved_bytes is not None and run_state.moved_bytes >= stop.moved_bytes:
            return "bytes"
        if cause := self._watched_end() or self.ended_by:
            return cause
        if heap and heap[0][1] >= _DEADLINE:
            self._skip_void_events()
        if not heap or self.dispatcher.waits_in_vain() or self._loses_every_job():
            return "world"
        if stop.time_us is not None and heap[0][0] > stop.time_us:
            if self.evaluator.until(stop.time_us) and (cause := self._watched_end()):
                return cause
            run_state.now_us = stop.time_us
            return "time"
        return ""

    def _watched_end(self) -> str:
        """Return `target` or `patience` if the last evaluation ends the run, else an empty string."""
        run_state, stop = self.run_state, self.plan.stop
        if run_state.reached:
            return "target"
        spent = stop.patience is not None and run_state.unimproved >= stop.patience
        return "patience" if spent else ""

    def _loses_every_job(self) -> bool:
        """Whether jobs are only lost: sessions may be shorter than jobs, in a world that repeats for ever."""
        return self.run_state.in_vain >= _HOPELESS and self.plan.stop.time_us is None

    def _skip_void_events(self) -> None:
        heap = self.run_state.heap
        while heap and heap[0][1] >= _DEADLINE and not self.run_state.holds(heap[0]):
            heapq.heappop(heap)

    # Events

    def _advance(self) -> None:
        """Handle all events of the next instant, then fill the free places once.

        Clients that arrive together are thus replaced together, by jobs that start from the newest model.
        """
        run_state, pacing = self.run_state, self.plan.pacing
        now_us = run_state.heap[0][0]
        if self.evaluator.until(now_us) and self._watched_end():
            return
        if now_us != run_state.lost_us:
            run_state.lost_now.clear()
        run_state.now_us, stepped, run_state.stepped = now_us, run_state.stepped, False
        while (heap := run_state.heap) and heap[0][0] == now_us:  # handling an event may replace the heap
            _, kind, client, number = heapq.heappop(heap)
            cause = self._handle(kind, client, number)
            while cause:
                stepped = True
                self._step(cause)
                if run_state.step == self.plan.stop.steps:
                    run_state.stepped = True
                    run_state.wake(now_us)
                    return
                cause = "full" if self._full() else ""
            if run_state.heap and run_state.heap[0][1] >= _DEADLINE:
                self._skip_void_events()
        idle = not run_state.armed and (pacing.deadline_us is not None or not run_state.working)
        if stepped or pacing.refill == "arrival" or self.plan.dropout.replace or idle:
            self.dispatcher.refill()

    def _handle(self, kind: int, client: int, number: int) -> str:
        """Handle one event; return why the server steps now, or an empty string if it does not."""
        run_state = self.run_state
        if kind == _ARRIVE:
            self._land(client, number)
        elif kind == _LOST:
            self._lose(client, number)
        elif kind == _WAKE:
            run_state.wake_us = -1
        if self._full():
            return "full"
        if kind == _DEADLINE:
            return self._deadline()
        return "drained" if kind != _WAKE and self._drained() else ""

    def _full(self) -> bool:
        buffer = self.plan.pacing.buffer
        return buffer is not None and len(self.run_state.buffer) >= buffer

    def _land(self, client: int, row: int) -> None:
        run_state, job_table = self.run_state, self.run_state.job_table
        run_state.in_flight -= 1
        run_state.in_vain = 0
        job_table.land(row)
        run_state.client_records.land(client, run_state.now_us - job_table.number("dispatch_us", row))
        overdue = self._is_overdue(row)
        run_state.overdue_running -= overdue
        if run_state.step - job_table.number("version", row) > self.plan.most_stale(overdue=overdue):
            self._drop([row], "stale")
        elif overdue:
            run_state.overdue.append(row)
        else:
            run_state.buffer.append(row)

    def _lose(self, client: int, row: int) -> None:
        run_state = self.run_state
        run_state.in_flight -= 1
        overdue = self._is_overdue(row)
        run_state.overdue_running -= overdue
        run_state.client_records.lose(client)
        run_state.lost += 1
        run_state.lost_total += 1
        run_state.in_vain += 1
        run_state.lost_now.append(client)
        run_state.lost_us = run_state.now_us
        attempt = run_state.job_table.number("attempt", row)
        inclusion = run_state.job_table.table["inclusion"][row]
        self._end([row], "lost")
        if len(run_state.job_table.ended) >= _CROWD:
            self.records.crowded()
        again = attempt < self.plan.dropout.retries and not overdue
        if again and self.world.online(run_state.now_us)[client]:
            self.dispatcher.dispatch_one(client, attempt + 1, float(inclusion))

    def _is_overdue(self, row: int) -> bool:
        version = self.run_state.job_table.number("version", row)
        return self.plan.pacing.late == "history" and version < self.run_state.step

    def _deadline(self) -> str:
        run_state, pacing = self.run_state, self.plan.pacing
        run_state.armed = False
        waits = pacing.late == "keep" and len(run_state.buffer) < pacing.minimum
        return "" if waits else "deadline"

    def _drained(self) -> bool:
        """Whether a round is over because no client works for it and no further client can be chosen."""
        run_state, pacing = self.run_state, self.plan.pacing
        if pacing.refill != "step" or run_state.working or not (run_state.handed or run_state.buffer):
            return False
        if run_state.armed and pacing.late == "keep":
            return False
        if not self.plan.dropout.replace and run_state.handed:
            return True
        waits = run_state.waits
        self.dispatcher.refill()
        if not run_state.working:
            run_state.waits = waits  # not a wait: the server steps now
        return not run_state.working

    # A step

    def _step(self, cause: str) -> None:
        run_state, pacing = self.run_state, self.plan.pacing
        self._begun.append((run_state.step, run_state.job_table.mark(), run_state.now_us))
        # More updates wait than one step can take only if a fork made the buffer smaller.
        waiting, overdue, most = run_state.buffer, run_state.overdue, pacing.most_updates
        present, left, run_state.armed = waiting[:most], waiting[most:], False
        void = cause != "full" and pacing.late != "keep" and len(present) < pacing.minimum
        unused = present if void else []
        if void:
            self._end(unused, "void")
            present, run_state.buffer = [], []
        with self.clock.part("dispatch"):
            self.dispatcher.send()
        rows = np.array([*present, *overdue], dtype=np.int64)
        cohort = run_state.job_table.cohort(rows)
        self._hear(cohort)
        with self.clock.part("server"):
            result = self.trainer.step(self._arrivals(cohort, rows, len(present)), cohort)
        run_state.buffer, run_state.overdue = [], []
        self._end(present, "aggregated", run_state.step)
        self._end(overdue, "remembered")
        self._leave_behind(left)
        self._forget(unused)  # only now: after a fork, a job just cancelled may continue one of these
        with self.clock.part("record"):
            self.records.step(self._with_known(result, cause, void), rows)
        run_state.remembered.keep(self.plan.memory, cohort, len(present), run_state.step, run_state.now_us)
        run_state.step, run_state.step_us = run_state.step + 1, run_state.now_us
        run_state.lost = run_state.late = run_state.waits = 0
        run_state.handed = False
        self.evaluator.after_step()
        self._watch(run_state)

    def _hear(self, cohort: Cohort) -> None:
        """Let the selector see what a step's jobs report, if it needs their losses."""
        if "losses" in self.plan.selector.needs:
            with self.clock.part("train"):
                reports = self.trainer.reports(cohort)
            self.run_state.client_records.hear(cohort, reports)

    def _leave_behind(self, left: list[int]) -> None:
        """Treat the jobs that still run, and the updates in `left` that a step had no room for, as too late for it."""
        run_state, late = self.run_state, self.plan.pacing.late
        if late == "keep":
            run_state.buffer = left
        elif late == "history":
            run_state.late += run_state.working + len(left)
            run_state.overdue_running, run_state.overdue = run_state.in_flight, left
        else:
            self._cancel()
            run_state.late += len(left)
            if left:
                self._drop(left, "late")

    def _drop(self, rows: list[int], status: str) -> None:
        self._forget(rows)
        self._end(rows, status)

    def _forget(self, rows: list[int]) -> None:
        """Let the trainer drop jobs, last first, because it restores what clients keep job by job."""
        if rows:
            self.dispatcher.send()
            self.trainer.forget(self.run_state.job_table.cohort(np.array(rows[::-1], dtype=np.int64)))

    def _end(self, rows: Ints | list[int], status: str, step: int = -1) -> None:
        self.run_state.moved_bytes += self.run_state.job_table.end(rows, status, step)

    def _arrivals(self, cohort: Cohort, rows: Ints, present: int) -> StepInput:
        run_state, clients, audit = self.run_state, cohort.clients, self.plan.audit
        staleness, records = run_state.step - cohort.versions, run_state.client_records
        records.use(clients[:present], run_state.step, staleness[:present])
        known = records, run_state.remembered, self.plan.memory, self.plan.costs
        return StepInput(
            step=run_state.step,
            clients=clients,
            staleness=staleness,
            n_samples=self.plan.facts.n_samples[clients],
            local_steps=self.plan.costs.steps_done(clients, cohort.shares),
            online=np.flatnonzero(self.world.online(run_state.now_us)),
            present=present,
            now_us=run_state.now_us,
            starts=cohort.start_versions,
            needed=self._needed(present),
            jobs=cohort.ids,
            inclusion=run_state.job_table.table["inclusion"][rows],
            audit=audit.of_step(run_state.step, run_state.now_us, *known, clients) if audit else None,
        )

    def _needed(self, present: int) -> Ints:
        """Return the versions that other jobs than the first `present` of the buffer start from, now or later."""
        job_table, waiting = self.run_state.job_table, self.run_state.buffer[present:]
        rows = np.append(job_table.running(), np.array(waiting, dtype=np.int64))
        starts = job_table.table["start"][rows]
        if self.plan.start == "last":
            starts = np.append(starts, self.run_state.client_records.received_versions())
        return np.unique(starts)

    def _with_known(self, result: Pending[Stepped], cause: str, void: bool) -> Pending[Stepped]:
        """Return a step's result with what the event loop knows about the step."""
        run_state = self.run_state
        known = {
            "step": run_state.step,
            "time_us": run_state.now_us,
            "cause": cause,
            "lost": run_state.lost,
            "late": run_state.late,
            "waits": run_state.waits,
            "online": int(self.world.online(run_state.now_us).sum()),
            "in_flight": run_state.in_flight,
        } | ({"status": "void"} if void else {})

        def waited() -> Stepped:
            with self.clock.part("train"):
                return result().known(known)

        return waited

    def _cancel(self) -> None:
        """End all running jobs: as lost if they were lost already, else as late."""
        run_state, job_table = self.run_state, self.run_state.job_table
        rows = job_table.running()
        if not len(rows):
            return
        run_state.heap = [e for e in run_state.heap if e[1] >= _DEADLINE and run_state.holds(e)]
        heapq.heapify(run_state.heap)
        run_state.in_flight = 0
        self.trainer.forget(job_table.cohort(rows))
        run_state.client_records.busy[job_table.table["client"][rows]] = False
        lost = self._end_now(rows, "late")
        run_state.lost += lost
        run_state.lost_total += lost
        run_state.late += len(rows) - lost

    def _end_now(self, rows: Ints, status: str) -> int:
        """End jobs now with `status`, or as lost if they were lost unnoticed; return the number of the latter."""
        job_table, now_us = self.run_state.job_table, self.run_state.now_us
        jobs = job_table.table[rows]
        over = jobs["end_us"] <= now_us
        for dispatch_us in np.unique(jobs["dispatch_us"][~over]).tolist():
            self.dispatcher.cut(rows[~over & (jobs["dispatch_us"] == dispatch_us)], dispatch_us)
        lost = over & (jobs["ok"] == 0)
        self._end(rows, status)
        job_table.amend(rows[lost], "lost")
        return int(lost.sum())
