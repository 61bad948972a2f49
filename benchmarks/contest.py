"""What all contestants of `works.py` share: the file of a work, its model in bare torch, a watch, the line they print.

Nothing but NumPy and torch is imported, so that the floors start as fast as torch does, and the peers' runners can use
it in an environment without fedsim.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

EVALUATION_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Spec:
    """How a work is trained: FedAvg, one local epoch of plain SGD."""

    model: str
    model_options: Mapping[str, Any]
    n_classes: int
    clients_per_round: int
    batch_size: int
    lr: float


@dataclass(frozen=True, slots=True)
class Partition:
    """A work as arrays: who holds which samples, and the model that all contestants start from."""

    spec: Spec
    x: NDArray[np.float32]
    """[N, ...] training samples, client by client."""
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]
    """[K + 1] client k holds rows `offsets[k]` to `offsets[k + 1]`."""
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]
    initial: NDArray[np.float32]
    """[P] start parameters, in the order of `Module.parameters`."""

    @property
    def n_clients(self) -> int:
        """K, number of clients."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[K] training samples of each client."""
        return np.diff(self.offsets)

    def rows(self, client: int) -> slice:
        """Return where the samples of a client lie."""
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    def tensors(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the training samples of a client, without a copy."""
        rows = self.rows(client)
        return torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])

    def write(self, path: Path) -> None:
        """Write an .npz file."""
        arrays = {name: getattr(self, name) for name in self.__slots__ if name != "spec"}
        np.savez(path, spec=np.array(json.dumps(asdict(self.spec))), **arrays)

    @staticmethod
    def read(path: Path) -> Partition:
        """Read what `write` wrote."""
        with np.load(path) as found:
            arrays = {name: found[name] for name in found.files if name != "spec"}
            return Partition(Spec(**json.loads(str(found["spec"]))), **arrays)


def build_model(work: Partition) -> nn.Module:
    """Build the work's model with its start parameters: layers as in fedsim's `softmax`, `mlp` and `cnn`."""
    shape, spec = work.x.shape[1:], work.spec
    options = spec.model_options
    layers: list[nn.Module] = []
    channels = [shape[0], *options.get("channels", ())]
    for before, after in pairwise(channels):
        layers += [nn.Conv2d(before, after, options["kernel"]), nn.ReLU(), nn.MaxPool2d(2)]
    if len(shape) > 1:
        layers.append(nn.Flatten())
    with torch.no_grad():
        features = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    for before, after in pairwise([features, *options.get("hidden", ())]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    layers.append(nn.Linear([features, *options.get("hidden", ())][-1], spec.n_classes))
    model = nn.Sequential(*layers)
    held = sum(p.numel() for p in model.parameters())
    if held != len(work.initial):
        raise ValueError(
            f"model {spec.model!r} has {held} parameters here, and {len(work.initial)} in the file"
        )
    nn.utils.vector_to_parameters(torch.from_numpy(work.initial.copy()), model.parameters())
    return model


def count_correct(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> int:
    """Count samples that the model classifies rightly."""
    model.eval()
    with torch.inference_mode():
        parts = zip(torch.split(x, EVALUATION_ROWS), torch.split(y, EVALUATION_ROWS), strict=True)
        correct = sum(int((model(a).argmax(1) == b).sum()) for a, b in parts)
    model.train()
    return correct


def test_accuracy(model: nn.Module, work: Partition) -> float:
    """Return the accuracy on the test samples of all clients together."""
    x, y = torch.from_numpy(work.test_x), torch.from_numpy(work.test_y)
    return count_correct(model, x, y) / len(y)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser for what every contestant is told."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("work", type=Path, help="the file that works.py wrote")
    parser.add_argument("--rounds", type=int, default=10, help="rounds that are timed, after a first one")
    parser.add_argument(
        "--since", type=float, default=time.time(), help="when the process was asked for, s since 1970"
    )
    return parser


@dataclass(slots=True)
class Rounds:
    """Notes when rounds end. The first one belongs to the start-up."""

    since: float
    ends: list[float] = field(default_factory=list)
    """Wall clock at the end of each round."""

    def end(self) -> None:
        """Say that a round has ended."""
        self.ends.append(time.time())

    def say(self, accuracy: float, evaluate_s: float = math.nan) -> None:
        """Print the result: one line of JSON, the last one of the output."""
        say(
            first_s=self.ends[0] - self.since,
            round_s=(self.ends[-1] - self.ends[0]) / (len(self.ends) - 1),
            accuracy=accuracy,
            evaluate_s=evaluate_s,
        )


def say(*, first_s: float, round_s: float, accuracy: float, evaluate_s: float) -> None:
    """Print what a contestant measured.

    Args:
        first_s: from asking for the process to the end of its first round.
        round_s: mean seconds of a round without evaluation.
        accuracy: on the test samples after the last round.
        evaluate_s: seconds of one evaluation on the test samples, NaN if not measured.
    """
    found = {"first_s": first_s, "round_s": round_s, "accuracy": accuracy, "evaluate_s": evaluate_s}
    print(json.dumps(found), flush=True)
