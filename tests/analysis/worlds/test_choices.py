"""Regret of choices against all other choices of the same candidates, tried one by one, and shares of jobs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim import analysis
from fedsim.analysis.worlds.choices import participation_gap, selection_regret
from fedsim.common.errors import ConfigError, FolderError
from fedsim.common.units import HOUR_US
from fedsim.config.load import load_config
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.selector import Clients, View, stateless
from fedsim.engine.state import RunState
from fedsim.execution.null_trainer import NullTrainer
from fedsim.records.recorder import Recorder
from fedsim.runs.build import prepare
from fedsim.runs.fork import At
from fedsim.runs.spec import RunSpec
from forked_runs import branch
from small import run, small
from synthetic_runs import jobs_table, write_run

LIVELY: dict[str, Any] = {
    "cost": {"payload": "5 MB", "compute_scale": 10, "jitter": {"compute": 0.4, "uplink": 0.3}},
    "dropout": {"chance": 0.15, "notice": "20s", "retries": 1, "replace": True},
}
CASES: dict[str, dict[str, Any]] = {
    "sync": {},
    "overselect": {"pacing": {"preset": "overselect", "clients": 3, "extra": 2}},
    "fedbuff": {"pacing": {"preset": "fedbuff", "concurrency": 5, "buffer": 3}, "stop": {"steps": 12}},
    "lively": {**LIVELY, "pacing": {"preset": "sync", "clients": 4}},
    "late": {**LIVELY, "pacing": {"preset": "deadline", "clients": 5, "deadline": "90s", "late": "history"}},
    "minimum": {**LIVELY, "pacing": {"preset": "deadline", "clients": 5, "deadline": "60s", "minimum": 4}},
    "paused": {"dropout": {"leave": "pause_resume"}, "stop": {"steps": 12}},
    "dropped": {"adversary": {"name": "drop", "share": 0.3}},
}


def played(config: Any, select: Any, out: Path) -> tuple[analysis.Run, RunSpec]:
    """Run with a selector of the test; a real run of the same name lends its folder the rest."""
    folder = run(config, out).folder
    spec = prepare(config)
    object.__setattr__(spec.plan, "selector", select)
    run_state = RunState(spec.data.n_clients)
    records = out / "records"
    records.mkdir()
    recorder = Recorder(records, spec.data.train.sizes, run_state.job_table)
    event_loop = EventLoop(spec.world, spec.plan, NullTrainer(), recorder, run_state)
    event_loop.run()
    event_loop.abandon()
    recorder.settle()
    recorder.close(None)
    for table in ("jobs", "steps"):
        (folder / f"{table}.parquet").write_bytes((records / f"{table}.parquet").read_bytes())
    return analysis.open_run(folder), spec


def longest_us(history: analysis.Run, spec: RunSpec) -> int:
    jobs = history.frame("jobs")
    arrived = jobs[jobs.status.isin(["aggregated", "remembered", "stale", "void", "nonfinite"])]
    return spec.plan.pacing.deadline_us or int((arrived.end_us - arrived.dispatch_us).max())


@pytest.mark.parametrize("case", CASES)
def test_regret_is_that_against_the_best_of_all_sets(case: str, tmp_path: Path) -> None:
    """Of each choice, as the selector saw it: its candidates, and what the world would have done to each of them."""
    seen: list[dict[str, Any]] = []

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        chosen = rng.permutation(view.candidates)[:k]
        seen.append(
            {
                "time_us": view.now_us,
                "step": view.step,
                "candidates": view.candidates.copy(),
                "nths": view.dispatched.copy(),
                "chosen": chosen,
            }
        )
        return chosen

    history, spec = played(small(**CASES[case]), stateless(select), tmp_path)
    found = selection_regret(history)
    limit_us = longest_us(history, spec)
    assert (found.regret >= 0).all()
    assert found.regret.max() > 0
    by_instant = {(s["time_us"], s["step"]): s for s in seen if len(s["chosen"])}
    assert len(by_instant) == len(found)
    for row in found.itertuples():
        choice = by_instant[row.time_us, row.step]
        known = choice["candidates"].tolist()
        assert row.candidates == len(known)
        assert row.chosen == len(choice["chosen"])
        times = {c: duration_us(spec, c, choice, limit_us) for c in known}
        waits_for = min(spec.plan.pacing.buffer or row.chosen, row.chosen)
        value = {
            each: sorted(times[c] for c in each)[waits_for - 1] for each in combinations(known, row.chosen)
        }
        took, best = value[tuple(sorted(choice["chosen"].tolist()))], min(value.values())
        assert (row.took_us, row.best_us) == (min(took, limit_us), min(best, limit_us))
        assert row.regret == pytest.approx((min(took, limit_us) - min(best, limit_us)) / limit_us)


def duration_us(spec: RunSpec, client: int, choice: dict[str, Any], limit_us: int) -> float:
    """Ask the world for one job of a client, dispatched then."""
    who, nth = np.array([client]), choice["nths"][[client]]
    costs, now = spec.plan.costs, choice["time_us"]
    fate = spec.world.outcomes(who, now, costs.of(who, nth, costs.shares(who, nth)), now + limit_us)
    attackers = spec.plan.droppers.adversaries[0].clients if spec.plan.droppers else ()
    arrives = fate.ok[0] and client not in (attackers or ())
    return float(fate.end_us[0] - now) if arrives else np.inf


def test_the_fastest_have_no_regret_where_speeds_are_constant_and_the_slowest_have_most(
    tmp_path: Path,
) -> None:
    calm = {
        "world": {"scenario": "stragglers", "horizon": "10h"},
        "cost": {"payload": 1000, "compute_scale": 10},
    }
    mean = {}
    for name in ("fastest_first", "uniform", "slowest_first"):
        folder = run(small(**calm, selection={"name": name}), tmp_path / name).folder
        found = selection_regret(analysis.open_run(folder), t_max_us=HOUR_US)
        mean[name] = found.regret.mean()
    assert mean["fastest_first"] == 0
    assert 0 < mean["uniform"] < mean["slowest_first"] <= 1


def test_a_selector_that_sees_the_future_has_no_regret(tmp_path: Path) -> None:
    """In a world where clients leave and speeds are those of the instant: it takes the first to arrive."""
    config = small(pacing={"preset": "overselect", "clients": 3, "extra": 2})

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        costs, who, nths = spec.plan.costs, view.candidates, view.dispatched[view.candidates]
        fates = spec.world.outcomes(who, view.now_us, costs.of(who, nths, costs.shares(who, nths)))
        times = np.where(fates.ok, fates.end_us, np.iinfo(np.int64).max)
        return who[np.argsort(times, kind="stable")[:k]]

    spec = prepare(config)
    history, _ = played(config, stateless(select), tmp_path)
    assert (selection_regret(history).regret == 0).all()


def test_of_many_choices_some_are_looked_at_and_found_as_they_are(tmp_path: Path) -> None:
    folder = run(small(**CASES["fedbuff"]), tmp_path).folder
    history = analysis.open_run(folder)
    whole = selection_regret(history)
    some = selection_regret(history, most=4)
    assert len(some) == 4 < len(whole)
    merged = some.merge(whole, how="left", on=list(whole.columns), indicator=True)
    assert (merged["_merge"] == "both").all()
    assert some.time_us.iloc[[0, -1]].tolist() == whole.time_us.iloc[[0, -1]].tolist()


def test_a_longer_t_max_makes_regret_smaller(tmp_path: Path) -> None:
    history = analysis.open_run(run(small(), tmp_path).folder)
    short, long = (selection_regret(history, t_max_us=t).regret for t in (HOUR_US, 10 * HOUR_US))
    np.testing.assert_allclose(short, 10 * long, atol=1e-12)


def test_a_world_that_ends_with_an_error_need_not_last_as_long_as_the_longest_job(tmp_path: Path) -> None:
    """At 239 s, candidates would work beyond the five minutes of the world."""
    devices = {"most": 1000.0, "shape": 0.5, "devices": {"fault_every": "never"}}
    tables: dict[str, Any] = {
        "seed": 1,
        "task": {"name": "synthetic", "clients": 12},
        "world": {"scenario": "stragglers", "horizon": "5min", "after_end": "error", "options": devices},
        "pacing": {"preset": "deadline", "clients": 2, "deadline": "2min"},
        "selection": {"name": "fastest_first"},
        "stop": {"time": "4min"},
    }
    found = selection_regret(analysis.open_run(run(load_config(tables)[0], tmp_path).folder))
    assert found.time_us.max() > 180 * 10**6
    assert found.regret.between(0, 1).all()


def test_clients_that_never_had_a_job_could_have_been_chosen(tmp_path: Path) -> None:
    same = run(small(selection={"name": "fixed", "clients": [0, 1, 2]}), tmp_path).folder
    assert selection_regret(analysis.open_run(same)).candidates.max() > 3


# What a folder may lack


@pytest.mark.parametrize("name", ["world.parquet", "clients.parquet"])
def test_a_folder_without_a_world_or_clients_is_refused(name: str, tmp_path: Path) -> None:
    folder = run(small(), tmp_path).folder
    (folder / name).unlink()
    with pytest.raises(FolderError, match=f"{name} is missing"):
        selection_regret(analysis.open_run(folder))


def test_a_foreign_table_of_clients_is_refused(tmp_path: Path) -> None:
    folder = run(small(), tmp_path).folder
    other = pa.table({"client": pa.array([0, 1], pa.int32()), "n_samples": pa.array([5, 5], pa.int32())})
    pq.write_table(other, folder / "clients.parquet")
    with pytest.raises(FolderError, match="a row with at least 0 samples for each of 12 clients"):
        selection_regret(analysis.open_run(folder))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '[client]\nname = "evil.py:evil"',
            "client.name: expected one of the installed, found 'evil.py:evil'",
        ),
        (
            '[[adversary]]\nname = "evil.py:evil"\nshare = 0.5',
            "adversary.name: expected one of the installed",
        ),
    ],
)
def test_no_code_that_a_folder_names_is_run(line: str, message: str, tmp_path: Path) -> None:
    folder = run(small(), tmp_path).folder
    config = folder / "config.resolved.toml"
    text = config.read_text()
    kept = text[: text.index("[client]")] + text[text.index("[algorithm]") :]
    config.write_text(f"{kept}\n{line}\n")
    with pytest.raises(FolderError, match=message):
        selection_regret(analysis.open_run(folder))


def test_costs_by_operations_of_the_model_are_unknown(tmp_path: Path) -> None:
    folder = run(small(cost={"payload": "5 MB", "reference_flops": 1000.0}), tmp_path).folder
    with pytest.raises(ConfigError, match=r"cost\.reference_flops: times depend"):
        selection_regret(analysis.open_run(folder))


def test_jobs_that_a_deadline_shortens_have_no_times_of_their_own(tmp_path: Path) -> None:
    deadline = {"preset": "deadline", "clients": 3, "deadline": "20s"}
    config = small(pacing=deadline, train={"epochs": 3}, dropout={"partial": True})
    folder = run(config, tmp_path).folder
    with pytest.raises(ConfigError, match=r"dropout\.partial: the deadline shortens jobs"):
        selection_regret(analysis.open_run(folder))


def test_of_a_fork_the_choices_after_it_count(tmp_path: Path) -> None:
    parent = run(small(), tmp_path).folder
    child = branch(parent, At(step=4), "pacing.clients=2", out=tmp_path / "fork").folder
    before, after = (selection_regret(analysis.open_run(folder)) for folder in (parent, child))
    assert set(before["step"]) > {0, 1, 2, 3}
    assert min(after["step"]) == 5
    assert set(after["chosen"]) == {2}


# Shares


def made_run(folder: Path, clients: int = 4, **jobs: Any) -> analysis.Run:
    instants = dict.fromkeys(("dispatch_us", "end_us"), [0] * len(jobs["client"]))
    path = write_run(folder, tables={"jobs": jobs_table(**instants, **jobs)})
    config = path / "config.resolved.toml"
    config.write_text(config.read_text() + f'\n[task]\nname = "digits"\nclients = {clients}\n')
    return analysis.open_run(path)


def test_the_gap_is_half_the_sum_of_the_differences_of_shares(tmp_path: Path) -> None:
    history = made_run(
        tmp_path / "x",
        client=[0, 0, 0, 1, 1, 2, 0, 3],
        attempt=[0, 0, 0, 0, 0, 0, 1, 0],
        status=["aggregated", "lost", "late", "remembered", "aggregated", "lost", "aggregated", "late"],
    )
    shares = np.array([3, 2, 1, 1]) / 7
    assert participation_gap(history) == pytest.approx(abs(shares - 0.25).sum() / 2)
    assert participation_gap(history, shares) == pytest.approx(0)
    assert participation_gap(history, [0, 0, 0, 1]) == pytest.approx(6 / 7)
    assert participation_gap(history, used=True) == pytest.approx(
        abs(np.array([0.25, 0.25, -0.25, -0.25])).sum() / 2
    )


def test_the_gap_lies_between_none_and_nearly_all(tmp_path: Path) -> None:
    even = made_run(tmp_path / "even", client=[0, 1, 2, 3], attempt=[0] * 4)
    assert participation_gap(even) == 0
    one = made_run(tmp_path / "one", client=[2, 2, 2], attempt=[0] * 3)
    assert participation_gap(one) == pytest.approx(3 / 4)
    nobody = made_run(tmp_path / "nobody", client=[])
    assert np.isnan(participation_gap(nobody))


@pytest.mark.parametrize("wanted", [[1.0], [0.5, 0.5, 0.5, 0.5], [2, -1, 0, 0]])
def test_shares_that_are_none_are_refused(wanted: list[float], tmp_path: Path) -> None:
    history = made_run(tmp_path / "x", client=[0], attempt=[0])
    with pytest.raises(ConfigError, match="wanted: expected 4 shares that add up to 1"):
        participation_gap(history, wanted)
