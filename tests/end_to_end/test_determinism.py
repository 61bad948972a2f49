"""The same bytes for the same configuration, whatever computes them; other bytes for another seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fedsim import analysis
from fedsim.config.load import load_config
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.state import RunState
from fedsim.engine.trainer import Trainer
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.null_trainer import NullTrainer
from fedsim.records.recorder import Recorder
from fedsim.runs.build import prepare
from fedsim.runs.simulate import simulate
from fedsim.server.server import Server
from fedsim.training.workbench import Workbench
from shuffled import ShuffledTrainer
from small import run, small

FEDBUFF = {"preset": "fedbuff", "concurrency": 5, "buffer": 3}
OVERSELECT = {"preset": "overselect", "clients": 3, "extra": 2}


@pytest.fixture(scope="module", params=["sync", "overselect", "fedbuff"])
def pacing(request: pytest.FixtureRequest) -> dict[str, object]:
    return {"sync": {"preset": "sync", "clients": 4}, "overselect": OVERSELECT, "fedbuff": FEDBUFF}[
        request.param
    ]


def test_twice_the_same_run_is_the_same(tmp_path: Path, pacing: dict[str, object]) -> None:
    first = run(small(pacing=pacing), tmp_path / "a")
    second = run(small(pacing=pacing), tmp_path / "b")
    assert first.digest
    assert first.digest == second.digest


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    assert run(small(), tmp_path / "a").digest != run(small(seed=4), tmp_path / "b").digest


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_jobs_may_finish_in_any_order(
    tmp_path: Path, pacing: dict[str, object], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(small(pacing=pacing), tmp_path / "a")

    def shuffled(self: object) -> Trainer:
        setup = self.spec  # type: ignore[attr-defined]
        return ShuffledTrainer(
            Workbench(setup.bench, setup.data), Server(setup.server, setup.initial()), seed
        )

    monkeypatch.setattr("fedsim.runs.session.Session._trainer", shuffled)
    assert run(small(pacing=pacing), tmp_path / "b").digest == expected.digest


@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_gives_the_same_digest(
    tmp_path: Path, workers: int, one_worker: RayPool
) -> None:
    configs = [
        small(name="sync"),
        small(name="fedbuff", pacing=FEDBUFF),
        small(name="search", algorithm={"name": "fedmdfg", "search": 3}),
        small(name="columns", algorithm={"name": "coordinate_median", "wrap": [{"name": "with_absent"}]}),
        small(name="diverse", selection={"name": "divfl"}, memory={"history": "bfloat16"}),
        small(name="sampled", selection={"name": "optimal_sampling"}, pacing=FEDBUFF),
        small(name="learned", selection={"name": "ucb_cs"}, algorithm={"name": "fedavg"}),
    ]
    expected, found = (
        [done.digest for done in simulate(configs, out=tmp_path / str(i), workers=each)]
        for i, each in enumerate((0, one_worker if workers == 1 else workers))
    )
    assert found == expected


def test_tables_written_in_small_parts_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(small(), tmp_path / "a").digest
    monkeypatch.setattr("fedsim.records.recorder._PART_ROWS", 5)
    assert run(small(), tmp_path / "b").digest == expected


def test_rules_meet_in_the_same_world(tmp_path: Path) -> None:
    """Paired runs: the same clients chosen, lost and heard at the same times, from the same start."""
    runs = [
        analysis.open_run(run(small(algorithm={"name": rule}), tmp_path / rule).folder)
        for rule in ("fedavg", "fedfv")
    ]
    shared = ["job", "client", "version", "status", "dispatch_us", "end_us", "step"]
    assert runs[0].jobs.select(shared).equals(runs[1].jobs.select(shared))
    assert runs[0].world.equals(runs[1].world)
    first = [r.frame("evals").query("step == 0") for r in runs]
    np.testing.assert_array_equal(first[0].loss, first[1].loss)
    assert runs[0].manifest["digest"] != runs[1].manifest["digest"]


def test_the_resolved_configuration_reproduces_the_run(tmp_path: Path) -> None:
    first = run(small(), tmp_path / "a")
    again = load_config(first.folder / "config.resolved.toml")[0]
    assert run(again, tmp_path / "b").digest == first.digest


def test_the_world_that_a_run_saw_reproduces_the_run(tmp_path: Path) -> None:
    first = run(small(), tmp_path / "a")
    replayed = small(world={"trace": str(first.folder / "world.parquet")})
    assert run(replayed, tmp_path / "b").digest == first.digest


def test_global_random_state_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    run(small(), tmp_path)
    after = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    assert before == after


def test_planning_without_training_meets_the_same_events(tmp_path: Path) -> None:
    done = analysis.open_run(run(small(pacing=FEDBUFF), tmp_path / "real").folder)
    setup = prepare(small(pacing=FEDBUFF))
    folder = tmp_path / "plan"
    folder.mkdir()
    run_state = RunState(setup.data.n_clients)
    recorder = Recorder(folder, setup.data.train.sizes, run_state.job_table)
    event_loop = EventLoop(setup.world, setup.plan, NullTrainer(), recorder, run_state)
    event_loop.run()
    event_loop.abandon()
    recorder.settle()
    recorder.close(None)
    shared = ["job", "client", "version", "status", "step", "dispatch_us", "end_us"]
    assert pq.read_table(folder / "jobs.parquet").select(shared).equals(done.jobs.select(shared))
