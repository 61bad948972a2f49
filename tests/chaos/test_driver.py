"""Kills or SIGTERM end the process of a run at random instants; resumed, it has the digest of an undisturbed run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from driver_kills import config, killed_runs
from fedsim.records.checkpoint import checkpoints
from fedsim.records.manifest import read_manifest


@pytest.mark.slow
def test_fifty_kills_of_the_process(tmp_path: Path) -> None:
    found = list(killed_runs(50, tmp_path, steps=120))
    assert sum(run.kills for run in found) == 50
    assert all(run.same and run.once for run in found), found
    assert any(step > 0 for run in found for step in run.from_step)


SLOW = '''
import time
from fedsim.training.client_method import ClientMethod, Trained

def slow() -> ClientMethod:
    """Plain training that takes a while."""
    def train(local, start, kept):
        time.sleep(1)
        return Trained(*local.sgd(start))
    return ClientMethod(train)
'''


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_with_workers_is_saved_at_a_sigterm_however_long_its_instants_take(tmp_path: Path) -> None:
    """Ray itself ends a process three seconds after a SIGTERM."""
    (tmp_path / "slow.py").write_text(SLOW)
    run = config(3, client={"name": f"{tmp_path}/slow.py:slow"}, checkpoint={"every_steps": 1})
    (tmp_path / "run.toml").write_text(tomli_w.dumps(run.resolved()))
    command = ["run", "run.toml", "--out", "runs", "--workers", "1", "--quiet"]
    with subprocess.Popen(
        [sys.executable, "-m", "fedsim", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            while not checkpoints(tmp_path / "runs" / run.name):
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            told, _ = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 130, told
    assert "interrupted, and saved" in told
    assert read_manifest(tmp_path / "runs" / run.name)["status"] == "interrupted"
