"""The one loop: pop an event; if enough updates arrived, take a step; fill the free places.

Time is integer microseconds of the world's clock. The loop never looks at a wall clock or at which worker finished
first, and no result of training can change when something happens. Equal times are ordered by meaning: arrivals,
then losses, then the deadline, then waking up; among equals by client, then job.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from fedsim.course import Course, Flight, Ints, Kind, Plan, Records
from fedsim.job import Job, Update
from fedsim.records import PERSONAL
from fedsim.rng import rng
from fedsim.selection import View, checked
from fedsim.server import Arrivals
from fedsim.stopwatch import Stopwatch
from fedsim.trainer import StepColumns, Trainer
from fedsim.world import Outcomes, Work, World


class Timeline:
    """Runs a plan in a world.

    Args:
        watch: called after each step, for progress.
    """

    def __init__(
        self,
        world: World,
        plan: Plan,
        trainer: Trainer,
        records: Records,
        stopwatch: Stopwatch | None = None,
        watch: Callable[[Course], None] = lambda course: None,
    ) -> None:
        self.world, self.plan, self.trainer, self.records = world, plan, trainer, records
        self.clock = stopwatch or Stopwatch()
        self.watch = watch
        self.course = Course(world.clients)

    def run(self) -> str:
        """Run to the end and return what ended it: `steps`, `time` or `world`."""
        self._evaluate()
        self._refill()
        while (ended_by := self._ended()) is None:
            self._advance()
        self._evaluate(last=True)
        return ended_by

    def abandon(self) -> None:
        """Record every job that is still running, or waiting for its step, as unfinished."""
        course = self.course
        flights = [*course.buffer, *course.running.values()]
        course.buffer, course.running = [], {}
        for flight in sorted(flights, key=lambda f: f.job.id):
            cut = self._cut(flight) if flight.end_us > course.now_us else flight
            self.records.job(cut, "unfinished", -1, None)

    def _ended(self) -> str | None:
        course, stop = self.course, self.plan.stop
        if stop.steps is not None and course.step >= stop.steps:
            return "steps"
        self._skip_void_events()
        if not course.heap:
            return "world"
        if stop.time_us is not None and course.heap[0][0] > stop.time_us:
            course.now_us = stop.time_us
            return "time"
        return None

    def _skip_void_events(self) -> None:
        course = self.course
        while course.heap and not self._holds(course.heap[0]):
            heapq.heappop(course.heap)

    def _holds(self, event: tuple[int, int, int, int]) -> bool:
        time_us, kind, _, number = event
        if kind == Kind.DEADLINE:
            return number == self.course.step
        if kind == Kind.WAKE:
            return time_us == self.course.wake_us
        return number in self.course.running

    def _advance(self) -> None:
        """Handle all that happens at the next instant, then fill the free places once.

        So clients that arrive together are replaced together, by work on the newest model.
        """
        course, pacing = self.course, self.plan.pacing
        course.now_us = course.heap[0][0]
        stepped = False
        while course.heap and course.heap[0][0] == course.now_us:
            _, kind, _, number = heapq.heappop(course.heap)
            cause = self._handle(Kind(kind), number)
            if cause:
                stepped = True
                self._step(cause)
                if course.step == self.plan.stop.steps:
                    return
            self._skip_void_events()
        if stepped or pacing.refill == "arrival" or not course.running:
            self._refill()

    def _handle(self, kind: Kind, number: int) -> str:
        """Let one event happen; say why the server steps now, or return an empty text."""
        if kind is Kind.ARRIVE:
            self._land(number)
        elif kind is Kind.LOST:
            self._lose(number)
        elif kind is Kind.WAKE:
            self.course.wake_us = -1
        return self._cause(kind)

    def _land(self, number: int) -> None:
        flight = self.course.running.pop(number)
        self.course.busy[flight.job.client] = False
        self.course.received[flight.job.client] += 1
        self.course.buffer.append(flight)

    def _lose(self, number: int) -> None:
        flight = self.course.running.pop(number)
        self.course.busy[flight.job.client] = False
        self.course.lost += 1
        self.course.lost_total += 1
        self.records.job(flight, "lost", -1, None)

    def _cause(self, kind: Kind) -> str:
        course, pacing = self.course, self.plan.pacing
        if len(course.buffer) >= pacing.buffer:
            return "full"
        if kind is Kind.DEADLINE:
            return "deadline"
        if pacing.refill == "step" and not course.running and kind is not Kind.WAKE:
            return "drained"
        return ""

    def _step(self, cause: str) -> None:
        course = self.course
        flights, course.buffer = course.buffer, []
        with self.clock.part("train"):
            updates = self.trainer.results([f.job for f in flights])
        used = [(f, u) for f, u in zip(flights, updates, strict=True) if u.report.finite]
        with self.clock.part("server"):
            columns = self.trainer.step(
                self._arrivals([f for f, _ in used], [u for _, u in used]), [u for _, u in used]
            )
        for flight, update in zip(flights, updates, strict=True):
            finite = update.report.finite
            self.records.job(
                flight, "aggregated" if finite else "nonfinite", course.step if finite else -1, update.report
            )
        if self.plan.pacing.cancels:
            self._cancel()
        self._record_step(cause, [f for f, _ in used], len(flights) - len(used), columns)
        course.step += 1
        course.lost = course.late = course.waits = 0
        self._evaluate()
        self.watch(course)

    def _arrivals(self, flights: Sequence[Flight], updates: Sequence[Update]) -> Arrivals:
        course = self.course
        clients = np.array([f.job.client for f in flights], dtype=np.int64)
        return Arrivals(
            step=course.step,
            clients=clients,
            staleness=course.step - np.array([f.job.version for f in flights], dtype=np.int64),
            n_samples=self.plan.n_samples[clients],
            reports=[u.report for u in updates],
            online=np.flatnonzero(self.world.online(course.now_us)),
        )

    def _record_step(
        self, cause: str, used: Sequence[Flight], nonfinite: int, columns: Callable[[], StepColumns]
    ) -> None:
        course = self.course
        staleness = [course.step - f.job.version for f in used]
        known: StepColumns = {
            "step": course.step,
            "time_us": course.now_us,
            "cause": cause,
            "updates": len(used),
            "lost": course.lost,
            "late": course.late,
            "nonfinite": nonfinite,
            "waits": course.waits,
            "online": int(self.world.online(course.now_us).sum()),
            "in_flight": len(course.running),
            "mean_staleness": float(np.mean(staleness)) if staleness else float("nan"),
        }
        self.records.step(lambda: known | columns())

    def _cancel(self) -> None:
        course = self.course
        flights, course.running = list(course.running.values()), {}
        course.late += len(flights)
        self.trainer.forget([f.job for f in flights])
        for flight in flights:
            course.busy[flight.job.client] = False
            self.records.job(self._cut(flight), "late", -1, None)

    def _cut(self, flight: Flight) -> Flight:
        """Return what a running job had done by now."""
        course, client = self.course, np.array([flight.job.client])
        done = self.world.outcomes(client, flight.dispatch_us, self._work(client), until_us=course.now_us)
        return _flights([flight.job], flight.dispatch_us, done)[0]

    def _work(self, clients: Ints) -> Work:
        work = self.plan.work
        return Work(work.download_bytes[clients], work.samples[clients], work.upload_bytes[clients])

    def _refill(self) -> None:
        course, pacing = self.course, self.plan.pacing
        places = pacing.concurrency - len(course.running)
        if places <= 0:
            return
        with self.clock.part("select"):
            candidates = np.flatnonzero(self.world.online(course.now_us) & ~course.busy)
            chosen = self._choose(candidates, min(places, len(candidates))) if len(candidates) else candidates
        if len(chosen):
            self._dispatch(chosen)
        elif not course.running:
            course.waits += 1
        if not course.running or (pacing.refill == "arrival" and len(chosen) < places):
            self._wake_later()

    def _choose(self, candidates: Ints, k: int) -> Ints:
        course = self.course
        view = View(
            now_us=course.now_us,
            step=course.step,
            candidates=_read_only(candidates),
            n_samples=_read_only(self.plan.n_samples),
            dispatched=_read_only(course.dispatched),
            received=_read_only(course.received),
        )
        chosen = self.plan.selector(view, k, rng(self.plan.seed, "select", course.draws))
        course.draws += 1
        return checked(chosen, view, k)

    def _dispatch(self, chosen: Ints) -> None:
        course = self.course
        with self.clock.part("world"):
            outcomes = self.world.outcomes(chosen, course.now_us, self._work(chosen))
        jobs = [
            Job(course.next_job + i, client, nth, course.step)
            for i, (client, nth) in enumerate(
                zip(chosen.tolist(), course.dispatched[chosen].tolist(), strict=True)
            )
        ]
        course.next_job += len(jobs)
        course.dispatched[chosen] += 1
        course.busy[chosen] = True
        flights = _flights(jobs, course.now_us, outcomes)
        for flight in flights:
            kind = Kind.ARRIVE if flight.ok else Kind.LOST
            heapq.heappush(course.heap, (flight.end_us, kind, flight.job.client, flight.job.id))
            course.running[flight.job.id] = flight
        self._set_deadline()
        with self.clock.part("dispatch"):
            self.trainer.submit(self._useful(flights))

    def _set_deadline(self) -> None:
        course, deadline_us = self.course, self.plan.pacing.deadline_us
        if deadline_us is not None and course.deadline_step != course.step:
            course.deadline_step = course.step
            heapq.heappush(course.heap, (course.now_us + deadline_us, Kind.DEADLINE, -1, course.step))

    def _useful(self, flights: list[Flight]) -> list[Job]:
        """Return the jobs whose update can still be used: the others need not be trained at all."""
        pacing, stop_us = self.plan.pacing, self.plan.stop.time_us
        arriving = [f for f in flights if f.ok and (stop_us is None or f.end_us <= stop_us)]
        if pacing.cancels:
            limit = None if pacing.deadline_us is None else self.course.now_us + pacing.deadline_us
            arriving = [f for f in arriving if limit is None or f.end_us <= limit]
            first = sorted(arriving, key=lambda f: (f.end_us, f.job.client, f.job.id))[: pacing.buffer]
            wanted = {f.job.id for f in first}
            arriving = [f for f in arriving if f.job.id in wanted]
        return [f.job for f in arriving]

    def _wake_later(self) -> None:
        course = self.course
        change = self.world.next_change(course.now_us)
        if change is not None and change != course.wake_us:
            course.wake_us = change
            heapq.heappush(course.heap, (change, Kind.WAKE, -1, -1))

    def _evaluate(self, last: bool = False) -> None:
        course, every = self.course, self.plan.evaluate_every
        due = course.step == 0 or last or (every > 0 and course.step % every == 0)
        if not due or course.evaluated == course.step:
            return
        course.evaluated = course.step
        with self.clock.part("evaluate"):
            split = self.plan.evaluate_split
            self.records.evaluation(course.step, course.now_us, split, self.trainer.evaluate(split))
            if self.plan.evaluate_personal:
                result = self.trainer.evaluate(split, personal=True)
                self.records.evaluation(course.step, course.now_us, split + PERSONAL, result)


def _flights(jobs: Sequence[Job], dispatch_us: int, outcomes: Outcomes) -> list[Flight]:
    columns = (
        outcomes.download_us,
        outcomes.compute_us,
        outcomes.end_us,
        outcomes.ok,
        outcomes.phase,
        outcomes.downloaded_bytes,
        outcomes.uploaded_bytes,
    )
    rows = zip(jobs, *(c.tolist() for c in columns), strict=True)
    return [Flight(job, dispatch_us, *values) for job, *values in rows]


def _read_only(array: Ints) -> Ints:
    view = array.view()
    view.flags.writeable = False
    return view
