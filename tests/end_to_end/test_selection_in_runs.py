"""What selectors are shown and state in whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim import analysis
from fedsim.common.errors import ConfigError, RunError
from fedsim.config.load import load_config
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.selector import Clients, View, stateless
from fedsim.engine.state import RunState
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.runs.build import prepare
from fedsim.runs.fork import At
from fedsim.runs.resume import resume
from fedsim.server.decision import Proposal
from fedsim.server.server import NO_STARTS, Server, Starts
from fedsim.server.step_input import StepInput
from fedsim.training.workbench import Workbench
from forked_runs import branch
from interrupted_runs import stopped_at
from small import run, small
from timelines import Book

SYNC = {"preset": "sync", "clients": 4}
BUFFERED = {"preset": "fedbuff", "concurrency": 6, "buffer": 3}
LATE = {"preset": "deadline", "clients": 6, "deadline": "10min", "late": "history"}


class Watched(Server):
    """Keeps the true norm of each update that a step was given, by client."""

    norms: dict[int, float]

    def propose(self, arrivals: StepInput, rows: Any, starts: Starts = NO_STARTS) -> Proposal:
        m = arrivals.m
        for i in (*range(m, len(arrivals.clients)), *range(m)):
            self.norms[int(arrivals.clients[i])] = float(rows[i].double().norm())
        return super().propose(arrivals, rows, starts)


@pytest.mark.parametrize(
    ("pacing", "rows"), [(SYNC, "start"), (BUFFERED, "start"), (BUFFERED, "current"), (LATE, "start")]
)
def test_updates_are_shown_from_the_step_on_that_received_them(pacing: dict[str, Any], rows: str) -> None:
    """Not those of clients that work, nor those that wait for a step; and never another's."""
    rule = {"name": "mifa", "rows": rows}
    spec = prepare(small(pacing=pacing, algorithm=rule, selection={"name": "divfl"}, stop={"steps": 10}))
    server = Watched(spec.server, spec.initial())
    server.norms = {}
    waited = list[int]()

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        everybody = np.arange(view.n_clients)
        expected = [server.norms.get(c, np.nan) for c in range(view.n_clients)]
        np.testing.assert_allclose(view.update_norms(everybody), expected, rtol=1e-9)
        squares = view.update_products(everybody).diagonal()
        np.testing.assert_allclose(np.sqrt(squares), expected, rtol=1e-5)
        known = ~np.isnan(expected)
        if pacing is not LATE:
            np.testing.assert_array_equal(known, view.last_step >= 0)
        waited.append(int((view.received > 0).sum() - known.sum()))
        return rng.permutation(view.candidates)[:k]

    run_state = RunState(spec.data.n_clients)
    plan = spec.plan
    object.__setattr__(plan, "selector", stateless(select, needs=frozenset({"updates"})))
    trainer = InlineTrainer(Workbench(spec.bench, spec.data), server)
    event_loop = EventLoop(spec.world, plan, trainer, Book(run_state), run_state)
    event_loop.run()
    assert len(waited) > 5
    assert (max(waited) > 0) == (pacing is BUFFERED), "some waited, and were not shown"


@pytest.mark.parametrize("name", ["divfl", "optimal_sampling", "ucb_cs", "f3ast"])
def test_it_goes_on_alike_after_a_kill_and_in_a_fork(name: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"selection": {"name": name}, "algorithm": {"name": "fedavg"}}
    whole = run(small(**changes, checkpoint={"every_steps": 1, "keep": "all"}), tmp_path / "whole")
    killed = stopped_at(5, small(**changes, checkpoint={"every_steps": 2}), tmp_path / "killed")
    assert resume(killed, workers=0).digest == whole.digest
    assert branch(whole.folder, At(step=3), out=tmp_path / "fork").digest == whole.digest
    stated = analysis.open_run(whole.folder).jobs["inclusion"].to_numpy()
    assert np.isnan(stated).all() == (name == "divfl")


def test_a_fork_may_begin_to_choose_by_updates(tmp_path: Path) -> None:
    """Its server then remembers what the parent's history holds: all clients that it needs are known."""
    parent = run(small(algorithm={"name": "mifa"}), tmp_path / "parent")
    for name in ("divfl", "optimal_sampling"):
        child = branch(parent.folder, At(step=4), f"selection.name={name}", out=tmp_path / name)
        stated = analysis.open_run(child.folder).frame("jobs")
        assert set(stated[stated.version < 4].inclusion.dropna()) <= {1.0} | {4 / n for n in range(4, 13)}
        assert (stated[stated.version > 4].inclusion.isna()).all() == (name == "divfl")


def test_the_rule_does_not_notice_a_selector_that_needs_updates(tmp_path: Path) -> None:
    """The same clients in the same order, chosen by name: the same model."""
    diverse = run(small(selection={"name": "divfl"}), tmp_path / "a").folder
    jobs = analysis.open_run(diverse).frame("jobs").sort_values("job")
    rows = "\n".join(f"{row.version},{row.client}" for row in jobs.itertuples())
    (tmp_path / "plan.csv").write_text(f"step,client\n{rows}\n")
    fixed = {"name": "fixed", "table": str(tmp_path / "plan.csv")}
    named = run(small(selection=fixed), tmp_path / "b").folder
    assert (diverse / "model.safetensors").read_bytes() == (named / "model.safetensors").read_bytes()


def test_memory_settings_hold_for_both_histories(tmp_path: Path) -> None:
    """Of so many remembered updates, rounded; the resolved configuration gives the same run without the budget."""
    changes: dict[str, Any] = {"selection": {"name": "divfl"}, "algorithm": {"name": "mifa"}}
    spec = prepare(small(**changes, memory={"history": "bfloat16", "slots": 5}))
    assert spec.server.updates is not None
    assert spec.server.history is not None
    assert spec.server.updates.remembered == spec.server.history.remembered == 5
    assert spec.server.updates.rounds
    assert spec.server.history.rounds
    tight = small(**changes, memory={"budget": "30 kB"})
    planned = prepare(tight).server
    assert planned.updates is not None
    assert planned.history is not None
    assert 0 < planned.updates.remembered == planned.history.remembered < 12
    alone = changes | {"algorithm": {"name": "fedavg"}}
    few = run(small(**alone, memory={"slots": 4}), tmp_path / "few")
    assert load_config(few.folder / "config.resolved.toml")[0].memory.slots == 4
    first = run(tight, tmp_path / "a")
    again = load_config(first.folder / "config.resolved.toml")[0]
    assert again.memory.budget is None
    assert again.memory.slots == planned.updates.remembered
    assert run(again, tmp_path / "b").digest == first.digest


def test_rules_weigh_by_the_probabilities_that_selectors_state(tmp_path: Path) -> None:
    """Of 12 clients that are always online each is chosen with probability 4 / 12, which is the share of a cohort."""
    calm = {"world": {"scenario": "stragglers", "horizon": "10h"}, "selection": {"name": "uniform"}}
    models = []
    for rate in ("known", "cohort", "count"):
        rule = {"name": "debiased", "rate": rate}
        folder = run(small(**calm, algorithm=rule), tmp_path / rate).folder
        models.append((folder / "model.safetensors").read_bytes())
    assert models[0] == models[1]
    assert models[0] != models[2]


@pytest.mark.parametrize(
    "changes",
    [
        {"pacing": {"preset": "sync", "clients": 1}},
        {"pacing": {"preset": "fedbuff", "buffer": 2, "concurrency": 4}, "normalise": True},
    ],
    ids=["one place", "ratios in a buffer"],
)
def test_probabilities_are_known_where_places_are_filled_one_at_a_time(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    rule = {"name": "debiased", "rate": "known"} | {k: v for k, v in changes.items() if k == "normalise"}
    config = small(algorithm=rule, selection={"name": "uniform"}, pacing=changes["pacing"])
    jobs = analysis.open_run(run(config, tmp_path).folder).frame("jobs")
    assert jobs.inclusion.between(0, 1, inclusive="right").all()


@pytest.mark.parametrize(
    "pacing",
    [
        {"preset": "fedbuff", "buffer": 2, "concurrency": 4},
        {"preset": "fedasync", "concurrency": 4},
        {"preset": "deadline", "clients": 4, "deadline": "1h", "late": "keep"},
        {"preset": "overselect", "clients": 3, "extra": 1},
    ],
    ids=lambda pacing: str(pacing["preset"]),
)
def test_chances_of_one_choice_are_no_rates_of_a_step_of_several(pacing: dict[str, Any]) -> None:
    config = small(
        algorithm={"name": "debiased", "rate": "known"}, selection={"name": "uniform"}, pacing=pacing
    )
    with pytest.raises(ConfigError, match=r"algorithm.rate: rule 'debiased' .* normalise = true"):
        prepare(config)


@pytest.mark.parametrize(
    "name",
    [
        "round_robin",
        "longest_absent",
        "fastest_first",
        "slowest_first",
        "ucb_cs",
        "fedcs",
        "availability_forecast",
        "refl",
    ],
)
def test_a_rule_that_divides_by_chances_refuses_a_selector_that_leaves_nothing_to_chance(name: str) -> None:
    deadline = {"preset": "deadline", "clients": 4, "deadline": "1h"}
    config = small(algorithm={"name": "fedstale", "rate": "known"}, selection={"name": name}, pacing=deadline)
    with pytest.raises(
        ConfigError, match=rf"selection.name: rule 'fedstale' .* '{name}' draws none but ties"
    ):
        prepare(config)


def test_a_rule_that_needs_probabilities_says_which_client_has_none(tmp_path: Path) -> None:
    config = small(algorithm={"name": "debiased", "rate": "known"}, selection={"name": "oort"})
    with pytest.raises(RunError, match=r"step 0, client \d+: expected the probability .* or rate = 'count'"):
        run(config, tmp_path)
