"""Builds the inputs of a run: the data, divided among clients, and the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.common.files import sha256
from fedsim.config.data import federation
from fedsim.config.run import RunConfig
from fedsim.config.world import world_files, world_trace
from fedsim.data.federated_data import FederatedData, label_counts
from fedsim.runs.confound import confounded
from fedsim.worlds.trace import Trace

FACTS = ("n_samples", "min_label", "max_label", "n_labels", "labels")
"""Facts on the federation that a scenario can read; see `fedsim.worlds.scenario.make_trace`."""


@dataclass(frozen=True, slots=True)
class RunInputs:
    """The data and the world of a run."""

    model: str
    """The model that the task proposes."""
    data: FederatedData
    counts: Ints
    """[K, C] training samples of each client by label."""
    trace: Trace
    files: Mapping[str, str] = field(default_factory=dict)
    """The sha256 of each file that the world was read from; empty for a world that existed already."""


class InputCache:
    """Builds the inputs of runs and keeps the last ones, because arms of an experiment share data and world."""

    def __init__(self) -> None:
        self._last: tuple[RunConfig, RunInputs] | None = None
        self._known_trace: tuple[RunConfig, Trace] | None = None

    @staticmethod
    def of(config: RunConfig, trace: Trace) -> InputCache:
        """Return a cache for runs whose world exists already: `trace` is the world that `config` describes."""
        cache = InputCache()
        cache._known_trace = config, trace
        return cache

    def inputs(self, config: RunConfig) -> RunInputs:
        """Return the inputs of a run. Raises ConfigError, DataError or TraceError."""
        if self._last and alike(self._last[0], config):
            return self._last[1]
        model, data, counts = self._data(config)
        if self._known_trace and alike(self._known_trace[0], config):
            trace, files = self._known_trace[1], {}
        else:
            trace = _world(config, data, counts)
            paths = world_files(config.world, seed=config.seed_of("world"))
            files = {str(path): sha256(path) for path in paths}
        self._last = config, RunInputs(model, data, counts, trace, files)
        return self._last[1]

    def world_again(self, config: RunConfig) -> Trace:
        """Return the world that a configuration describes, also where `of` gave it a trace."""
        _, data, counts = self._data(config)
        return _world(config, data, counts)

    def _data(self, config: RunConfig) -> tuple[str, FederatedData, Ints]:
        """Return the task's model, the divided data and their labels, those of the last run if it has the same data."""
        if self._last and same_data(self._last[0], config):
            last = self._last[1]
            return last.model, last.data, last.counts
        self._last = None  # frees its memory before more is taken
        task, data = federation(config)
        return task.model, data, label_counts(data)


def _world(config: RunConfig, data: FederatedData, counts: Ints) -> Trace:
    """Return the run's world, tied to the data if the configuration says so."""
    sizes, n = data.train.sizes, data.n_clients
    has_label = counts + label_counts(data, data.valid) > 0
    least = np.where(has_label.any(axis=1), has_label.argmax(axis=1), 0)
    greatest = np.where(has_label.any(axis=1), data.n_classes - 1 - has_label[:, ::-1].argmax(axis=1), 0)
    values = (sizes, least, greatest, has_label.sum(axis=1), np.full(n, data.n_classes))
    facts = dict(zip(FACTS, values, strict=True))
    one_to_one = config.world.clients in (None, n)
    trace = world_trace(
        config.world, clients=n, seed=config.seed_of("world"), facts=facts if one_to_one else None
    )
    if config.world.confound is None:
        return trace
    of_data = {"n_samples": sizes, "label_counts": counts}
    seed, rotation = config.seed_of("world"), config.seed_of("data")
    return confounded(trace, of_data, config.world.confound, seed, config.world.unknown, rotation)[0]


def alike(a: RunConfig, b: RunConfig) -> bool:
    """Return whether two runs have the same data and the same world."""
    return same_data(a, b) and a.world == b.world and a.seed_of("world") == b.seed_of("world")


def same_data(a: RunConfig, b: RunConfig) -> bool:
    """Return whether two runs have the same data, divided in the same way."""
    return (a.seed_of("data"), a.task, a.partition) == (b.seed_of("data"), b.task, b.partition)
