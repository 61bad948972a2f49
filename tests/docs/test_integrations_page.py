"""The commands and the Python of docs/integrations.md run where their tracker is installed, without a network."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import programs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
ARMS = 3
"""Of examples/quickstart.toml, which all commands run or export."""


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def follow(heading: str, place: Path, **environment: str) -> None:
    """Run the `fedsim` commands and the Python of a section, the runs cut to a few steps."""
    (place / "examples").symlink_to(ROOT / "examples")
    for kind, body in re.findall(r"^```(\w*)\n(.*?)^```", section(heading), re.MULTILINE | re.DOTALL):
        if kind == "py":
            done = subprocess.run(
                [sys.executable, "-c", body.replace("stop.steps=20", "stop.steps=4")],
                cwd=place,
                env=os.environ | environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr[-2000:]
        for line in body.splitlines() if not kind else ():
            _, command, *words = shlex.split(line)
            if line.startswith("fedsim "):
                shorter = ["--set", "stop.steps=4"] if command == "run" else []
                ended = programs.fedsim(command, *words, *shorter, place=place, **environment)
                assert ended.code == 0, f"{line}\n{ended.err[-2000:]}"


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"the package {package} is not installed: make integrations"
    )


@pytest.mark.slow
@needs("wandb")
def test_weights_and_biases(tmp_path: Path) -> None:
    follow("Weights & Biases", tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 2 * ARMS


@pytest.mark.slow
@needs("mlflow")
def test_mlflow(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    follow("MLflow", tmp_path)
    (tmp_path / "examples").unlink()
    follow("Trackers from Python", tmp_path)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs' / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedsim")
    sent = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in sent] == ["FINISHED"] * 3 * ARMS
    assert {run.data.params["algorithm.name"] for run in sent} == {"fedavg", "fedfv", "fedlf"}
