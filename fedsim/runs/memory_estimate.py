"""Estimates a run's memory from its configuration, and refuses a run that would not fit, with the numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import psutil
import torch

from fedsim.common.errors import ConfigError
from fedsim.common.units import show_bytes
from fedsim.engine.pacing import Pacing
from fedsim.server.history_storage import HistoryPlan, HistorySize
from fedsim.server.spec import ServerSpec
from fedsim.training.client_method import ClientMethod

PLAIN = ClientMethod()
_PROCESS_BYTES = 700 * 2**20
"""Resident memory of a process that has imported torch, and Ray where it is used, before it holds any data."""
_SOLVER_MATRICES = 4
"""Matrices [n, n] that the costliest rules (FedLF, FedMGDA+) need beside their Gram matrices."""


def history_size(server: ServerSpec) -> HistorySize:
    """Return the size of the history that the server's aggregation rule asks for."""
    needs = server.algorithm().needs
    level = max(needs.gram, server.conflicts, key=("none", "model", "blocks").index)
    both = level == "blocks" and needs.gram == "model"
    return HistorySize(
        present=server.most_updates,
        remembered=server.slots() - server.most_updates,
        columns=server.blocks[-1][1],
        layers={"none": 0, "model": 1, "blocks": len(server.blocks) + both}[level],
    )


def updates_size(server: ServerSpec) -> HistorySize:
    """Return the size of the history of all clients' last updates, for a selector that needs them."""
    return HistorySize(server.most_updates, server.n_clients, server.blocks[-1][1], layers=1)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The facts that determine a run's memory."""

    server: ServerSpec
    pacing: Pacing
    data_bytes: int
    trace_bytes: int
    workers: int
    """0: everything in one process."""
    method: ClientMethod = PLAIN
    keepers: int | None = None
    """Number of clients that keep state from job to job; None: all, if the method keeps state."""
    history: HistoryPlan | None = None
    """How the server stores updates; None: all that its rule may ask for, in float32."""
    audited: int = 0
    """Clients of one audit."""
    forward_bytes: int = 0
    """Largest size of a layer's input and output, for each process or thread that evaluates."""
    step_bytes: int = 0
    """What a step of local training takes, for each process or thread that trains."""
    threads: int = 1
    """Threads that train and evaluate at the same time, if everything runs in one process."""
    unseen: int = 0
    """Clients that never train, which task.clients counts too."""

    def plan(self) -> HistoryPlan:
        """Return the plan of the history, with no more updates than the rule may ask for."""
        size = history_size(self.server)
        plan = self.history or HistoryPlan(size.present, size.remembered)
        return replace(plan, present=size.present, remembered=min(plan.remembered, size.remembered))

    def _stored(self) -> list[tuple[HistoryPlan, int]]:
        """Return the plans of the rule's history and of the selector's, each with its number of Gram matrices."""
        plans, updates = [(self.plan(), history_size(self.server).layers)], self.server.updates
        if updates is None:
            return plans
        size = updates_size(self.server)
        fewer = replace(updates, present=size.present, remembered=min(updates.remembered, size.remembered))
        return [*plans, (fewer, size.layers)]

    def parts(self) -> dict[str, int]:
        """Predict the bytes of each part on the host and their total, all processes together.

        Parameters are float32; one version lives per server step that some running job started from, at most one per
        job in flight, and with rules that start clients from what they received last, one per client. Memory of a GPU
        is not counted. "history", "gram" and "solve" are upper bounds: an update or a product takes memory once it is
        written, and a rule solves for the updates that it still remembers. "training" may be half or twice as much.
        """
        size, plan, workers = history_size(self.server), self.plan(), self.workers
        row, at_once = 4 * size.columns, self.pacing.concurrency
        sent = row * (1 + len(self.method.sends))
        parts = {
            "parameters": self._started_from(self._versions()) * row,
            "history": sum(p.host_bytes(size.columns, self.server.device) for p, _ in self._stored()),
            "gram": sum(p.gram_bytes(layers) for p, layers in self._stored()),
            "solve": plan.gram_bytes(size.layers + _SOLVER_MATRICES) if size.layers else 0,
            "updates": (2 * at_once if workers else self.pacing.most_updates) * sent,
            "audit": self.audited * row,
            "kept": self._kept_rows() * row,
            "data": self.data_bytes * (2 if workers else 1),
            "world": 3 * self.trace_bytes,
            "training": self.step_bytes * (workers or self.threads),
            "evaluation": self.forward_bytes * (workers or self.threads),
            "processes": _PROCESS_BYTES * (workers + 2 if workers else 1),
        }
        return parts | {"total": sum(parts.values())}

    def _versions(self) -> int:
        """Return the largest number of models besides the current one that jobs start from, now or later."""
        received = self.server.n_clients if self.server.algorithm().start == "last" else 0
        return received + (0 if self.pacing.cancels else self.pacing.concurrency)

    def _started_from(self, versions: int) -> int:
        """Return the number of vectors [P] of a model, its copy, and so many versions that jobs started from.

        Vectors that the rule sends count with each version, and with the model.
        """
        return 2 + versions + (versions + 1) * len(self.method.receives)

    def _kept_rows(self) -> int:
        """Return the largest number of vectors that clients keep; personal models are copied once more at the end."""
        clients = self.server.n_clients
        keepers = clients if self.keepers is None else min(self.keepers, clients)
        copies = 3 if self.method.personal else 1
        return copies * keepers + min(self.pacing.concurrency, keepers) if self.method.keeps else 0

    def checkpoint_bytes(self, chosen: int) -> int:
        """Predict the bytes of models, updates and what clients keep in a checkpoint, where `chosen` had jobs."""
        columns = history_size(self.server).columns
        stored = [
            (replace(plan, present=0, remembered=min(plan.remembered, chosen)), layers)
            for plan, layers in self._stored()
        ]
        history = sum(plan.row_bytes(columns) + plan.gram_bytes(layers) for plan, layers in stored)
        return (self._started_from(self._versions()) + min(self._kept_rows(), chosen)) * 4 * columns + history

    def on_gpu(self) -> dict[str, int]:
        """Predict the least bytes that the server needs on its GPU, and their total; empty if it has no GPU.

        Without workers, clients train on the same GPU. Outputs of layers, and torch itself, are not counted.
        """
        size, device = history_size(self.server), self.server.device
        if not device.startswith("cuda"):
            return {}
        row, inline = 4 * size.columns, not self.workers
        versions = self._started_from(self._versions() if inline else 0)
        parts = {
            "history": sum(
                p.row_bytes(size.columns) - p.host_bytes(size.columns, device) for p, _ in self._stored()
            ),
            "parameters": versions * row,
            "updates": self.pacing.most_updates * row * (1 + len(self.method.sends)),
            "data": self.data_bytes if inline else 0,
        }
        return parts | {"total": sum(parts.values())}

    def savings(self) -> list[tuple[str, int]]:
        """Return changes of the configuration and the bytes that each would save alone, the largest first."""
        now = self.parts()["total"]
        saved = [(setting, now - changed.parts()["total"]) for setting, changed in self._changes().items()]
        return sorted(((setting, n) for setting, n in saved if n > 0), key=lambda saving: -saving[1])

    def _changes(self) -> dict[str, Footprint]:
        """Return possible changes, most of them by halves."""
        server, pacing, plan = self.server, self.pacing, self.plan()
        everybody = -(-(server.n_clients + self.unseen) // 2)
        slots = max(p.remembered for p, _ in self._stored()) // 2
        clients, at_once = -(-server.n_clients // 2), -(-pacing.concurrency // 2)
        buffer = None if pacing.buffer is None else min(pacing.buffer, at_once)
        slower = replace(pacing, concurrency=at_once, buffer=buffer, minimum=0)
        halves = [(a // 2, b // 2) for a, b in server.blocks]
        return {
            f"memory.history = {plan.rounded().rung!r}": self._with_plans(HistoryPlan.rounded),
            f"memory.slots = {slots}": self._with_plans(
                lambda p: replace(p, remembered=min(p.remembered, slots))
            ),
            f"task.clients = {everybody}": replace(self, server=replace(server, n_clients=clients)),
            f"{at_once} clients at once in [pacing]": replace(
                self, server=replace(server, most_updates=at_once), pacing=slower
            ),
            "a model of half the size": replace(self, server=replace(server, blocks=halves)),
            "half of train.batch_size": replace(self, step_bytes=self.step_bytes // 2),
            "half of the samples": replace(self, data_bytes=self.data_bytes // 2),
            "half of world.horizon": replace(self, trace_bytes=self.trace_bytes // 2),
            f"--workers {self.workers // 2}": replace(self, workers=self.workers // 2),
        }

    def _with_plans(self, change: Callable[[HistoryPlan], HistoryPlan]) -> Footprint:
        """Return the footprint with another storage of the rule's history and of the selector's."""
        updates = None if self.server.updates is None else change(self.server.updates)
        return replace(self, history=change(self.plan()), server=replace(self.server, updates=updates))


def check_fits(
    predicted: Mapping[str, int],
    rule: str,
    limit: int | None = None,
    helpful: Callable[[], Sequence[tuple[str, int]]] = tuple,
) -> None:
    """Raise ConfigError with the numbers if the prediction is above `limit` (the memory free now, by default).

    `helpful()` returns the `savings`; the error names the first three.
    """
    free = psutil.virtual_memory().available if limit is None else limit
    if predicted["total"] <= free:
        return
    help_ = "; ".join(f"{setting} (saves {show_bytes(n)})" for setting, n in helpful()[:3])
    raise ConfigError(
        f"the run with rule {rule!r} would need {show_bytes(predicted['total'])} ({_listed(predicted)}), but "
        f"{show_bytes(free)} are free." + (f" What would help most: {help_}" if help_ else "")
    )


def check_fits_gpu(footprint: Footprint) -> None:
    """Raise ConfigError with the numbers if the server needs more than is free on the GPU of this machine.

    Workers may still hold memory of an earlier run, which they free: with workers, all of the GPU counts as free. On a
    machine without a GPU nothing is checked: the run then uses another machine's, or none.
    """
    parts = footprint.on_gpu()
    if not parts or not torch.cuda.is_available():
        return
    free, whole = torch.cuda.mem_get_info()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    free = whole if footprint.workers else free + cached
    if parts["total"] <= free:
        return
    room = free - parts["total"] + parts["history"]
    budget = f"{room // 2**20} MiB" if room >= 2**20 else f"{room} B"
    advice = (
        f'. memory.budget = "{budget}" leaves the rest enough room'
        if room > 0
        else ", too little even without a history"
    )
    raise ConfigError(
        f"the run with rule {footprint.server.rule!r} would need {show_bytes(parts['total'])} on the GPU "
        f"({_listed(parts)}), but {show_bytes(free)} are free there{advice}"
    )


def _listed(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{part} {show_bytes(n)}" for part, n in parts.items() if part != "total" and n)
