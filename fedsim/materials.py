"""What a run is made of before anything is computed: the data divided among clients, and the world.

Making them takes NumPy, not torch. So a second process can make the world while the first one imports torch; data are
made where they are used, as they may be large.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim import plugins
from fedsim.config import RunConfig
from fedsim.config_world import world_trace
from fedsim.confound import confounded
from fedsim.data import FederatedData, Task
from fedsim.federate import federate
from fedsim.trace import Trace

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Materials:
    """The data and the world of a run."""

    model: str
    """The model that the task proposes."""
    data: FederatedData
    counts: Ints
    """[K, C] training samples of each client by label."""
    trace: Trace


class Workshop:
    """Makes materials, and keeps the last ones: the arms of an experiment share their data and their world."""

    def __init__(self) -> None:
        self._last: tuple[RunConfig, Materials] | None = None
        self._ahead: _Ahead | None = None
        self._given: tuple[RunConfig, Trace] | None = None

    def begin(self, config: RunConfig) -> None:
        """Start to make the world in a second process, where that is sooner than here and later."""
        apart = config.world.confound is None and sys.platform == "linux" and _cores() > 1
        if apart and multiprocessing.current_process().name == "MainProcess":
            self._ahead = _Ahead(config)

    def take(self, config: RunConfig, trace: Trace) -> None:
        """Use a world that is there already, for runs with this configuration of it."""
        self._given = config, trace

    def materials(self, config: RunConfig) -> Materials:
        """Return the materials of a run. Raises ConfigError, DataError or TraceError."""
        if self._last and _alike(self._last[0], config):
            return self._last[1]
        self._last = None
        task, data = federation(config)
        counts, trace = label_counts(data), self._begun(config)
        if trace is None:
            trace = _world(config, data, counts)
        self._last = config, Materials(task.model, data, counts, trace)
        return self._last[1]

    def _begun(self, config: RunConfig) -> Trace | None:
        if self._given and _alike(self._given[0], config):
            return self._given[1]
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        trace = ahead.trace()
        return trace if _alike(ahead.config, config) else None


def federation(config: RunConfig) -> tuple[Task, FederatedData]:
    """Return the run's task, and its data divided among the clients. Raises ConfigError or DataError."""
    task, partition = _task(config), config.partition
    return task, federate(
        task,
        n_clients=config.task.clients,
        partitioner=None if partition is None else partition.name,
        options={} if partition is None else partition.options,
        fractions=config.task.fractions,
        pool=config.task.pool,
        shuffle=config.task.shuffle,
        seed=config.seed,
    )


def label_counts(data: FederatedData) -> Ints:
    """Return [K, C] the training samples of each client by label."""
    owner = np.repeat(np.arange(data.n_clients), data.train.sizes)
    cell = owner * data.n_classes + data.y[data.train.indices]
    return np.bincount(cell, minlength=data.n_clients * data.n_classes).reshape(-1, data.n_classes)


def _task(config: RunConfig) -> Task:
    section = config.task
    data_dir = section.data_dir or Path(os.environ.get("FEDSIM_DATA", "data"))
    task: Task = plugins.build(
        "task", section.name, section.options, clients=section.clients, seed=config.seed, data_dir=data_dir
    )
    return task


def _world(config: RunConfig, data: FederatedData, counts: Ints) -> Trace:
    """Return the run's world, tied to the data if the configuration says so."""
    sizes, n = data.train.sizes, data.n_clients
    held = counts > 0
    facts = {
        "n_samples": sizes,
        "min_label": np.where(sizes > 0, held.argmax(axis=1), 0),
        "max_label": np.where(sizes > 0, data.n_classes - 1 - held[:, ::-1].argmax(axis=1), 0),
        "n_labels": held.sum(axis=1),
        "labels": np.full(n, data.n_classes),
    }
    alike = config.world.clients in (None, n)
    trace = world_trace(config.world, clients=n, seed=config.seed, facts=facts if alike else None)
    if config.world.confound is None:
        return trace
    known = {"n_samples": sizes, "label_counts": counts}
    return confounded(trace, known, config.world.confound, config.seed)[0]


def _alike(a: RunConfig, b: RunConfig) -> bool:
    return all(getattr(a, name) == getattr(b, name) for name in ("seed", "task", "partition", "world"))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


class _Ahead:
    """A world under way in another process."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        fork = multiprocessing.get_context("fork")  # a new interpreter would import for a second first
        self._here, there = fork.Pipe(duplex=False)
        self._process = fork.Process(target=_make_and_send, args=(there, config), daemon=True)
        self._process.start()
        there.close()

    def trace(self) -> Trace | None:
        """Wait for it; None if it could not be made without knowing the data, or at all: then it is made here."""
        found: Trace | None = None
        with suppress(EOFError, OSError):
            found = self._here.recv()
        self._here.close()
        self._process.join()
        return found


def _make_and_send(there: Connection, config: RunConfig) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process hears it too, and says so
    with suppress(Exception):
        there.send(world_trace(config.world, clients=config.task.clients, seed=config.seed, facts=None))
    there.close()
