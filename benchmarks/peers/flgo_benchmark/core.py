"""The samples of the work as tensor datasets, handled by FLGo's own classes for classification."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from flgo.benchmark.toolkits.cv.classification import FromDatasetGenerator, FromDatasetPipe, GeneralCalculator
from torch.utils.data import Subset, TensorDataset

from contest import Partition

WORK = Partition.read(Path(os.environ["WORK"]))
TRAIN = TensorDataset(torch.from_numpy(WORK.x), torch.from_numpy(WORK.y))
TEST = TensorDataset(torch.from_numpy(WORK.test_x), torch.from_numpy(WORK.test_y))

TaskCalculator = GeneralCalculator


class TaskGenerator(FromDatasetGenerator):
    """Makes FLGo's folder of the work."""

    def __init__(self) -> None:
        super().__init__(benchmark="flgo_benchmark", train_data=TRAIN, test_data=TEST)


class TaskDataset(Subset[tuple[torch.Tensor, ...]]):
    """A client's samples. FLGo's own class of this name does the same, and recent versions of torch refuse it."""

    def __init__(self, dataset: TensorDataset, indices: list[int], perturbation: None = None) -> None:
        super().__init__(dataset, indices)


class TaskPipe(FromDatasetPipe):
    """Reads it."""

    TaskDataset = TaskDataset

    def __init__(self, task_path: str) -> None:
        super().__init__(task_path, train_data=TRAIN, test_data=TEST)
