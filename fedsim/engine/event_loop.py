"""The one loop: pop an event; if enough updates arrived, take a step; fill the free places.

Time is integer microseconds of the world's clock. The loop never looks at which worker finished first. Equal times are
ordered by meaning: arrivals, then losses, then the deadline, then waking up; among equals by client, then job.
`docs/pacing.md` says in words what is written here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from fedsim.common import plugins
from fedsim.common.stopwatch import Stopwatch
from fedsim.engine.dispatch import Handout
from fedsim.engine.evaluator import Evaluator
from fedsim.engine.selector import state_of
from fedsim.engine.state import Course, Ints, Kind, Plan, Records
from fedsim.engine.trainer import Pending, Stepped, Trainer
from fedsim.server.step_input import Arrivals
from fedsim.training.evaluation import Evaluation
from fedsim.training.job import Cohort
from fedsim.worlds.world import World

_ARRIVE, _LOST, _DEADLINE, _WAKE = map(int, Kind)
_CROWD = 50_000
"""Jobs that may end without a step before they are written."""


class Timeline:
    """Runs a plan in a world.

    Args:
        course: where the run stands, the start of one by default.
        watch: called after each step, for progress.
        measure: the watched metric of an evaluation, if `plan.stop` has one.
        out_of_time: whether the wall clock allows no further step.
        between: called when the first work is handed out and after each instant, when the course is whole and may
            be saved.
    """

    def __init__(
        self,
        world: World,
        plan: Plan,
        trainer: Trainer,
        records: Records,
        course: Course | None = None,
        stopwatch: Stopwatch | None = None,
        watch: Callable[[Course], None] = lambda course: None,
        measure: Callable[[Evaluation], float] | None = None,
        out_of_time: Callable[[], bool] = lambda: False,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self.world, self.plan, self.trainer, self.records = world, plan, trainer, records
        self.clock = stopwatch or Stopwatch()
        self.watch, self.out_of_time, self.between = watch, out_of_time, between
        self.course = course = course or Course(world.clients)
        if not course.begun:
            with plugins.contained("a selector's start"):
                found = plan.selector.start()
            course.selector_state = state_of(found, "a selector's start")
        self.handout = Handout(world, plan, trainer, course, self.clock)
        self.evaluator = Evaluator(plan, trainer, records, course, self.clock, measure)

    def run(self) -> str:
        """Run to the end; return what ended it: `steps`, `time`, `bytes`, `target`, `patience`, `wall` or `world`."""
        if not self.course.begun:
            self.evaluator.after_step()
            self.handout.refill()
            self.course.begun = True
            self.between()
        while (ended_by := self._ended()) is None:
            self._advance()
            self.between()
        self.evaluator.last()
        return ended_by

    def abandon(self) -> None:
        """Record every job that is still running, or waiting for its step, as unfinished."""
        course, ledger = self.course, self.course.ledger
        rows = np.concatenate([ledger.running(), np.array([*course.buffer, *course.overdue], dtype=np.int64)])
        rows = rows[np.argsort(ledger.table["id"][rows], kind="stable")]
        course.buffer, course.overdue, course.in_flight = [], [], 0
        self._end_now(rows, "unfinished")

    # What ends a run

    def _ended(self) -> str | None:
        course, stop = self.course, self.plan.stop
        heap = course.heap
        if stop.steps is not None and course.step >= stop.steps:
            return "steps"
        if stop.moved_bytes is not None and course.moved_bytes >= stop.moved_bytes:
            return "bytes"
        if course.reached:
            return "target"
        if stop.patience is not None and course.unimproved >= stop.patience:
            return "patience"
        if self.out_of_time():
            return "wall"
        if heap and heap[0][1] >= _DEADLINE:
            self._skip_void_events()
        if not heap or self.handout.waits_in_vain():
            return "world"
        if stop.time_us is not None and heap[0][0] > stop.time_us:
            self.evaluator.until(stop.time_us)
            course.now_us = stop.time_us
            return "time"
        return None

    def _skip_void_events(self) -> None:
        heap = self.course.heap
        while heap and heap[0][1] >= _DEADLINE and not self.course.holds(heap[0]):
            heapq.heappop(heap)

    # What happens

    def _advance(self) -> None:
        """Handle all that happens at the next instant, then fill the free places once.

        So clients that arrive together are replaced together, by work on the newest model.
        """
        course, pacing = self.course, self.plan.pacing
        now_us = course.heap[0][0]
        self.evaluator.until(now_us)
        if now_us != course.lost_us:
            course.lost_now.clear()
        course.now_us, stepped = now_us, False
        while (heap := course.heap) and heap[0][0] == now_us:  # handling an event may replace the heap
            _, kind, client, number = heapq.heappop(heap)
            cause = self._handle(kind, client, number)
            while cause:
                stepped = True
                self._step(cause)
                if course.step == self.plan.stop.steps:
                    return
                cause = "full" if self._full() else ""
            if course.heap and course.heap[0][1] >= _DEADLINE:
                self._skip_void_events()
        idle = not course.armed and (pacing.deadline_us is not None or not course.working)
        if stepped or pacing.refill == "arrival" or self.plan.dropout.replace or idle:
            self.handout.refill()

    def _handle(self, kind: int, client: int, number: int) -> str:
        """Let one event happen; say why the server steps now, or return an empty text."""
        course = self.course
        if kind == _ARRIVE:
            self._land(client, number)
        elif kind == _LOST:
            self._lose(client, number)
        elif kind == _WAKE:
            course.wake_us = -1
        if self._full():
            return "full"
        if kind == _DEADLINE:
            return self._deadline()
        return "drained" if kind != _WAKE and self._drained() else ""

    def _full(self) -> bool:
        buffer = self.plan.pacing.buffer
        return buffer is not None and len(self.course.buffer) >= buffer

    def _land(self, client: int, row: int) -> None:
        course, ledger = self.course, self.course.ledger
        course.in_flight -= 1
        ledger.land(row)
        course.known.land(client, course.now_us - ledger.number("dispatch_us", row))
        overdue, limit = self._is_overdue(row), self.plan.pacing.max_staleness
        course.overdue_running -= overdue
        if overdue:
            course.overdue.append(row)
        elif limit is not None and course.step - ledger.number("version", row) > limit:
            self._drop([row], "stale")
        else:
            course.buffer.append(row)

    def _lose(self, client: int, row: int) -> None:
        course = self.course
        course.in_flight -= 1
        overdue = self._is_overdue(row)
        course.overdue_running -= overdue
        course.known.lose(client)
        course.lost += 1
        course.lost_total += 1
        course.lost_now.append(client)
        course.lost_us = course.now_us
        attempt = course.ledger.number("attempt", row)
        self._end([row], "lost")
        if len(course.ledger.ended) >= _CROWD:
            self.records.crowded()
        again = attempt < self.plan.dropout.retries and not overdue
        if again and self.world.online(course.now_us)[client]:
            self.handout.give_one(client, attempt + 1)

    def _is_overdue(self, row: int) -> bool:
        course = self.course
        return self.plan.pacing.late == "history" and course.ledger.number("version", row) < course.step

    def _deadline(self) -> str:
        course, pacing = self.course, self.plan.pacing
        course.armed = False
        waits = pacing.late == "keep" and len(course.buffer) < pacing.minimum
        return "" if waits else "deadline"

    def _drained(self) -> bool:
        """Whether a round is over because nobody works for it any more, and nobody can be asked to."""
        course, pacing = self.course, self.plan.pacing
        if pacing.refill != "step" or course.working or not (course.handed or course.buffer):
            return False
        if course.armed and pacing.late == "keep":
            return False
        if not self.plan.dropout.replace and course.handed:
            return True
        waits = course.waits
        self.handout.refill()
        if not course.working:
            course.waits = waits  # nobody waits for a client: the server steps now
        return not course.working

    # A step

    def _step(self, cause: str) -> None:
        course, pacing, ledger = self.course, self.plan.pacing, self.course.ledger
        # More wait than a step can have only if a fork made the buffer smaller.
        waiting, overdue, most = course.buffer, course.overdue, pacing.most_updates
        present, left, course.armed = waiting[:most], waiting[most:], False
        void = cause != "full" and pacing.late != "keep" and len(present) < pacing.minimum
        unused = present if void else []
        if void:
            self._end(unused, "void")
            present, course.buffer = [], []
        with self.clock.part("dispatch"):
            self.handout.send()
        rows = np.array([*present, *overdue], dtype=np.int64)
        cohort = ledger.cohort(rows)
        if "losses" in self.plan.selector.needs:
            with self.clock.part("train"):
                reports = self.trainer.reports(cohort)
            course.known.hear(cohort, reports)
        arrivals = self._arrivals(cohort, course.step - cohort.versions, len(present))
        with self.clock.part("server"):
            result = self.trainer.step(arrivals, cohort)
        course.buffer, course.overdue = [], []  # only now: a step that fails leaves its jobs unfinished
        self._end(present, "aggregated", course.step)
        self._end(overdue, "remembered")
        if pacing.cancels:
            self._cancel()
        elif pacing.late == "history":
            course.late += course.working
            course.overdue_running = course.in_flight
        self._put_off(left)
        self._forget(unused)  # after a fork, a job that was cancelled may have gone on from one of these
        self._record_step(cause, result, void, rows)
        course.step, course.step_us = course.step + 1, course.now_us
        course.lost = course.late = course.waits = 0
        course.handed = False
        self.evaluator.after_step()
        self.watch(course)

    def _put_off(self, rows: list[int]) -> None:
        """Do to updates for which a step had no room what it does to those that are still under way."""
        course, late = self.course, self.plan.pacing.late
        if late == "keep":
            course.buffer = rows
            return
        course.late += len(rows)
        if late == "history":
            course.overdue = rows
        elif rows:
            self._drop(rows, "late")

    def _drop(self, rows: list[int], status: str) -> None:
        self._forget(rows)
        self._end(rows, status)

    def _forget(self, rows: list[int]) -> None:
        """Let the trainer drop jobs, the last first: what clients keep goes back job by job."""
        if rows:
            self.handout.send()
            self.trainer.forget(self.course.ledger.cohort(np.array(rows[::-1], dtype=np.int64)))

    def _end(self, rows: Ints | list[int], status: str, step: int = -1) -> None:
        self.course.moved_bytes += self.course.ledger.end(rows, status, step)

    def _arrivals(self, cohort: Cohort, staleness: Ints, present: int) -> Arrivals:
        course, clients = self.course, cohort.clients
        course.known.use(clients[:present], course.step, staleness[:present])
        still = np.append(course.ledger.running(), np.array(course.buffer[present:], dtype=np.int64))
        versions = course.ledger.table["version"][still]
        return Arrivals(
            step=course.step,
            clients=clients,
            staleness=staleness,
            n_samples=self.plan.facts.n_samples[clients],
            online=np.flatnonzero(self.world.online(course.now_us)),
            present=present,
            now_us=course.now_us,
            oldest_version=int(versions.min(initial=course.step)),
            started=bool((versions == course.step).any()),
            jobs=cohort.ids,
            audit=self.plan.audit.cohort(course.step, course.now_us, course.known)
            if self.plan.audit
            else None,
        )

    def _record_step(self, cause: str, result: Pending[Stepped], void: bool, rows: Ints) -> None:
        course = self.course
        known = {
            "step": course.step,
            "time_us": course.now_us,
            "cause": cause,
            "lost": course.lost,
            "late": course.late,
            "waits": course.waits,
            "online": int(self.world.online(course.now_us).sum()),
            "in_flight": course.in_flight,
        } | ({"status": "void"} if void else {})

        def waited() -> Stepped:
            with self.clock.part("train"):
                return result().known(known)

        with self.clock.part("record"):
            self.records.step(waited, rows)

    def _cancel(self) -> None:
        course, ledger = self.course, self.course.ledger
        rows = ledger.running()
        if len(rows):
            course.heap = [event for event in course.heap if event[1] >= _DEADLINE and course.holds(event)]
            heapq.heapify(course.heap)
            course.in_flight = 0
            self.trainer.forget(ledger.cohort(rows))
            course.known.busy[ledger.table["client"][rows]] = False
            gone = self._end_now(rows, "late")
            course.lost += gone
            course.lost_total += gone
            course.late += len(rows) - gone

    def _end_now(self, rows: Ints, status: str) -> int:
        """End jobs wherever they are; returns how many of them had been lost before, and nobody had noticed."""
        ledger, now_us = self.course.ledger, self.course.now_us
        jobs = ledger.table[rows]
        over = jobs["end_us"] <= now_us
        for dispatch_us in np.unique(jobs["dispatch_us"][~over]).tolist():
            self.handout.cut(rows[~over & (jobs["dispatch_us"] == dispatch_us)], dispatch_us)
        gone = over & (jobs["ok"] == 0)
        self._end(rows, status)
        ledger.amend(rows[gone], "lost")
        return int(gone.sum())
