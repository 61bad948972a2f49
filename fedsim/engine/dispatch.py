"""Dispatch: choose clients, give each a job, fix the job's outcome, and wake up later if places stay free."""

from __future__ import annotations

import heapq
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import RunError
from fedsim.common.rng import Draws, Numbers
from fedsim.common.stopwatch import Stopwatch
from fedsim.common.units import US
from fedsim.engine.selector import Choice, checked_choice, proposed
from fedsim.engine.selector_view import first_view
from fedsim.engine.state import Kind, Plan, RunState
from fedsim.engine.trainer import Trainer
from fedsim.server.rule_check import checked_state
from fedsim.training.job import Cohort
from fedsim.worlds.job_outcomes import Outcomes, without
from fedsim.worlds.world import World

_ARRIVE, _LOST = int(Kind.ARRIVE), int(Kind.LOST)
_AGAIN_US = US
"""Shortest time after a loss until the client may be drawn again, unless another event comes first."""


class Dispatcher:
    """Chooses clients and dispatches jobs to them; reads and changes the run state."""

    def __init__(
        self, world: World, plan: Plan, trainer: Trainer, run_state: RunState, clock: Stopwatch
    ) -> None:
        self.world, self.plan, self.trainer, self.run_state = world, plan, trainer, run_state
        self._select, self._world, self._dispatch = map(clock.part, ("select", "world", "dispatch"))
        self._view = first_view(world, plan, trainer, run_state)
        self._draws = Draws(plan.seed, "select")
        self._proposals = self._first_proposals()
        alike = plan.start == "current" and plan.costs.plain and plan.costs.work.slowness == (1.0, 1.0, 1.0)
        self._single = world.single if alike and not plan.dropout.partial and plan.droppers is None else None
        work = plan.costs.work
        columns = (work.download_bytes, work.samples, work.upload_bytes)
        self._busy: Any = run_state.client_records.busy.data
        """A memoryview of the column: reading one entry is faster than from the array."""
        self._unsent: list[int] = []
        """Rows of single jobs, all from the current version, that the trainer has not received yet."""
        self._amounts = [np.ascontiguousarray(column, dtype=np.float64).tolist() for column in columns]

    def refill(self) -> None:
        """Fill the free places; if some stay free, schedule an event that tries again."""
        run_state, pacing = self.run_state, self.plan.pacing
        taken = 0 if pacing.refill == "arrival" else len(run_state.buffer)
        places = pacing.concurrency - run_state.working - taken
        if pacing.late == "keep" and (run_state.working or places <= 0):
            self.arm()
        if places <= 0:
            return
        with self._select:
            client = self._choose_one() if places == 1 else None
            if client is None:
                chosen = self._choose(places)
        if client is not None:
            self.dispatch_one(client)
            return
        if len(chosen) == 1:
            self.dispatch_one(int(chosen.clients[0]), inclusion=float(chosen.inclusion[0]))
        elif len(chosen):
            self.dispatch(chosen)
        elif not run_state.working:
            run_state.waits += 1
        keeps_filling = pacing.refill == "arrival" or self.plan.dropout.replace
        if not run_state.working or (keeps_filling and len(chosen) < places):
            self._wake_later()

    def waits_in_vain(self) -> bool:
        """Whether no client has worked for two laps of the world in a run without a time limit.

        Where several clients must be online together, a lap is one after which all of them are as before, at most 100
        times the longest.
        """
        run_state = self.run_state
        if run_state.in_flight or self.plan.stop.time_us is not None:
            return False
        waiting = [*run_state.buffer, *run_state.overdue]
        if waiting and run_state.armed:  # the deadline's step will use them
            return False
        arrived_us = run_state.job_table.table["end_us"][waiting].max(initial=0)
        last_us = max(run_state.step_us, run_state.lost_us, arrived_us)
        lap_us = self.world.common_lap_us if self.plan.pacing.least_candidates > 1 else self.world.lap_us
        return bool(run_state.now_us - last_us > 2 * lap_us)

    def _choose_one(self) -> int | None:
        """Choose a client for a single place without listing all candidates.

        Returns None if the selector proposes no clients, or if none of those proposed is a candidate.
        """
        run_state = self.run_state
        if self._proposals is None or (run_state.buffer and self.plan.pacing.refill == "step"):
            return None
        online, busy, lost = self.world.peek(run_state.now_us), self._busy, run_state.lost_now
        client: int
        for client in self._proposals.of(run_state.draws):
            if online[client] and not busy[client] and client not in lost:
                run_state.draws += 1
                return client
        return None

    def _first_proposals(self) -> Numbers | None:
        selector, n = self.plan.selector, self.world.clients
        if selector.propose is None or self.plan.pacing.least_candidates > 1:  # candidates must be counted
            return None
        if self.plan.inclusion:  # a proposed client's is unknown
            return None
        named = self.plan.selector_named
        return Numbers(self.plan.seed, "select one", lambda numbers: proposed(selector, numbers, n, named))

    def _candidates(self) -> Ints:
        """Return the clients that are online and idle, not lost at this instant, and not yet part of this round."""
        run_state = self.run_state
        free = self.world.online(run_state.now_us) > run_state.client_records.busy
        if run_state.lost_now:
            free[run_state.lost_now] = False
        if run_state.buffer and self.plan.pacing.refill == "step":
            free[run_state.job_table.table["client"][run_state.buffer]] = False
        candidates: Ints = free.nonzero()[0]
        return candidates

    def _choose(self, places: int) -> Choice:
        """Return the selector's choice, empty if there are fewer candidates than `pacing.least_candidates`."""
        candidates = self._candidates()
        if len(candidates) < self.plan.pacing.least_candidates:
            return Choice.unknown(candidates[:0])
        run_state, selector, view = self.run_state, self.plan.selector, self._view
        k = min(places, len(candidates))
        view.now_us, view.step, view.step_us = run_state.now_us, run_state.step, run_state.step_us
        candidates.flags.writeable = False
        view.candidates = candidates
        answer: Any = selector.select(view, k, self._draws.at(run_state.draws), run_state.selector_state)
        named = self.plan.selector_named
        must = f"step {run_state.step}: {named} must return"
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise RunError(
                f"{must} clients and its new state, it returned {type(answer).__name__}; "
                "fedsim.engine.selector.stateless makes a selector without a state"
            )
        chosen, state = answer
        run_state.selector_state = checked_state(state, f"{must} a state that is a dict")
        run_state.draws += 1
        return checked_choice(chosen, view, k, named)

    def dispatch(self, choice: Choice, attempt: int = 0) -> None:
        """Dispatch a job to each of the chosen clients; `attempt` is as for `dispatch_one`."""
        self.arm()
        run_state, chosen = self.run_state, choice.clients
        run_state.handed = True
        with self._world:
            rows, fates = self._open(choice, attempt)
        seen_us = np.where(fates.ok, fates.end_us, fates.end_us + self.plan.dropout.notice_us)
        kinds = np.where(fates.ok, _ARRIVE, _LOST)
        run_state.heap.extend(
            zip(seen_us.tolist(), kinds.tolist(), chosen.tolist(), rows.tolist(), strict=True)
        )
        heapq.heapify(run_state.heap)
        run_state.next_job += len(chosen)
        run_state.in_flight += len(chosen)
        run_state.client_records.dispatch(chosen, run_state.step)
        with self._dispatch:
            useful = rows[self._useful(chosen, rows, fates.ok, fates.end_us)]
            if len(useful):
                self.send()
                self.trainer.submit(run_state.job_table.cohort(useful))

    def _open(self, choice: Choice, attempt: int) -> tuple[Ints, Outcomes]:
        """Enter one job per client into the job table; return their rows and outcomes."""
        run_state, costs, chosen = self.run_state, self.plan.costs, choice.clients
        nths = run_state.client_records.dispatched[chosen]
        shares = costs.shares(chosen, nths)
        if self.plan.dropout.partial and run_state.armed:
            shares = self._in_time(chosen, nths, shares)
        fates = self.world.outcomes(chosen, run_state.now_us, costs.of(chosen, nths, shares))
        ids = np.arange(run_state.next_job, run_state.next_job + len(chosen))
        versions, dispatch_us = np.full_like(ids, run_state.step), np.full_like(ids, run_state.now_us)
        last = self.plan.start == "last"
        starts = run_state.client_records.received_versions(chosen) if last else versions
        jobs = Cohort(ids, chosen, nths, versions, shares, dispatch_us, starts)
        if self.plan.droppers is not None:
            fates = without(fates, self.plan.droppers.drop(jobs))
        return run_state.job_table.open(jobs, attempt, fates, choice.inclusion), fates

    def dispatch_one(self, client: int, attempt: int = 0, inclusion: float = math.nan) -> None:
        """Dispatch a job to a single client; `attempt` counts earlier losses of the same work.

        inclusion: the probability with which the client was chosen, NaN if unknown, as for a proposed client.
        """
        self.arm()
        self.run_state.handed = True
        if not self._dispatch_fast(client, attempt, inclusion):
            self.dispatch(Choice(np.array([client]), np.array([inclusion])), attempt)

    def _dispatch_fast(self, client: int, attempt: int, inclusion: float) -> bool:
        """Dispatch a single job without arrays; return False if the plan or the world does not allow it."""
        if self._single is None:
            return False
        run_state, records, number = self.run_state, self.run_state.client_records, self.run_state.next_job
        with self._world:
            down, samples, up = self._amounts
            fate = self._single.outcome(client, run_state.now_us, down[client], samples[client], up[client])
            if fate is None:
                return False
            nth = int(records.dispatched[client])
            job = (number, client, nth, run_state.step)
            row = run_state.job_table.open_one(job, attempt, run_state.now_us, fate, inclusion)
        end_us, ok = fate[2], fate[3]
        seen_us, kind = (end_us, _ARRIVE) if ok else (end_us + self.plan.dropout.notice_us, _LOST)
        heapq.heappush(run_state.heap, (seen_us, kind, client, row))
        run_state.next_job = number + 1
        run_state.in_flight += 1
        records.dispatch(client, run_state.step)
        if ok and self._is_useful(end_us):
            self._unsent.append(row)
        return True

    def send(self) -> None:
        """Submit the single jobs dispatched since the last step; required before a step, `forget` or a checkpoint."""
        if self._unsent:
            rows, self._unsent = self._unsent, []
            self.trainer.submit(self.run_state.job_table.cohort(np.array(rows)))

    def _in_time(self, chosen: Ints, nths: Ints, shares: Floats) -> Floats:
        """Return shares [k] cut, for jobs that would miss the deadline, to the most whole epochs that arrive in time.

        Jobs that miss it even with one epoch keep their share.
        """
        epochs, shares = self.plan.costs.epochs, shares.copy()
        late = ~self._fits(chosen, nths, shares)
        most = math.ceil(shares.max() * epochs)  # `completeness` may draw more than `epochs`
        for share in (np.arange(most - 1, 0, -1) / epochs).tolist():
            less = np.flatnonzero(late & (shares > share))
            fits = less[self._fits(chosen[less], nths[less], np.full(len(less), share))]
            shares[fits], late[fits] = share, False
        return shares

    def _fits(self, clients: Ints, nths: Ints, shares: Floats) -> NDArray[np.bool_]:
        work = self.plan.costs.of(clients, nths, shares)
        return self.world.in_time(clients, self.run_state.now_us, work, self.run_state.deadline_us)

    def arm(self) -> None:
        """Set the deadline if the pacing has one and it is not set yet."""
        deadline_us = self.plan.pacing.deadline_us
        if deadline_us is not None and not self.run_state.armed:
            self.run_state.arm(deadline_us)

    def _is_useful(self, end_us: int) -> bool:
        """Whether a step can use an update that arrives at `end_us`; if not, the job is not trained."""
        run_state, stop_us = self.run_state, self.plan.stop.time_us
        in_time = not (self.plan.pacing.cancels and run_state.armed) or end_us <= run_state.deadline_us
        return in_time and (stop_us is None or end_us <= stop_us)

    def _useful(self, clients: Ints, rows: Ints, ok: NDArray[np.bool_], end_us: Ints) -> NDArray[np.bool_]:
        """Return [k] which of the jobs dispatched together a step can use; the others are not trained."""
        pacing, run_state = self.plan.pacing, self.run_state
        limit_us = math.inf if self.plan.stop.time_us is None else self.plan.stop.time_us
        if pacing.cancels and run_state.armed:
            limit_us = min(limit_us, run_state.deadline_us)
        useful: NDArray[np.bool_] = ok & (end_us <= limit_us)
        if pacing.cancels and pacing.buffer is not None and useful.sum() > pacing.buffer:
            among = np.flatnonzero(useful)
            first = among[np.lexsort((rows[among], clients[among], end_us[among]))[: pacing.buffer]]
            useful = np.zeros(len(rows), dtype=bool)
            useful[first] = True
        return useful

    def _wake_later(self) -> None:
        run_state = self.run_state
        wake_us = self.world.next_change(run_state.now_us)
        if run_state.lost_now and self.world.online(run_state.now_us)[run_state.lost_now].any():
            again_us = run_state.now_us + _AGAIN_US
            wake_us = again_us if wake_us is None else min(wake_us, again_us)
        if wake_us is not None and wake_us != run_state.wake_us:
            run_state.wake(wake_us)

    def cut(self, rows: Ints, dispatch_us: int) -> None:
        """End jobs dispatched at `dispatch_us` now, with the work and the transfers done so far."""
        jobs: Cohort = self.run_state.job_table.cohort(rows)
        work = self.plan.costs.of(jobs.clients, jobs.nths, jobs.shares)
        done = self.world.outcomes(jobs.clients, dispatch_us, work, until_us=self.run_state.now_us)
        self.run_state.job_table.cut(rows, done)
