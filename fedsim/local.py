"""Local training and evaluation: pure functions of (parameters, a client's data, a job). No Ray, no wall clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim import plugins
from fedsim.adversary import Adversary, remembering
from fedsim.attacking import Attackers
from fedsim.augment import Augment, Augmenter
from fedsim.client import ClientMethod, Tensors, checked, checked_personal
from fedsim.data import FederatedData
from fedsim.descent import ClientBench, Descent
from fedsim.evaluation import EVAL_ROWS, SCORED_ROWS, Samples
from fedsim.job import Cohort, Ints, Job, Report, Reports
from fedsim.minibatches import groups, mean_losses, probed
from fedsim.modes import Mode, may_draw, resolve_mode
from fedsim.modes.dense import Dense
from fedsim.modes.vmap import Vmap
from fedsim.network import build_network
from fedsim.precision import Precision, device_named, lowered, rounding
from fedsim.scoring import correct_of, losses_of
from fedsim.tensors import shared_tensor


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """How a client trains. `lr` decays by `lr_decay` for each server step that the job's start model is old."""

    epochs: int = 1
    batch_size: int | None = 32
    """None: the whole local training set."""
    lr: float = 0.1
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    augment: Augment | None = None
    loss_samples: int | None = None
    """Most samples on which a client takes the loss of a received model. None: the whole local training set."""
    precision: Precision = "float32"
    """How precisely clients compute; see `fedsim.precision`."""


@dataclass(frozen=True, slots=True)
class WorkbenchSpec:
    """What a Workbench is made of besides the data; plain values, so that it can be built in another process."""

    model: str
    model_options: Mapping[str, Any]
    in_shape: tuple[int, ...]
    n_classes: int
    sgd: LocalSGD
    seed: int
    losses: bool
    """Whether the rule asks for the loss before training."""
    after: bool = False
    """Whether the rule asks for loss and accuracy after training."""
    device: str = "cpu"
    client: str = "plain"
    """Name of the client-side method."""
    client_options: Mapping[str, Any] = field(default_factory=dict)
    some: tuple[int, ...] | None = None
    """Clients that are evaluated alone at times."""
    mode: Mode | Literal["auto"] = "auto"
    """How groups of clients train; see `fedsim.modes`."""
    adversaries: tuple[Adversary, ...] = ()
    """Clients that do not play fair."""

    def method(self) -> ClientMethod:
        """Build the client-side method. Raises ConfigError if an attack needs the memory that it uses itself."""
        made: ClientMethod = plugins.build("client", self.client, self.client_options)
        return remembering(made, self.client, self.adversaries)


class Workbench:
    """One process's tools to train and evaluate any client: a network whose parameters are one flat buffer, the
    samples as tensors, and the rows of each client.

    `work(job, params, out, kept)` depends on nothing but its arguments, the data and the spec: whoever else was
    trained before, here or elsewhere, does not change a bit of it.
    """

    def __init__(self, spec: WorkbenchSpec, data: FederatedData) -> None:
        self.spec, self.sgd, self.seed, self.method = spec, spec.sgd, spec.seed, spec.method()
        self.device = device_named(spec.device)
        network = build_network(spec.model, spec.model_options, spec.in_shape, spec.n_classes)
        self.flat = torch.zeros(network.P, device=self.device)
        network.load(self.flat)
        self.network, self.module = network, network.module
        self.weights: Tensors = tuple(network.module.parameters())
        self.x, self.y = (shared_tensor(a).to(self.device) for a in (data.x, data.y))
        self.splits, self._samples = data.splits(spec.some), Samples()
        self.random = bool(may_draw(network.module))
        """Whether training may draw at random besides the order of samples."""
        self.mode = resolve_mode(spec.mode, network.module, self.method, spec.device)
        augment = spec.sgd.augment
        self.augmenter = None if augment is None else Augmenter(augment, spec.in_shape, self.device)
        self._side_by_side: Dense | Vmap | None = None
        if self.mode == "dense":
            self._side_by_side = Dense(network.module, self.sgd, self.x, self.y, self.augmenter)
        elif self.mode == "vmap":
            self._side_by_side = Vmap(network, self.sgd, self.x, self.y, self.augmenter)
        self._attackers = (
            Attackers(spec.adversaries, spec.seed, self.y, data.n_classes) if spec.adversaries else None
        )

    def run(self, job: Job, params: torch.Tensor, out: torch.Tensor) -> Report:
        """Train `job` from `params` [P], write the row `start - end` into `out` [P] and report."""
        return self.work(job, params, out, None)[0]

    def work(
        self, job: Job, params: torch.Tensor, out: torch.Tensor, kept: torch.Tensor | None
    ) -> tuple[Report, torch.Tensor | None]:
        """As `run`, with what the client kept from its job before; also return what it keeps for the next, on the CPU.

        A job whose row is not finite leaves what was kept as it was.
        """
        local = ClientBench(self, job)
        self.flat.copy_(params)
        before, during, keep = math.nan, math.nan, None
        if self.spec.losses and not self.method.reports_loss:
            probed = self._probed(np.array([job.client]), job.version)
            before = float(self._mean_losses([params], probed, self.sgd.precision)[0])
        if self.method.train is None:
            during = local.descend(Descent(self.sgd))
        else:
            self.module.train()  # whatever the job or evaluation before left it in
            with self._alone(local):
                found = self.method.train(local, params, self._here(kept))
            trained = checked(found, len(self.flat), job.client)
            self.flat.copy_(trained.end)
            during, keep = trained.loss, trained.kept
            before = trained.loss_before if self.method.reports_loss else before
        after = accuracy = math.nan
        if self.spec.after:
            losses, correct = self._forward(local.rows, self.sgd.precision)
            after, accuracy = float(losses.mean()), float(correct.mean())
        torch.sub(params, self.flat, out=out)
        finite = bool(_finite(out[None])[0])
        report = Report(before, during, local.loss_rms, local.batch_rms, after, accuracy, finite)
        return report, keep.cpu() if finite and keep is not None else kept

    def train(
        self,
        cohort: Cohort,
        starts: Sequence[torch.Tensor],
        rows: torch.Tensor,
        kept: Sequence[torch.Tensor | None] | None = None,
    ) -> tuple[Reports, list[torch.Tensor | None]]:
        """Train each job from its start [P] into its row of `rows` [k, P]; `kept` is as in `work`.

        Rows and reports are what clients send: those of adversaries may differ from what they found.
        """
        with rounding(self.sgd.precision, self.device):
            if self._attackers is None:
                return self._honest(cohort, starts, rows, kept)
            return self._attackers.train(self._honest, self._relabel, cohort, starts, rows, kept)

    def _relabel(self, y: torch.Tensor) -> None:
        """Train on these labels [N] from now on."""
        self.y = y
        if self._side_by_side is not None:
            self._side_by_side.y = y

    def _honest(
        self,
        cohort: Cohort,
        starts: Sequence[torch.Tensor],
        rows: torch.Tensor,
        kept: Sequence[torch.Tensor | None] | None,
    ) -> tuple[Reports, list[torch.Tensor | None]]:
        if self._side_by_side is None:
            before = kept or [None] * len(cohort)
            done = [self.work(cohort.job(i), starts[i], rows[i], before[i]) for i in range(len(cohort))]
            return Reports.of([report for report, _ in done]), [after for _, after in done]
        reports, beside = Reports.nothing(len(cohort)), self._side_by_side
        sums = []
        for group in groups(cohort, self.splits["train"], self.sgd, self.seed, beside.most, even=beside.even):
            mine = [starts[job] for job in group.jobs.tolist()]
            losses = beside.train(group.on(self.device), mine, rows)
            sums.append((group.jobs, group.counts, losses))
        for jobs, counts, losses in sums:  # not before: a GPU has the next group to go on with meanwhile
            reports.loss_train[jobs], reports.loss_rms[jobs], reports.batch_rms[jobs] = mean_losses(
                counts, losses
            )
        if self.spec.losses:
            probed = self._probed(cohort.clients, cohort.versions)
            reports.loss_before[:] = self._mean_losses(starts, probed, self.sgd.precision)
        for i, client in enumerate(cohort.clients.tolist()):
            if self.spec.after:
                self.flat.copy_(starts[i] - rows[i])
                each, correct = self._forward(self._rows(client), self.sgd.precision)
                reports.loss_after[i], reports.accuracy_after[i] = each.mean(), correct.mean()
        reports.finite[:] = _finite(rows)
        return reports, [None] * len(cohort)

    def _rows(self, client: int) -> torch.Tensor:
        return torch.from_numpy(self.splits["train"].rows(client)).to(self.device)

    @contextmanager
    def seeded(self, draws: np.random.Generator) -> Iterator[None]:
        """Seed what layers such as dropout draw from, and restore the process's own state afterwards."""
        on_gpu = self.device.type == "cuda"
        seed = int(draws.integers(2**63))
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []):
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed(seed)
            yield

    def _alone(self, local: ClientBench) -> AbstractContextManager[None]:
        """Return what a method runs within: torch's generator is seeded if somebody may draw from it."""
        return self.seeded(local.draws("method")) if self.random or self.method.draws else nullcontext()

    def _here(self, kept: torch.Tensor | None) -> torch.Tensor | None:
        return None if kept is None else kept.to(self.device)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, classes] of samples, computed as precisely as clients do."""
        with lowered(self.sgd.precision, self.device):
            found: torch.Tensor = self.module(x)
        return found.float()

    def _forward(
        self, rows: torch.Tensor, precision: Precision, of: tuple[str, int, int] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        self.module.eval()
        losses, correct = [], []
        with torch.inference_mode():
            batches = iter(self._samples.batches(self.x, rows, of))
            for labels in torch.split(self.y.index_select(0, rows), SCORED_ROWS):
                some = islice(batches, max(1, -(-len(labels) // EVAL_ROWS)))  # one, of no rows, too
                across = torch.cat([self._across(x, precision) for x in some], dim=1)
                losses.append(losses_of(across, labels))
                correct.append(correct_of(across, labels))
        return torch.cat(losses).double().cpu().numpy(), torch.cat(correct).cpu().numpy()

    def _across(self, x: torch.Tensor, precision: Precision) -> torch.Tensor:
        """Return the logits [classes, N] of samples."""
        if isinstance(self._side_by_side, Dense):
            return self._side_by_side.across(self.flat, x, precision)
        with lowered(precision, self.device):
            found: torch.Tensor = self.module(x)
        return found.float().T.contiguous()

    def losses(
        self, params: torch.Tensor, rows: torch.Tensor, precision: Precision | None = None
    ) -> NDArray[np.float64]:
        """Return the per-sample losses of a model [P] on rows, by default as precisely as clients compute."""
        self.flat.copy_(params)
        return self._forward(rows, precision or self.sgd.precision)[0]

    def _probed(self, clients: Ints, version: Ints | int) -> list[Ints]:
        """Return the rows [k] of samples on which each client takes the loss of a version, or of one of its own."""
        versions = np.broadcast_to(version, clients.shape)
        return probed(self.splits["train"], clients, versions, self.sgd.loss_samples, self.seed)

    def _mean_losses(
        self, models: Sequence[torch.Tensor], rows: Sequence[Ints], precision: Precision
    ) -> NDArray[np.float64]:
        """Return the mean loss [k] of each of `models` [k] x [P] on its own rows of samples."""
        if isinstance(self._side_by_side, Dense):
            return self._side_by_side.mean_losses(models, rows, precision)
        each = zip(models, map(torch.from_numpy, rows), strict=True)
        return np.array([self.losses(model, own.to(self.device), precision).mean() for model, own in each])

    def trial_losses(self, models: torch.Tensor, clients: Ints, version: int | None) -> NDArray[np.float64]:
        """Return the mean training loss [T, k] of each of `clients` [k] with each of `models` [T, P].

        Losses are taken on the samples on which jobs of the version take theirs, and as precisely; without one on all
        samples, in float32.
        """
        every = map(self.splits["train"].rows, clients.tolist())
        rows = list(every) if version is None else self._probed(clients, version)
        precision: Precision = "float32" if version is None else self.sgd.precision
        with rounding(precision, self.device):
            found = [self._mean_losses([model] * len(clients), rows, precision) for model in models]
        return np.array(found, dtype=np.float64).reshape(len(models), len(clients))

    def evaluate(
        self, params: torch.Tensor, split: str, start: int, stop: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return per-sample losses and correctness of entries `start` to `stop` of a split's rows."""
        rows = torch.from_numpy(self.splits[split].indices[start:stop]).to(self.device)
        return self._evaluated(params, rows, (split, start, stop))

    def _evaluated(
        self, params: torch.Tensor, rows: torch.Tensor, of: tuple[str, int, int] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        self.flat.copy_(params)
        with rounding("float32", self.device):
            return self._forward(rows, "float32", of)

    def evaluate_personal(
        self, params: torch.Tensor, kept: Sequence[torch.Tensor | None], split: str, first: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """As `evaluate`, for the rows of the clients `first`, `first + 1`, ... each with the model it would use itself.

        `params` [P] is the global model, `kept` what each of the clients keeps.
        """
        found = [self._with_own_model(params, row, split, first + i) for i, row in enumerate(kept)]
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def _with_own_model(
        self, params: torch.Tensor, kept: torch.Tensor | None, split: str, client: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        rows = torch.from_numpy(self.splits[split].rows(client)).to(self.device)
        if not len(rows):
            return np.zeros(0), np.zeros(0, dtype=bool)
        model = params
        if self.method.personal:
            local = ClientBench(self, Job(-1, client, -1, 0))
            self.module.train()
            with self._alone(local), rounding(self.sgd.precision, self.device):
                found = self.method.personal(local, params, self._here(kept))
            model = checked_personal(found, len(self.flat), client)
        return self._evaluated(model, rows)


def _finite(rows: torch.Tensor) -> NDArray[np.bool_]:
    """Return [k] which rows [k, P] are finite: so is a sum only of such terms, and it takes a quarter of the time."""
    found: NDArray[np.bool_] = torch.isfinite(rows.sum(dim=1)).cpu().numpy()
    for i in np.flatnonzero(~found):
        found[i] = bool(torch.isfinite(rows[i]).all())
    return found
