"""A notebook with data and a model of its own is killed while workers train; another one resumes its run."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

nbformat = pytest.importorskip(
    "nbformat", reason="notebooks need nbclient and ipykernel: pip install -e '.[dev]'"
)

from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import DeadKernelError  # noqa: E402

from fedsim.records.checkpoint import checkpoints  # noqa: E402
from fedsim.records.manifest import read_manifest  # noqa: E402
from notebooks import own_folders  # noqa: E402

OWN = """
import fedsim
import torch
from torch import nn
from torch.utils.data import Dataset


class Patients(Dataset):
    def __init__(self, n=240):
        self.x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
        self.hospital = torch.arange(n) % 8

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.x[i, 0] * self.x[i, 1] > 0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)


patients = Patients()
task = fedsim.Task.from_dataset(patients, client=patients.hospital)
config = {
    "name": "hospitals",
    "pacing": {"preset": "sync", "clients": 4},
    "stop": {"steps": 100},
    "checkpoint": {"every_steps": 10},
}
"""
TIMEOUT_S = 240


def notebook(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def client(place: Path, *cells: str) -> NotebookClient:
    return NotebookClient(
        notebook(*cells),
        timeout=TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(place)}},
    )


def killed_after_a_checkpoint(cells: NotebookClient, folder: Path) -> list[psutil.Process]:
    """Execute cells, and kill the kernel as soon as the run in `folder` is saved; return what the kernel started."""
    below: list[psutil.Process] = []

    def kill() -> None:
        while not (folder.is_dir() and checkpoints(folder)):
            if over.wait(0.01):
                return
        kernel = cells.km.provisioner.process
        os.kill(kernel.pid, signal.SIGSTOP)  # so that the run is not over before it is killed
        below.extend(psutil.Process(kernel.pid).children(recursive=True))
        os.kill(kernel.pid, signal.SIGKILL)

    over = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(DeadKernelError):
            cells.execute()
    finally:
        over.set()
        killer.join()
    return below


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_of_a_killed_notebook_is_resumed_from_another(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "hospitals"
    with own_folders():
        train = "fedsim.simulate(config, task=task, model=Net, out='runs', workers=2)"
        below = killed_after_a_checkpoint(client(tmp_path, OWN, train), folder)
        assert len(below) > 2, "no worker was running"
        assert read_manifest(folder)["status"] == "running"
        resume = "fedsim.resume('runs/hospitals', task=task, model=Net, workers=0)"
        peace = "fedsim.simulate(config, task=task, model=Net, out='peace', workers=0)"
        client(tmp_path, OWN, resume, peace).execute()
    resumed, uninterrupted = (read_manifest(tmp_path / out / "hospitals") for out in ("runs", "peace"))
    assert resumed["resumed"][0]["step"] >= 10
    assert (resumed["status"], resumed["steps"]) == ("done", 100)
    assert resumed["digest"] == uninterrupted["digest"]
