"""What a selector states of its choices, and asks of the trainer, on its way through dispatch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fedsim.common.errors import RunError
from fedsim.common.units import US
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.job_table import JobTable
from fedsim.engine.pacing import Pacing, fedbuff, overselect, sync
from fedsim.engine.record_words import STATUSES
from fedsim.engine.selector import Choice, Clients, Selector, View, stateless
from fedsim.engine.selector_view import _expected_us
from fedsim.engine.state import Dropout, Plan, RunState, Stop
from fedsim.engine.trainer import Pending, Stepped
from fedsim.plugins import build
from fedsim.runs.build import prepare
from fedsim.server.step_input import StepInput
from fedsim.training.evaluation import Evaluation
from fedsim.training.job import Cohort
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import World
from small import small
from timelines import StrictTrainer, plan_of, trace_of


def by_number(view: View, k: int, rng: np.random.Generator) -> Choice:
    """Choose the first clients, and state a probability from which client and step can be read."""
    chosen = view.candidates[:k]
    return Choice(chosen, (1 + chosen) / 10 + view.step / 1000)


@dataclass
class Seen(StrictTrainer):
    """Keeps what each step learned of inclusion, by client."""

    steps: list[list[tuple[int, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        StrictTrainer.__init__(self)

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        assert arrivals.inclusion is not None
        notes = arrivals.notes()["inclusion"]
        np.testing.assert_array_equal(notes, arrivals.inclusion)
        self.steps.append(list(zip(arrivals.clients.tolist(), notes.tolist(), strict=True)))
        return super().step(arrivals, cohort)


@dataclass
class Jobs:
    """Keeps client, attempt, status and inclusion of each job."""

    job_table: JobTable
    jobs: list[tuple[int, int, str, float]] = field(default_factory=list)

    def step(self, result: Pending[Stepped], rows: Any) -> None:
        self.crowded()

    def crowded(self) -> None:
        for row in self.job_table.take():
            numbers = (int(row["client"]), int(row["attempt"]), STATUSES[row["status"]])
            self.jobs.append((*numbers, float(row["inclusion"])))

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        pass


def play(trace: Trace, plan: Plan, run_state: RunState | None = None) -> tuple[Jobs, Seen]:
    run_state = run_state or RunState(trace.clients)
    records, trainer = Jobs(run_state.job_table), Seen()
    event_loop = EventLoop(World(trace), plan, trainer, records, run_state)
    event_loop.run()
    event_loop.abandon()
    records.crowded()
    return records, trainer


def plan(pacing: Pacing, n: int, selector: Any, steps: int = 4, **changes: Any) -> Plan:
    return plan_of(pacing, n, Stop(steps=steps), selector, **changes)


def test_what_a_cohort_was_chosen_with_reaches_its_jobs_and_its_step() -> None:
    records, trainer = play(trace_of([3.0, 1.0, 2.0, 4.0]), plan(sync(3), 4, by_number))
    assert [dict(step) for step in trainer.steps] == [
        {c: pytest.approx((1 + c) / 10 + s / 1000) for c in range(3)} for s in range(4)
    ]
    assert {(c, round(p, 6)) for c, _, _, p in records.jobs} == {
        (c, round((1 + c) / 10 + s / 1000, 6)) for c in range(3) for s in range(4)
    }


def test_jobs_that_no_step_uses_have_theirs_too() -> None:
    records, _ = play(trace_of([1.0, 2.0, 30.0]), plan(overselect(2, 1), 3, by_number, steps=2))
    late = [(c, p) for c, _, status, p in records.jobs if status == "late"]
    assert late == [(2, pytest.approx(0.3)), (2, pytest.approx(0.301))]


def test_each_of_single_places_has_its_own() -> None:
    """A selector that proposes nobody is asked for each place; stale updates keep the value of their dispatch."""
    _, trainer = play(trace_of([1.0, 2.0, 9.0]), plan(fedbuff(3, 1), 3, by_number, steps=8))
    for number, step in enumerate(trainer.steps):
        [(client, stated)] = step
        version = round(1000 * (stated - (1 + client) / 10))
        assert 0 <= version <= number
        assert stated == pytest.approx((1 + client) / 10 + version / 1000)


def test_a_job_that_is_tried_again_keeps_the_probability_of_its_choice() -> None:
    flaky = trace_of([5.0, 5.0], faults={0: [(2.0, 2.5)]})
    retrying = plan(sync(2), 2, by_number, steps=1, dropout=Dropout(retries=1, notice_us=US))
    records, trainer = play(flaky, retrying)
    assert [(c, a, s) for c, a, s, _ in records.jobs if c == 0] == [
        (0, 0, "lost"),
        (0, 1, "aggregated"),
    ]
    assert [p for c, _, _, p in records.jobs if c == 0] == [pytest.approx(0.1)] * 2
    assert dict(trainer.steps[0]) == {0: pytest.approx(0.1), 1: pytest.approx(0.2)}


@pytest.mark.parametrize(("pacing", "single"), [(sync(3), False), (fedbuff(3, 2), True)])
def test_uniform_states_places_by_candidates_and_nothing_of_proposals(pacing: Pacing, single: bool) -> None:
    uniform = build("selector", "uniform", {})
    records, trainer = play(trace_of([1.0 + i for i in range(6)]), plan(pacing, 6, uniform, steps=6))
    stated = [p for step in trainer.steps for _, p in step]
    first = [p for c, _, _, p in records.jobs if not math.isnan(p)]
    assert first
    assert first[:3] == [0.5] * 3, "the first cohort of both: three of six"
    assert any(map(math.isnan, stated)) == single
    if not single:
        assert set(stated) == {0.5}


def test_a_place_is_one_of_as_many_as_there_are_candidates_where_they_are_counted() -> None:
    uniform: Selector = build("selector", "uniform", {})
    trace = trace_of([1.0, 1.7, 2.3, 3.1, 4.9])
    _, fast = play(trace, plan(fedbuff(2, 1), 5, uniform, steps=50))
    _, counted = play(trace, plan(fedbuff(2, 1), 5, replace(uniform, propose=None), steps=50))
    assert {p for step in counted.steps[10:] for _, p in step} == {0.25}, "four of five do not work"
    assert all(math.isnan(p) for step in fast.steps[10:] for _, p in step)


def test_it_survives_a_checkpoint() -> None:
    """Jobs that run and wait keep theirs in the state of the run."""
    trace, made = trace_of([1.0, 2.0, 9.0]), plan(fedbuff(3, 2), 3, by_number, steps=3)
    whole, _ = play(trace, made)
    run_state = RunState(3)
    records = Jobs(run_state.job_table)
    event_loop = EventLoop(World(trace), made, Seen(), records, run_state)
    for number, _ in enumerate(event_loop.instants()):
        if number == 2:
            break
    restored = RunState.restored(run_state.state())
    np.testing.assert_array_equal(
        restored.job_table.table["inclusion"], run_state.job_table.table["inclusion"]
    )
    trainer = Seen()
    trainer.version = restored.step
    trainer.submit = trainer.forget = lambda cohort: None  # type: ignore[method-assign]
    trainer.step = lambda arrivals, cohort: super(StrictTrainer, trainer).step(arrivals, cohort)  # type: ignore[method-assign]
    rest = Jobs(restored.job_table)
    resumed = EventLoop(World(trace), made, trainer, rest, restored)
    resumed.run()
    resumed.abandon()
    rest.crowded()
    assert records.jobs + rest.jobs == whole.jobs


@pytest.mark.parametrize("need", ["norms", "updates"])
def test_updates_are_asked_for_by_those_who_declared_it(need: Any) -> None:
    asked: list[list[int]] = []

    def curious(view: View, k: int, rng: np.random.Generator) -> Clients:
        ask = view.update_norms if need == "norms" else view.update_products
        asked.append(ask(view.candidates).shape)  # type: ignore[arg-type]
        return view.candidates[:k]

    play(trace_of([1.0, 2.0]), plan(sync(2), 2, stateless(curious, needs=frozenset({need}))))
    assert asked == [(2,) if need == "norms" else (2, 2)] * 4
    with pytest.raises(RunError, match=f'must declare needs=frozenset\\(\\{{"{need}"\\}}\\)'):
        play(trace_of([1.0, 2.0]), plan(sync(2), 2, curious))


def test_losses_are_asked_for_by_those_who_declared_it() -> None:
    def curious(view: View, k: int, rng: np.random.Generator) -> Clients:
        return view.candidates[np.argsort(view.ask_losses(view.candidates))[:k]]

    with pytest.raises(RunError, match=r'asks for losses must declare needs=frozenset\(\{"asked"\}\)'):
        play(trace_of([1.0, 2.0]), plan(sync(2), 2, stateless(curious, needs=frozenset({"losses"}))))
    play(trace_of([1.0, 2.0]), plan(sync(2), 2, stateless(curious, needs=frozenset({"asked"}))))


def test_what_selectors_expect_holds_no_jitter_that_is_yet_to_be_drawn() -> None:
    expected = []
    for spread in (0.0, 1.0):
        spec = prepare(small(cost={"payload": "5 MB", "jitter": {"compute": spread, "uplink": spread}}))
        run_state, clients = RunState(spec.data.n_clients), np.arange(spec.data.n_clients)
        expected.append(_expected_us(spec.world, spec.plan.costs, run_state, clients))
    np.testing.assert_array_equal(*expected)


def test_who_declared_updates_may_ask_for_norms() -> None:
    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        assert np.isnan(view.update_norms(view.candidates)).all()
        return view.candidates[:k]

    play(trace_of([1.0, 2.0]), plan(sync(2), 2, stateless(select, needs=frozenset({"updates"}))))


@pytest.mark.parametrize(
    "read",
    [
        lambda view: np.nan_to_num(view.last_loss[view.candidates], nan=1e9),
        lambda view: np.argsort(-view.last_train_loss[view.candidates]),
        lambda view: view.last_loss_rms.max(),
        lambda view: view.candidates * view.last_batch_rms[view.candidates],
        lambda view: view.accuracy[view.candidates] < 50,
        lambda view: list(view.accuracy),
        lambda view: np.isnan(view.last_loss),
        lambda view: view.facts.label_counts[view.candidates].max(axis=1),
        lambda view: view.facts.label_counts.sum(),
    ],
)
def test_who_did_not_declare_losses_or_accuracy_cannot_read_them(read: Any) -> None:
    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        read(view)
        return view.candidates[:k]

    message = (
        r'reads view\.[\w.]+ without declaring it: return it with needs=frozenset\(\{"(losses|acc.*|labels)"'
    )
    with pytest.raises(RunError, match=f"a selector {message}"):
        event_loop_of(select)
    event_loop_of(select, needs=frozenset({"losses", "accuracy", "labels"}))


def test_who_is_not_clairvoyant_cannot_see_the_world() -> None:
    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        assert view.world.horizon_us > 0  # type: ignore[union-attr]
        return view.candidates[:k]

    with pytest.raises(
        RunError, match=r"reads view\.world without declaring it: return it with clairvoyant=True"
    ):
        event_loop_of(select)
    event_loop_of(select, clairvoyant=True)


def event_loop_of(select: Any, **declared: Any) -> None:
    """Run two steps of three clients with a selector."""
    plan = plan_of(sync(2), 3, Stop(steps=2), selector=stateless(select, **declared))
    run_state = RunState(3)
    loop = EventLoop(
        World(trace_of([1, 1, 1]), 3), plan, StrictTrainer(), Jobs(run_state.job_table), run_state
    )
    for _ in loop.instants():
        pass
