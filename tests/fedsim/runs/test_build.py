"""The parts of a run that follow from its configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.common import threads
from fedsim.common.errors import ConfigError
from fedsim.runs.build import prepare
from fedsim.runs.spec import RunSpec
from fedsim.training.threaded_workbench import ThreadedWorkbench
from fedsim.training.workbench import Workbench
from small import small


@pytest.fixture(scope="module")
def small_model() -> RunSpec:
    return prepare(small())


@pytest.fixture(scope="module")
def large_model() -> RunSpec:
    return prepare(small(model={"name": "mlp", "hidden": [2000, 2000]}))


@pytest.fixture(scope="module")
def large_model_with_dropout() -> RunSpec:
    """Training draws from torch's generator, which a process has only once."""
    return prepare(small(model={"name": "cnn", "channels": [64, 64], "dropout": [0.5, 0.5]}))


def test_on_few_cores_auto_trains_in_this_process(small_model: RunSpec, large_model: RunSpec) -> None:
    for spec in (small_model, large_model):
        assert [spec.auto_workers(cores, 0) for cores in (1, 2, threads.MOST)] == [0, 0, 0]
        assert spec.auto_workers(threads.MOST + 1, 0) == threads.MOST + 1


def test_auto_takes_workers_for_a_large_model_that_one_process_trains_in_one_thread(
    large_model_with_dropout: RunSpec,
) -> None:
    small_one = prepare(small(model={"name": "cnn", "channels": [4, 4], "dropout": [0.5, 0.5]}))
    assert large_model_with_dropout.auto_workers(2, 0) == 2
    assert large_model_with_dropout.auto_workers(1, 0) == 0
    assert small_one.auto_workers(2, 0) == 0


@pytest.mark.parametrize(("gpus", "workers"), [(1, 0), (4, 4)])
def test_auto_takes_a_worker_for_each_of_several_gpus(large_model: RunSpec, gpus: int, workers: int) -> None:
    on_gpu = replace(large_model, server=replace(large_model.server, device="cuda"))
    assert on_gpu.auto_workers(64, gpus) == workers


def test_only_a_large_model_that_draws_nothing_trains_in_threads(
    small_model: RunSpec, large_model: RunSpec, large_model_with_dropout: RunSpec
) -> None:
    ditto = {"client": "ditto", "client_options": {"lam": 0.1}, "mode": "loop"}
    keeping = replace(large_model, bench=replace(large_model.bench, **ditto))
    specs = (small_model, large_model, keeping, large_model_with_dropout)
    made = [type(spec.workbench()) for spec in specs]
    assert made == [Workbench, ThreadedWorkbench, ThreadedWorkbench, Workbench]


RECURRENT = """
import torch

class Recurrent(torch.nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.memory, self.out = torch.nn.LSTM(8, 4, batch_first=True), torch.nn.Linear(4, n_classes)

    def forward(self, x):
        return self.out(self.memory(x.reshape(-1, 8, 8))[0][:, -1])

def recurrent(*, in_shape, n_classes) -> torch.nn.Module:
    return Recurrent(n_classes)
"""


@pytest.mark.parametrize(
    ("order", "model", "device", "refused"),
    [
        ("second", "recurrent", "cuda", True),
        ("first", "recurrent", "cuda", False),
        ("second", "recurrent", "cpu", False),
        ("second", "mlp", "cuda", False),
    ],
)
def test_a_gpu_has_no_second_derivatives_of_recurrent_layers(
    order: str, model: str, device: str, refused: bool, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(RECURRENT, encoding="utf-8")
    name = f"{tmp_path / 'own.py'}:recurrent" if model == "recurrent" else model
    config = small(model={"name": name}, client={"name": "qmaml", "order": order})
    if not refused:
        prepare(config, device)
        return
    with pytest.raises(
        ConfigError, match=r"client\.name: method 'qmaml' differentiates gradients, .* --device cpu"
    ):
        prepare(config, device)
