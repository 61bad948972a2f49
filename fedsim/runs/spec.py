"""All parts of a run, as `fedsim.runs.build.prepare` makes them, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsim.common import threads
from fedsim.common.errors import FolderError
from fedsim.config.given import digests_in
from fedsim.config.memory import MemorySection
from fedsim.config.run import RunConfig
from fedsim.data.client_names import mismatch
from fedsim.data.federated_data import FederatedData
from fedsim.engine.state import Plan
from fedsim.records.run_folder import recorded_names
from fedsim.runs.combinations import TAKE_SPEEDS, without_time
from fedsim.runs.memory_estimate import Footprint, check_fits, check_fits_gpu
from fedsim.server.spec import ServerSpec
from fedsim.training.attack import rememberers
from fedsim.training.client_method import ClientMethod
from fedsim.training.evaluation import EVAL_ROWS
from fedsim.training.loaded_model import training_bytes
from fedsim.training.network import Network
from fedsim.training.settings import WorkbenchSpec
from fedsim.training.threaded_workbench import ThreadedWorkbench, is_large, is_serial, worth
from fedsim.training.workbench import Workbench
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import World


@dataclass(frozen=True)
class RunSpec:
    """All parts of a run, built from its configuration; nothing in it changes during the run."""

    config: RunConfig
    data: FederatedData
    trace: Trace
    world: World
    plan: Plan
    bench: WorkbenchSpec
    server: ServerSpec
    network: Network
    asked: MemorySection
    """The `[memory]` from which that of `config` was chosen."""
    world_files: Mapping[str, str]
    """The sha256 of each file that the world was read from; empty for a world that existed already."""

    def check_data(self, manifest: Mapping[str, Any], folder: Path) -> None:
        """Raise FolderError if data or names of clients are not those of the run in `folder`."""
        before = manifest.get("data")
        if before not in (None, self.data.digest):
            raise FolderError(
                f"{folder}: the data of task {self.config.task.name!r} are not those of the run: expected the digest "
                f"{before}, found {self.data.digest}; restore the files of the task, or run in another folder"
            )
        named, now = recorded_names(folder), self.data.names
        if named is not None and now is not None and named != now:
            k = next(k for k, (old, new) in enumerate(zip(named, now, strict=False)) if old != new)
            raise FolderError(
                f"{folder}: expected clients of the same names as in the run, found {now[k]!r} for client {k}, "
                f"which is {named[k]!r} there; restore the names, or run in another folder"
            )

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says of the run itself, which is known before it begins."""
        config, unseen = self.config, self.data.unseen
        return {
            "name": config.name,
            "label": config.label,
            "seed": config.seed,
            "parent": config.parent and config.parent.model_dump(mode="json", exclude_none=True),
            "rule": config.algorithm.name,
            "selector": config.selection.name,
            "pacing": config.pacing.preset,
            "clairvoyant": self.plan.selector.clairvoyant,
            "adversaries": [
                {"name": a.name, "clients": list(a.clients or ())} for a in self.bench.adversaries
            ],
            "unseen": [] if unseen is None else unseen.numbers.tolist(),
            "data": self.data.digest,
            "given": digests_in(config),
        }

    def outlives(self, until_us: int | None) -> str:
        """Return a warning if a run until then outlasts its world, with what follows the horizon; else `""`."""
        if until_us is None or until_us <= self.world.horizon_us:
            return ""
        return f"{self.config.name}: longer than its world, which is {self.world.duration_text()}"

    def unused_world(self) -> Iterator[str]:
        """Yield warnings about clients of the world that the run leaves out, or that are not those of its task.

        Another one is about jobs that take no time.
        """
        config, clients = self.config, self.world.clients
        others = mismatch(self.data.names, self.trace)
        if others:
            yield f"{config.name}: {others}"
        elif self.trace.clients > clients:
            yield (
                f"{config.name}: takes the first {clients:,} of its world's {self.trace.clients:,} clients; "
                f"`fedsim trace edit --resample {clients}` draws them"
            )
        if none := without_time(config, self.world):
            yield f"{config.name}: jobs take no time, because the world models no {none}; {TAKE_SPEEDS}"

    def initial(self) -> torch.Tensor:
        """Return the start parameters [P], the same for equal seeds and models."""
        return self.network.initial(self.config.seed_of("train"))

    def workbench(self) -> Workbench | ThreadedWorkbench:
        """Build what trains in this process: in several threads if they are faster than one."""
        return (ThreadedWorkbench if self._threaded() else Workbench)(self.bench, self.data)

    def _threaded(self) -> bool:
        return worth(self.bench, self.network, self.bench.method(), self.data.train.sizes)

    def auto_workers(self, cores: int, gpus: int) -> int:
        """Return the number of workers that `workers="auto"` stands for; 0: this process trains all clients.

        The number depends on GPUs, cores and model, never on a measurement. Several GPUs get one worker each. More
        cores than one process has threads (8) get one worker per core. With fewer cores, this process is at least as
        fast. The exception is a large model that trains in one thread, because the model (dropout) or the client
        method draws random numbers: it gets one worker per core.
        """
        if self.server.device.startswith("cuda"):
            return gpus if gpus > 1 else 0
        slow = is_large(self.bench, self.network, self.data.train.sizes) and is_serial(
            self.bench, self.network, self.bench.method()
        )
        return cores if cores > threads.MOST or (slow and cores > 1) else 0

    def footprint(self, workers: int) -> Footprint:
        """Return the facts that determine the run's memory."""
        method, on_gpu = self.bench.method(), self.server.device.startswith("cuda")
        return Footprint(
            self.server,
            self.plan.pacing,
            data_bytes=self.data.nbytes,
            trace_bytes=self.trace.nbytes,
            workers=workers,
            method=method,
            keepers=len(rememberers(self.bench.adversaries)) or None,
            history=self.server.history,
            audited=min(self.config.audit.clients, self.data.n_clients) if self.config.audit.every else 0,
            forward_bytes=0 if on_gpu else self._forward_bytes(),
            step_bytes=0 if on_gpu else self._training_bytes(method),
            threads=threads.most() if self._threaded() else 1,
            unseen=self.data.n_unseen,
        )

    def _training_bytes(self, method: ClientMethod) -> int:
        """Return about how many bytes a process or thread needs to train."""
        sizes, at_once = self.data.train.sizes, self.plan.pacing.concurrency
        return training_bytes(self.bench, self.network, method, sizes, at_once)

    def check_fits(self, workers: int) -> None:
        """Raise ConfigError if the run would not fit into the memory of this machine or its GPU."""
        footprint = self.footprint(workers)
        check_fits(footprint.parts(), self.config.algorithm.name, helpful=footprint.savings)
        check_fits_gpu(footprint)

    def _forward_bytes(self) -> int:
        """Return the float32 bytes of a layer's input and output, for as many samples as one evaluation batch has."""
        rows = max(len(split.indices) for split in self.data.splits().values())
        return 4 * self.network.widest * min(rows, EVAL_ROWS)
