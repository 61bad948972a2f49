"""From a configuration to the parts of a run: data, network, world and plan. Everything is built before it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedsim import plugins
from fedsim.client import ClientMethod
from fedsim.config import RunConfig
from fedsim.config_world import world_trace
from fedsim.course import Plan, Stop
from fedsim.data import FederatedData, Task
from fedsim.errors import ConfigError
from fedsim.federate import federate
from fedsim.local import WorkbenchSpec
from fedsim.network import Network, build_network
from fedsim.server import ServerSpec
from fedsim.stack import GramLevel
from fedsim.trace import MODELLED, Trace
from fedsim.world import Work, World

_LEVELS: dict[str, GramLevel] = {"off": "none", "model": "model", "layers": "blocks"}


@dataclass(frozen=True)
class Setup:
    """All parts of a run, built from its configuration; nothing in it changes while the run goes on."""

    config: RunConfig
    data: FederatedData
    trace: Trace
    world: World
    plan: Plan
    bench: WorkbenchSpec
    server: ServerSpec
    network: Network

    def initial(self) -> torch.Tensor:
        """Return the start parameters [P], the same for equal seeds and models."""
        return self.network.initial(self.config.seed)


def prepare(config: RunConfig, device: str = "cpu") -> Setup:
    """Build all parts. Raises ConfigError, DataError or TraceError before anything is written."""
    task = _task(config)
    partition = config.partition
    data = federate(
        task,
        n_clients=config.task.clients,
        partitioner=None if partition is None else partition.name,
        options={} if partition is None else partition.options,
        fractions=config.task.fractions,
        pool=config.task.pool,
        seed=config.seed,
    )
    model = config.model.name if config.model else task.model
    options = config.model.options if config.model else {}
    network = build_network(model, options, data.x.shape[1:], data.n_classes)
    trace = world_trace(config.world, clients=config.task.clients, seed=config.seed)
    pacing = config.pacing.pacing()
    algorithm = config.algorithm
    server = ServerSpec(
        rule=algorithm.name,
        options=algorithm.options,
        n_clients=data.n_clients,
        total_samples=int(data.train.sizes.sum()),
        most_updates=pacing.concurrency,
        blocks=network.blocks,
        wrap=[wrapper.named() for wrapper in algorithm.wrap],
        lr=config.train.lr,
        conflicts=_LEVELS[config.record.conflicts],
        device=device,
    )
    needs = server.algorithm().needs
    bench = WorkbenchSpec(
        model=model,
        model_options=options,
        in_shape=data.x.shape[1:],
        n_classes=data.n_classes,
        sgd=config.train.local_sgd(),
        seed=config.seed,
        losses=needs.losses,
        after=needs.after,
        device=device,
        client=config.client.name,
        client_options=config.client.options,
    )
    world = World(trace, data.n_clients)
    _check_time_passes(config, world)
    plan = _plan(config, data, network.P, bench.method())
    return Setup(config, data, trace, world, plan, bench, server, network)


def _task(config: RunConfig) -> Task:
    section = config.task
    data_dir = section.data_dir or Path(os.environ.get("FEDSIM_DATA", "data"))
    task: Task = plugins.build(
        "task", section.name, section.options, clients=section.clients, seed=config.seed, data_dir=data_dir
    )
    return task


def _check_time_passes(config: RunConfig, world: World) -> None:
    if config.stop.steps is None and len(world.unmodelled) == len(MODELLED):
        raise ConfigError(
            "stop.steps: needed, because the world models no downlink, compute or uplink: jobs take no time, and "
            "stop.time would never come"
        )


def _plan(config: RunConfig, data: FederatedData, n_params: int, method: ClientMethod) -> Plan:
    payload = 4 * n_params if config.cost.payload is None else config.cost.payload
    sizes = data.train.sizes
    each = np.full(data.n_clients, payload, dtype=np.int64)
    samples = sizes * method.passes(config.train.epochs) * config.cost.compute_scale
    return Plan(
        pacing=config.pacing.pacing(),
        selector=plugins.build("selector", config.selection.name, config.selection.options),
        work=Work(each, samples, each),
        n_samples=sizes,
        stop=Stop(config.stop.steps, config.stop.time),
        seed=config.seed,
        evaluate_every=config.evaluate.every_steps,
        evaluate_split=config.evaluate.split,
        evaluate_personal=config.evaluate.personal and method.personal is not None,
    )
