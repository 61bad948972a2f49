"""The job script of the SLURM page is run: stopped by a signal, submitted again, and equal to an uninterrupted run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsim.config.load import load_config
from fedsim.records.checkpoint import checkpoints
from fedsim.records.manifest import read_manifest
from fedsim.runs.simulate import simulate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "slurm.md"
FILE = re.compile(r"`(\w+\.\w+)`[^`]*\n\n```(?:toml|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the files of the page, and a `scontrol` that writes down its arguments."""
    for name, body in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(body, encoding="utf-8")
    control = tmp_path / "bin" / "scontrol"
    control.parent.mkdir()
    control.write_text(f"#!/bin/bash\necho $@ >> {tmp_path}/requeued\n")
    control.chmod(0o755)
    return tmp_path


def submitted(place: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(place / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.Popen(
        ["bash", "phones.sh"],
        cwd=place,
        env={**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "77"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_job_that_is_stopped_and_submitted_again_ends_as_an_uninterrupted_one(place: Path) -> None:
    folder = place / "runs" / "seed-3" / "phones"
    with submitted(place) as job:
        try:
            while not (folder.is_dir() and checkpoints(folder)):
                assert job.poll() is None, job.communicate()
                time.sleep(0.01)
            os.kill(job.pid, signal.SIGTERM)  # as `--signal=B:TERM` does: to the shell alone
            out, _ = job.communicate()
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode == 130, out
    assert "interrupted, and saved" in out
    assert read_manifest(folder)["status"] == "interrupted"
    assert (place / "requeued").read_text() == "requeue 77\n"
    with submitted(place) as job:
        out, _ = job.communicate()
    assert job.returncode == 0, out
    assert (place / "requeued").read_text() == "requeue 77\n"
    manifest = read_manifest(folder)
    [resumption] = manifest["resumed"]
    assert 0 < resumption["step"] < 300
    [peace] = simulate(load_config(place / "phones.toml", ("seed=3",)), out=place / "peace", workers=0)
    assert manifest["digest"] == peace.digest
