"""A model and all samples on a device: forward passes, losses and evaluations for any parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.common.arrays import Floats, Ints
from fedsim.data.federated_data import FederatedData
from fedsim.training.augmentation import Augmenter
from fedsim.training.client_method import ClientMethod, Tensors
from fedsim.training.evaluation import EVAL_ROWS, SCORED_ROWS, Samples
from fedsim.training.losses import correct_of, losses_of
from fedsim.training.minibatches import loss_rows
from fedsim.training.modes import dense, may_draw, resolve_mode, vmap
from fedsim.training.modes.dense import Dense
from fedsim.training.modes.linear_layers import linear_layers
from fedsim.training.modes.vmap import Vmap
from fedsim.training.network import Network, build_network
from fedsim.training.precision import Precision, device_named, lowered, rounding
from fedsim.training.settings import WorkbenchSpec

_TRAINED_ROWS = 5
"""Vectors [P] of a client that trains: its model before and after, its gradient by tensor and as one, and a step."""
_VMAP_BYTES = 150 * 2**20
"""What torch.func.vmap imports when it is first used: triton and sympy."""
Scores = tuple[Floats, NDArray[np.bool_]]
"""The losses [n] of samples, and whether each is classified correctly."""


def shared_tensor(array: NDArray[np.generic]) -> torch.Tensor:
    """Return a tensor on an array's memory, without torch's warning about read-only arrays. Do not write to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def training_bytes(
    spec: WorkbenchSpec, network: Network, method: ClientMethod, sizes: Ints, at_once: int
) -> int:
    """Return about how many bytes a thread needs to train clients on a CPU.

    Counted are what the forward pass of the largest minibatch saves for the backward pass, which takes as much again,
    and the models and gradients of the clients that train side by side.

    Args:
        sizes: training samples of each client, [K].
        at_once: most clients that train at the same time.
    """
    mode, sgd = resolve_mode(spec.mode, network.module, method, spec.device), spec.sgd
    width, clients, imported = min(sgd.batch_size or int(sizes.max()), int(sizes.max())), 1, 0
    if mode == "dense":
        clients = min(dense.group_limits(linear_layers(network.module), sgd, gpu=False).most(width), at_once)
    elif mode == "vmap":
        clients, imported = vmap.group_limits(network, gpu=False).clients, _VMAP_BYTES
    pulled = method.proximal or (method.own is not None and method.own.proximal)
    rows = _TRAINED_ROWS + bool(sgd.momentum) + bool(pulled) + (method.offset is not None)
    return clients * (2 * width * network.saved_bytes() + rows * 4 * network.P) + imported


def joined(parts: Iterable[Scores]) -> Scores:
    """Return the scores of all parts, in order."""
    losses, correct = zip(*parts, strict=True)
    return np.concatenate(losses), np.concatenate(correct)


class LoadedModel:
    """A network whose parameters are one flat buffer `flat` [P], all samples as tensors, and each client's rows."""

    def __init__(self, spec: WorkbenchSpec, data: FederatedData) -> None:
        self.spec, self.sgd, self.seed = spec, spec.sgd, spec.seed
        self.device = device_named(spec.device)
        network = build_network(spec.model, spec.model_options, spec.in_shape, spec.n_classes)
        self.flat = torch.zeros(network.P, device=self.device)
        self.network, self.module = network, network.load(self.flat)
        self.weights: Tensors = tuple(network.module.parameters())
        self.x, self.y = (shared_tensor(a).to(self.device) for a in (data.x, data.y))
        self.data, self.splits, self._samples = data, data.splits(spec.some), Samples()
        self.random = bool(may_draw(network.module))
        """Whether the model may draw at random while it trains, such as dropout does."""
        self.method = spec.method()
        self.mode = resolve_mode(spec.mode, network.module, self.method, spec.device)
        augment = spec.sgd.augment
        self.augmenter = None if augment is None else Augmenter(augment, spec.in_shape, self.device)
        self._side_by_side: Dense | Vmap | None = None
        given = self.x, self.y, self.augmenter
        if self.mode == "dense":
            self._side_by_side = Dense(network.module, self.sgd, *given)
        elif self.mode == "vmap":
            self._side_by_side = Vmap(network, self.sgd, *given)

    def training_rows(self, client: int) -> Tensor:
        """Return the positions [n] of the training samples of a client, which may be an unseen one."""
        return torch.from_numpy(self.data.training_rows(client)).to(self.device)

    def rows(self, client: int, split: str) -> Tensor:
        """Return the positions [n] of a client's samples of a split in the data set."""
        return torch.from_numpy(self.splits[split].rows(client)).to(self.device)

    @contextmanager
    def seeded(self, draws: np.random.Generator) -> Iterator[None]:
        """Seed torch's generators, from which layers such as dropout draw, and restore their state afterwards."""
        on_gpu = self.device.type == "cuda"
        seed = int(draws.integers(2**63))
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []):
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed(seed)
            yield

    def logits(self, x: Tensor, precision: Precision | None = None) -> Tensor:
        """Return the logits [B, classes] of samples, by default computed in the precision of training."""
        with lowered(precision or self.sgd.precision, self.device):
            logits: Tensor = self.module(x)
        return logits.float()

    def _forward(self, rows: Tensor, precision: Precision, of: tuple[str, int, int] | None = None) -> Scores:
        self.module.eval()
        losses, correct = [], []
        with torch.inference_mode():
            batches = iter(self._samples.batches(self.x, rows, of))
            for labels in torch.split(self.y.index_select(0, rows), SCORED_ROWS):
                scored = islice(batches, max(1, -(-len(labels) // EVAL_ROWS)))  # one batch even of no rows
                across = torch.cat([self._across(x, precision) for x in scored], dim=1)
                losses.append(losses_of(self.sgd.loss, across, labels))
                correct.append(correct_of(across, labels))
        return torch.cat(losses).double().cpu().numpy(), torch.cat(correct).cpu().numpy()

    def _across(self, x: Tensor, precision: Precision) -> Tensor:
        """Return the logits [classes, N] of samples."""
        if isinstance(self._side_by_side, Dense):
            return self._side_by_side.across(self.flat, x, precision)
        return self.logits(x, precision).T.contiguous()

    def losses(self, params: Tensor, rows: Tensor, precision: Precision | None = None) -> Floats:
        """Return the per-sample losses of a model [P] on rows, by default in the precision of training."""
        self.flat.copy_(params)
        return self._forward(rows, precision or self.sgd.precision)[0]

    def _loss_rows(self, clients: Ints, version: Ints | int) -> list[Ints]:
        """Return the rows on which each of `clients` [k] measures the loss of a version, one for all or one each."""
        versions = np.broadcast_to(version, clients.shape)
        return loss_rows(self.splits["train"], clients, versions, self.sgd.loss_samples, self.seed)

    def _mean_losses(self, models: Sequence[Tensor], rows: Sequence[Ints], precision: Precision) -> Floats:
        """Return the mean loss [k] of each of `models` [k] x [P] on its own rows of samples."""
        if isinstance(self._side_by_side, Dense):
            return self._side_by_side.mean_losses(models, rows, precision)
        each = zip(models, map(torch.from_numpy, rows), strict=True)
        return np.array([self.losses(model, own.to(self.device), precision).mean() for model, own in each])

    def trial_losses(self, models: Tensor, clients: Ints, version: int | None) -> Floats:
        """Return the mean training loss [T, k] of each of `clients` [k] with each of `models` [T, P].

        With a `version`, clients use the samples and the precision with which jobs of that version report their loss;
        without one, all training samples in float32.
        """
        every = map(self.splits["train"].rows, clients.tolist())
        rows = list(every) if version is None else self._loss_rows(clients, version)
        precision: Precision = "float32" if version is None else self.sgd.precision
        with rounding(precision, self.device):
            losses = [self._mean_losses([model] * len(clients), rows, precision) for model in models]
        return np.array(losses, dtype=np.float64).reshape(len(models), len(clients))

    def evaluate(self, params: Tensor, split: str, start: int, stop: int) -> Scores:
        """Return per-sample losses and correctness of entries `start` to `stop` of a split."""
        rows = torch.from_numpy(self.splits[split].indices[start:stop]).to(self.device)
        return self._evaluated(params, rows, (split, start, stop))

    def _evaluated(self, params: Tensor, rows: Tensor, of: tuple[str, int, int] | None = None) -> Scores:
        self.flat.copy_(params)
        with rounding("float32", self.device):
            return self._forward(rows, "float32", of)
