"""Processes are killed, and nothing that is recorded shows it."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

import programs
from fedsim.common.errors import LethalJob, ServerLost
from fedsim.execution.actor_pool import RayPool
from fedsim.runs.build import prepare
from fedsim.runs.progress import Progress
from fedsim.runs.simulate import simulate
from small import small
from worker_kills import kill_workers, processes

pytestmark = pytest.mark.ray
ASYNCHRONOUS = {"preset": "fedbuff", "concurrency": 6, "buffer": 3}
LETHAL = '''
import os, signal
from fedsim.training.client_method import ClientMethod, Trained

def lethal(*, row: int) -> ClientMethod:
    """Plain training that kills the process of the client that holds a row of the data."""
    def train(local, start, kept):
        if row in local.rows.tolist():
            os.kill(os.getpid(), signal.SIGKILL)
        return Trained(*local.sgd(start))
    return ClientMethod(train)
'''


@pytest.mark.slow
def test_killed_workers_leave_no_trace_in_the_results(ray_cluster: None) -> None:
    config = small(
        pacing=ASYNCHRONOUS,
        client={"name": "ditto"},
        stop={"steps": 40},
        evaluate={"every_steps": 10, "personal": True},
    )
    found = kill_workers(config, kills=3, every_s=0.5)
    assert found.kills == 3
    assert found.busy > 0
    assert found.same, found


def test_a_job_that_kills_its_process_is_found_among_others_and_named(
    one_worker: RayPool, tmp_path: Path
) -> None:
    three = {
        "task": {"name": "digits", "clients": 3},
        "pacing": {"preset": "sync", "clients": 3},
        "partition": {"name": "iid"},
        "world": {"scenario": "always_on"},
        "stop": {"steps": 2},
    }
    plain = small(**three)
    row = int(prepare(plain).data.train.rows(1)[0])
    (tmp_path / "lethal.py").write_text(LETHAL)
    config = small(**three, client={"name": f"{tmp_path}/lethal.py:lethal", "row": row})
    with pytest.raises(
        LethalJob, match=r"number 0 of client 1 .* seed 3, killed its worker process 3 times"
    ) as told:
        simulate(config, out=tmp_path, workers=one_worker)
    command = shlex.split(re.split("in one process: ", str(told.value))[1])
    assert command[0] == "fedsim"
    alone = programs.fedsim(*command[1:], "--quiet", place=tmp_path)
    assert alone.code == -signal.SIGKILL
    assert simulate(plain, out=tmp_path, force=True, workers=one_worker)[0].status == "done", (
        "the pool goes on"
    )


def test_a_server_that_died_is_said_to_be_lost_and_can_be_replaced(
    one_worker: RayPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(pacing=ASYNCHRONOUS)
    monkeypatch.setattr("fedsim.runs.session._SERVERS", 0)

    def kill(progress: object) -> None:
        for process, _ in processes("ray::ServerHost"):
            process.kill()

    with pytest.raises(ServerLost, match="the server's process died"):
        simulate(config, out=tmp_path, workers=one_worker, watch=kill)
    again = simulate(config, out=tmp_path, workers=one_worker, force=True)[0]
    assert again.digest == simulate(config, out=tmp_path, workers=0, force=True)[0].digest


def test_a_run_goes_on_when_its_server_dies(one_worker: RayPool, tmp_path: Path) -> None:
    config = small(
        pacing=ASYNCHRONOUS, client={"name": "ditto"}, checkpoint={"every_steps": 2}, stop={"steps": 12}
    )
    killed: list[int] = []

    def kill_once(progress: Progress) -> None:
        if progress.run_state.step == 5 and not killed:
            killed.append(progress.run_state.step)
            for process, _ in processes("ray::ServerHost"):
                process.kill()

    found = simulate(config, out=tmp_path / "killed", workers=one_worker, watch=kill_once)[0]
    assert killed == [5]
    assert found.digest == simulate(config, out=tmp_path / "peace", workers=0)[0].digest
