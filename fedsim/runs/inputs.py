"""What a run is made of before anything is computed: the data divided among clients, and the world.

Making them takes NumPy, not torch. So other processes can make them while the first one imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedsim.common.background import Ahead, pays
from fedsim.config.data import federation
from fedsim.config.run import RunConfig
from fedsim.config.world import world_trace
from fedsim.data.federated_data import FederatedData, label_counts
from fedsim.runs.confound import confounded
from fedsim.worlds.scenario import FactsToCome
from fedsim.worlds.trace import Trace

Ints = NDArray[np.int64]

FACTS = ("n_samples", "min_label", "max_label", "n_labels", "labels")
"""What a scenario may ask of the federation; see `fedsim.worlds.scenario.make_trace`."""


@dataclass(frozen=True, slots=True)
class RunInputs:
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
        self._last: tuple[RunConfig, RunInputs] | None = None
        self._begun: RunConfig | None = None
        """Of which run the data, and perhaps the world, are under way."""
        self._data: Ahead[tuple[str, FederatedData]] | None = None
        self._world: Ahead[Trace] | None = None
        self._given: tuple[RunConfig, Trace] | None = None

    def begin(self, config: RunConfig) -> None:
        """Start to make data and world in other processes, where that is sooner than here and later."""
        if not pays():
            return
        self._begun, self._data = config, Ahead(partial(_model_and_data, config))
        n = config.task.clients
        if config.world.confound is None and (config.world.scenario is None or n is not None):
            facts = FactsToCome(FACTS) if config.world.clients in (None, n) else None
            made = partial(world_trace, config.world, clients=n, seed=config.seed, facts=facts)
            self._world = Ahead(made)

    def take(self, config: RunConfig, trace: Trace) -> None:
        """Use a world that is there already, for runs with this configuration of it."""
        self._given = config, trace

    def materials(self, config: RunConfig) -> RunInputs:
        """Return the materials of a run. Raises ConfigError, DataError or TraceError."""
        if self._last and alike(self._last[0], config):
            return self._last[1]
        self._last = None
        ready, trace = self._ready(config)
        model, data = ready or _model_and_data(config)
        counts = label_counts(data)
        if trace is None:
            trace = _world(config, data, counts)
        self._last = config, RunInputs(model, data, counts, trace)
        return self._last[1]

    def _ready(self, config: RunConfig) -> tuple[tuple[str, FederatedData] | None, Trace | None]:
        """Return what is there or was begun; None for what could not be made without the rest, or at all."""
        given = self._given[1] if self._given and alike(self._given[0], config) else None
        begun, self._begun = self._begun, None
        if begun is None or not alike(begun, config):
            return None, given
        data = None if self._data is None else self._data.result()
        trace = None if self._world is None else self._world.result()
        return data, trace if given is None else given


def _model_and_data(config: RunConfig) -> tuple[str, FederatedData]:
    task, data = federation(config)
    return task.model, data


def _world(config: RunConfig, data: FederatedData, counts: Ints) -> Trace:
    """Return the run's world, tied to the data if the configuration says so."""
    sizes, n = data.train.sizes, data.n_clients
    held = counts > 0
    least = np.where(sizes > 0, held.argmax(axis=1), 0)
    greatest = np.where(sizes > 0, data.n_classes - 1 - held[:, ::-1].argmax(axis=1), 0)
    found = (sizes, least, greatest, held.sum(axis=1), np.full(n, data.n_classes))
    facts = dict(zip(FACTS, found, strict=True))
    alike = config.world.clients in (None, n)
    trace = world_trace(config.world, clients=n, seed=config.seed, facts=facts if alike else None)
    if config.world.confound is None:
        return trace
    known = {"n_samples": sizes, "label_counts": counts}
    return confounded(trace, known, config.world.confound, config.seed, config.world.unknown)[0]


def alike(a: RunConfig, b: RunConfig) -> bool:
    """Return whether two runs have the same data and the same world."""
    return all(getattr(a, name) == getattr(b, name) for name in ("seed", "task", "partition", "world"))
