"""From a configuration to the parts of a run: data, network, world and plan. Everything is built before it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim import plugins
from fedsim.client import ClientMethod
from fedsim.columns import array
from fedsim.config import RunConfig
from fedsim.config_world import world_trace
from fedsim.confound import confounded
from fedsim.costs import Costs, whole_work
from fedsim.course import Evaluate, Plan
from fedsim.data import FederatedData, Task
from fedsim.errors import ConfigError
from fedsim.federate import federate
from fedsim.known import read_only
from fedsim.local import WorkbenchSpec
from fedsim.memory import Footprint, history_size
from fedsim.modes import resolve_mode
from fedsim.network import Network, build_network
from fedsim.rng import rng
from fedsim.selection import Facts, Selector
from fedsim.server import ServerSpec
from fedsim.stack import GramLevel
from fedsim.trace import MODELLED, Trace
from fedsim.world import World

Ints = NDArray[np.int64]

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

    def footprint(self, workers: int) -> Footprint:
        """Return what decides how much memory the run takes."""
        return Footprint(
            self.server,
            self.plan.pacing,
            data_bytes=self.data.nbytes,
            trace_bytes=self.trace.nbytes,
            workers=workers,
            method=self.bench.method(),
            history=self.server.history,
        )


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
        seed=config.seed,
    )


def prepare(config: RunConfig, device: str = "cpu") -> Setup:
    """Build all parts. Raises ConfigError, DataError or TraceError before anything is written."""
    task, data = federation(config)
    model = config.model.name if config.model else task.model
    options = config.model.options if config.model else {}
    network = build_network(model, options, data.x.shape[1:], data.n_classes)
    counts = label_counts(data)
    trace = _world(config, data, counts)
    pacing = config.pacing.pacing()
    algorithm = config.algorithm
    server = ServerSpec(
        rule=algorithm.name,
        options=algorithm.options,
        n_clients=data.n_clients,
        total_samples=int(data.train.sizes.sum()),
        most_updates=pacing.most_updates,
        blocks=network.blocks,
        wrap=[wrapper.named() for wrapper in algorithm.wrap],
        lr=config.train.lr,
        conflicts=_LEVELS[config.record.conflicts],
        device=device,
        rows=algorithm.rows,
        memory_us=algorithm.memory,
        late_rows=pacing.late == "history",
    )
    needs = server.algorithm().needs
    if server.late_rows and not needs.memory:
        raise ConfigError(
            f"pacing.late: 'history' needs a rule that remembers absent clients, and {algorithm.name!r} does not: use "
            "'drop', or give it a memory with the wrapper 'external' or 'with_absent'"
        )
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
        some=_some(config, data.n_clients),
        mode=config.train.mode,
    )
    mode = resolve_mode(bench.mode, network.module, bench.method(), device)
    history = config.memory.plan(history_size(server), device)
    bench, server = replace(bench, mode=mode), replace(server, history=history)
    config = config.settled(mode, history)
    world = World(trace, data.n_clients, leave=config.dropout.leave, unknown=config.world.unknown)
    _check_time_passes(config, world)
    plan = _plan(config, data, _facts(data, counts, trace), network, bench)
    return Setup(config, data, trace, world, plan, bench, server, network)


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


def _check_time_passes(config: RunConfig, world: World) -> None:
    if config.stop.steps is None and len(world.unmodelled) == len(MODELLED):
        raise ConfigError(
            "stop.steps: needed, because the world models no downlink, compute or uplink: jobs take no time, and "
            "stop.time would never come"
        )


def _some(config: RunConfig, n_clients: int) -> tuple[int, ...] | None:
    """Draw the clients that are evaluated, if not all are."""
    wanted = config.evaluate.clients
    if wanted is None or wanted >= n_clients:
        return None
    return tuple(sorted(rng(config.seed, "evaluate").choice(n_clients, wanted, replace=False).tolist()))


def _plan(
    config: RunConfig, data: FederatedData, facts: Facts, network: Network, bench: WorkbenchSpec
) -> Plan:
    method, how = bench.method(), config.evaluate
    selector: Selector = plugins.build("selector", config.selection.name, config.selection.options)
    if "deadline" in selector.needs and config.pacing.pacing().deadline_us is None:
        raise ConfigError(
            f"selection: {config.selection.name!r} needs a deadline: give the pacing one, or the selector its own"
        )
    return Plan(
        pacing=config.pacing.pacing(),
        selector=selector,
        costs=_costs(config, data, network, method, facts),
        facts=facts,
        stop=config.stop.stop(),
        seed=config.seed,
        evaluate=Evaluate(
            every_steps=how.every_steps,
            every_us=how.every,
            split=how.split,
            personal=how.personal and method.personal is not None,
            clients=None if bench.some is None else np.array(bench.some),
        ),
        dropout=config.dropout.handling(),
    )


def _costs(
    config: RunConfig, data: FederatedData, network: Network, method: ClientMethod, facts: Facts
) -> Costs:
    cost, train, sizes = config.cost, config.train.local_sgd(), data.train.sizes
    work = whole_work(
        cost.formula,
        payload_bytes=4 * network.P if cost.payload is None else cost.payload,
        sizes=sizes,
        passes=method.passes(train.epochs),
        epochs=train.epochs,
        batch_size=train.batch_size,
        scale=cost.compute_scale * (network.flops / cost.reference_flops if cost.reference_flops else 1.0),
        fedscale_steps=cost.fedscale_steps,
        flash_most_samples=cost.flash_most_samples,
    )
    steps = train.epochs * np.ceil(sizes / (train.batch_size or np.maximum(sizes, 1))).astype(np.int64)
    return Costs(
        work=work,
        steps=np.maximum(steps, 1),
        epochs=train.epochs,
        seed=config.seed,
        jitter=cost.jitter.jitter(facts.about),
        completeness=cost.completeness.completeness(),
        chance=config.dropout.by_chance(),
    )


def label_counts(data: FederatedData) -> Ints:
    """Return [K, C] the training samples of each client by label."""
    owner = np.repeat(np.arange(data.n_clients), data.train.sizes)
    cell = owner * data.n_classes + data.y[data.train.indices]
    return np.bincount(cell, minlength=data.n_clients * data.n_classes).reshape(-1, data.n_classes)


def _facts(data: FederatedData, counts: Ints, trace: Trace) -> Facts:
    """Return what is known of the clients before a run: sizes, labels, and what the trace says of them."""
    about = {n: array(trace.about.column(n))[: data.n_clients] for n in trace.about.column_names}
    return Facts(
        n_samples=read_only(data.train.sizes),
        label_counts=read_only(counts),
        about={name: read_only(column) for name, column in about.items()},
    )
