"""Every rule with every pacing, and both with every selector, takes its steps in a small world, or is refused with a
reason. Of the triples of the three a sixth is run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.config.run import AlgorithmSection
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.pacing import Pacing, deadline, fedasync, fedbuff, overselect, periodic, sync
from fedsim.engine.remembered import Memory
from fedsim.engine.state import RunState
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.runs.build import prepare
from fedsim.runs.spec import RunSpec
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import Stack, State
from fedsim.server.server import Server
from fedsim.training.workbench import Workbench
from small import small
from timelines import Book, assert_sound
from views import make

STEPS = 5
PACINGS: dict[str, Pacing] = {
    "sync": sync(3),
    "overselect": overselect(2, 2),
    "deadline": deadline(3, 25 * US),
    "fedbuff": fedbuff(4, 2),
    "fedasync": fedasync(3),
    "periodic": periodic(3, 25 * US),
    "late history": replace(deadline(4, 25 * US), late="history"),
    "max_staleness": replace(fedbuff(4, 2), max_staleness=0),
    "minimum": replace(deadline(4, 25 * US), minimum=3, least_candidates=4),
}
RULES: dict[str, dict[str, Any]] = {name: {"name": name} for name in plugins.names("rule")} | {
    "fedmdfg with a line search": {"name": "fedmdfg", "search": 3},
    "fedavg in external": {"name": "fedavg", "wrap": [{"name": "external"}]},
}
REFUSED = {
    ("fedavg", "layerwise"): "no inner products",
    ("fedlf", "layerwise"): "layer by layer already",
    ("fedlf", "external"): "remembers absent clients",
    ("fedlf", "with_absent"): "remembers absent clients",
}
SELECTORS = [name for name in plugins.names("selector") if name != "replayed"]


@dataclass(frozen=True)
class Outcome:
    """What a combination left behind."""

    book: Book
    event_loop: EventLoop
    server: Server


def config(**changes: Any) -> Any:
    """Eight clients with 16 samples each, jobs of 10 to 50 seconds, sessions of a minute or two."""
    options = {"mean_on": "80s", "mean_off": "20s"}
    tiny = {
        "task": {"name": "synthetic", "clients": 8, "sizes": "fixed", "samples": 20},
        "partition": None,
        "model": {"name": "softmax"},
        "world": {"scenario": "churn", "horizon": "2h", "options": options},
        "cost": {"payload": 100, "compute_scale": 150},
        "train": {"batch_size": "full", "lr": 0.02},
        "algorithm": {"name": "fedavg"},
        "pacing": {"preset": "sync", "clients": 3},
        "stop": {"steps": STEPS},
        "evaluate": {"every_steps": 2},
    }
    return small(**tiny | changes)


selector_of = cache(make)


@cache
def ground() -> RunSpec:
    """Return what all combinations share."""
    return prepare(config())


@cache
def bench(losses: bool, after: bool, client: str) -> Workbench:
    setup = ground()
    mode = setup.bench.mode if client == "plain" else "auto"
    return Workbench(replace(setup.bench, losses=losses, after=after, client=client, mode=mode), setup.data)


def server_of(algorithm: dict[str, Any], pacing: Pacing) -> Server:
    """Build the server of an `[algorithm]` table, as a run does."""
    section, setup = AlgorithmSection.model_validate(algorithm), ground()
    spec = replace(
        setup.server,
        rule=section.name,
        options=section.options,
        wrap=[wrapper.named() for wrapper in section.wrap],
        rows=section.rows,
        memory_us=section.memory,
        most_updates=pacing.concurrency,
        late_rows=pacing.concurrency if pacing.late == "history" else 0,
        history=None,
        norms=True,
        updates=HistoryPlan(pacing.concurrency, setup.data.n_clients),
    )
    return Server(spec, setup.initial())


def combine(server: Server, pacing: Pacing, selector: str = "uniform") -> Outcome:
    """Run STEPS steps with a server that has taken none."""
    setup, needs = ground(), server.algorithm.needs
    run_state = RunState(setup.data.n_clients)
    book = Book(run_state)
    chosen_by = selector_of(selector)
    evaluate = replace(setup.plan.evaluate, every_steps=2 * ("accuracy" in chosen_by.needs))
    start = server.algorithm.start
    chosen = {"pacing": pacing, "selector": chosen_by, "evaluate": evaluate, "start": start}
    plan = replace(setup.plan, memory=Memory(needs.memory), **chosen)
    trainer = InlineTrainer(bench(needs.losses, needs.after, server.algorithm.client or "plain"), server)
    event_loop = EventLoop(setup.world, plan, trainer, book, run_state)
    assert event_loop.run() == "steps"
    event_loop.abandon()
    book.crowded()
    return Outcome(book, event_loop, server)


def assert_in_order(found: Outcome) -> None:
    assert_sound(found.book, found.event_loop)
    assert len(found.book.steps) == STEPS
    assert found.server.params.isfinite().all()
    moved = [row["direction_norm"] for row in found.book.steps if row["status"] == "applied"]
    assert np.isfinite(moved).all()
    assert min(moved, default=1.0) > 0
    counted = found.server.participations.sum() - len(found.book.used())
    late = sum(e.status == "remembered" for e in found.book.jobs)
    assert counted == late


@contextmanager
def named(what: str) -> Iterator[None]:
    """Name the combination in whatever goes wrong."""
    try:
        yield
    except Exception as error:
        error.add_note(f"combination: {what}")
        raise


def refused(selector: str, pacing: Pacing) -> str | None:
    """Return why a selector cannot go with a pacing."""
    return "'fedcs' needs a deadline" if selector == "fedcs" and pacing.deadline_us is None else None


def dealt(rule: str, pacing: str) -> list[str]:
    """Return a sixth of the selectors: a rule meets the rest of them under its other pacings."""
    number = [*RULES].index(rule) + [*PACINGS].index(pacing)
    return SELECTORS[number % 6 :: 6]


def test_every_selector_meets_every_rule_and_every_pacing() -> None:
    met = {
        (rule, pacing, selector) for rule in RULES for pacing in PACINGS for selector in dealt(rule, pacing)
    }
    assert {(rule, selector) for rule, _, selector in met} == {(r, s) for r in RULES for s in SELECTORS}
    assert {(pacing, selector) for _, pacing, selector in met} == {(p, s) for p in PACINGS for s in SELECTORS}


@pytest.mark.parametrize("pacing", PACINGS)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_goes_with_a_pacing_and_with_selectors(rule: str, pacing: str) -> None:
    timing = PACINGS[pacing]
    server = server_of(RULES[rule], timing)
    if timing.late == "history" and not server.algorithm.needs.memory:
        late = {"preset": "deadline", "clients": 4, "deadline": "25s", "late": "history"}
        name = RULES[rule]["name"]
        reason = "starts clients" if server.algorithm.start == "last" else "does not"
        with pytest.raises(ConfigError, match=f"late: .*{name!r} {reason}"):
            prepare(config(algorithm=RULES[rule], pacing=late))
        return
    for selector in dealt(rule, pacing):
        with named(f"{rule}, {pacing}, {selector}"):
            if reason := refused(selector, timing):
                with pytest.raises(ConfigError, match=reason):
                    combine(copy.deepcopy(server), timing, selector)
            else:
                assert_in_order(combine(copy.deepcopy(server), timing, selector))


def test_the_small_world_has_all_that_can_happen() -> None:
    """Otherwise the combinations would be tried on plain sailing alone."""
    statuses = {
        pacing: {e.status for e in combine(server_of(RULES["mifa"], timing), timing).book.jobs}
        for pacing, timing in PACINGS.items()
    }
    assert {"aggregated", "late"} <= statuses["deadline"]
    assert any("lost" in seen for seen in statuses.values())
    assert "remembered" in statuses["late history"]
    assert "void" in statuses["minimum"]
    assert "stale" in statuses["max_staleness"]
    assert "unfinished" in statuses["fedbuff"]


@pytest.mark.parametrize("more", [{}, {"rows": "current"}, {"memory": "1min"}], ids=str)
@pytest.mark.parametrize("rule", ["fedavg", "fedlf"])
@pytest.mark.parametrize("wrapper", plugins.names("wrapper"))
def test_a_wrapped_rule_goes_with_buffered_pacing(wrapper: str, rule: str, more: dict[str, Any]) -> None:
    raw = {"lengths": "raw"} if (rule, wrapper) in {("fedlf", "clipped"), ("fedlf", "discounted")} else {}
    algorithm = {"name": rule, "wrap": [{"name": wrapper}], **raw, **more}
    reason = REFUSED.get((rule, wrapper))
    if reason:
        with pytest.raises(ValueError, match=f"wrapper '{wrapper}' of rule '{rule}': .*{reason}"):
            server_of(algorithm, PACINGS["fedbuff"])
        return
    assert_in_order(combine(server_of(algorithm, PACINGS["fedbuff"]), PACINGS["fedbuff"]))


@pytest.mark.parametrize("wrapper", plugins.names("wrapper"))
def test_a_line_search_goes_with_no_wrapper(wrapper: str) -> None:
    with pytest.raises(ValueError, match="searches for the length of its step"):
        server_of(RULES["fedmdfg with a line search"] | {"wrap": [{"name": wrapper}]}, PACINGS["sync"])


CURRENT = [
    (rule, pacing)
    for rule in ("fedavg", "fedlf", "mifa")
    for pacing in ("fedbuff", "fedasync", "periodic", "late history")
    if (rule, pacing) != ("fedavg", "late history")  # refused: fedavg remembers nobody
]


@pytest.mark.parametrize(("rule", "pacing"), CURRENT)
def test_rows_from_the_current_model_differ_only_where_jobs_are_stale(rule: str, pacing: str) -> None:
    start, current = (
        combine(server_of({"name": rule, "rows": rows}, PACINGS[pacing]), PACINGS[pacing])
        for rows in ("start", "current")
    )
    stale = [e for e in start.book.jobs if e.status == "remembered" or e.step > e.flight.job.version]
    assert start.book.rows() == current.book.rows()
    assert bool(stale) == (not torch.equal(start.server.params, current.server.params))


@pytest.mark.parametrize("rule", ["fedlf", "mifa"])
def test_whoever_is_remembered_has_been_seen(rule: str) -> None:
    """Also those of whom every update came too late for its step."""
    heard, found = listened({"name": rule}, PACINGS["late history"])
    late = {e.flight.job.client for e in found.book.jobs if e.status == "remembered"}
    assert late - {e.flight.job.client for e in found.book.used()}, "some only ever come late"
    known: set[int] = set()
    for stack in heard:
        remembered = set(stack.clients[stack.m :].tolist())
        known |= remembered
        assert remembered <= known
        assert stack.n_seen == len(known)
        assert (stack.participations >= 1).all()
        known |= set(stack.clients[: stack.m].tolist())


# What a rule sees under buffered pacing


def listened(algorithm: dict[str, Any], pacing: Pacing) -> tuple[list[Stack], Outcome]:
    """Return each Stack that the rule was given, and the outcome."""
    server, heard = server_of(algorithm, pacing), list[Stack]()
    weigh = server.algorithm.weigh

    def listen(stack: Stack, state: State) -> Any:
        heard.append(stack)
        return weigh(stack, state)

    server.algorithm = replace(server.algorithm, weigh=listen)
    return heard, combine(server, pacing)


@pytest.mark.parametrize(
    "algorithm", [{"name": "fedfv", "tau": 3}, {"name": "fedlf"}, {"name": "mifa"}], ids=str
)
@pytest.mark.parametrize("pacing", ["fedbuff", "fedasync", "max_staleness"])
def test_present_is_the_buffer_and_absent_the_history(algorithm: dict[str, Any], pacing: str) -> None:
    heard, found = listened(algorithm, PACINGS[pacing])
    memory = found.server.algorithm.needs.memory
    last: dict[int, tuple[int, int]] = {}
    remembered = 0
    for stack in heard:
        used = [e for e in found.book.used() if e.step == stack.step]
        staleness = [stack.step - e.flight.job.version for e in used]
        assert stack.clients[: stack.m].tolist() == [e.flight.job.client for e in used]
        assert stack.staleness[: stack.m].tolist() == staleness
        assert not stack.ages[: stack.m].any()
        present = set(stack.clients[: stack.m].tolist())
        absent = {
            client: (stack.step - step, stale)
            for client, (step, stale) in last.items()
            if client not in present and stack.step - step <= memory
        }
        ages, stale = (column[stack.m :].tolist() for column in (stack.ages, stack.staleness))
        seen = zip(stack.clients[stack.m :].tolist(), zip(ages, stale, strict=True), strict=True)
        assert dict(seen) == absent
        remembered += len(absent)
        last |= {e.flight.job.client: (stack.step, s) for e, s in zip(used, staleness, strict=True)}
    assert remembered > 0


def test_a_selector_that_goes_by_accuracies_needs_evaluations() -> None:
    for evaluate in ({"every_steps": 3}, {"every_steps": 0, "every": "1h"}):
        prepare(config(selection={"name": "tifl"}, evaluate=evaluate))
    never = {"every_steps": 0}
    prepare(config(selection={"name": "tifl", "policy": "static"}, evaluate=never))
    with pytest.raises(ConfigError, match="'tifl' needs the clients' accuracies: expected evaluate"):
        prepare(config(selection={"name": "tifl"}, evaluate=never))
