"""Builds all parts of a run from its configuration before the run starts: data, network, world and plan."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.rng import rng
from fedsim.config.requirements import refuse_idle
from fedsim.config.run import RunConfig
from fedsim.data.client_names import check_present
from fedsim.data.federated_data import UNSEEN, FederatedData
from fedsim.engine.audit import Audit
from fedsim.engine.client_records import read_only
from fedsim.engine.remembered import Memory
from fedsim.engine.selector import Facts, Selector
from fedsim.engine.state import Evaluate, Plan
from fedsim.runs.combinations import check_ends, check_network, check_parts
from fedsim.runs.inputs import InputCache, RunInputs
from fedsim.runs.memory_estimate import history_size, updates_size
from fedsim.runs.spec import RunSpec
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import GramLevel, Needs
from fedsim.server.spec import ServerSpec
from fedsim.training.attack import Droppers
from fedsim.training.modes import resolve_mode
from fedsim.training.network import Network, build_network
from fedsim.training.settings import WorkbenchSpec
from fedsim.worlds.world import World

_LEVELS: dict[str, GramLevel] = {"off": "none", "model": "model", "layers": "blocks"}


@plugins.contained()
def prepare(
    config: RunConfig, device: str = "cpu", cache: InputCache | None = None, server_on: str | None = None
) -> RunSpec:
    """Build all parts of a run. Raises ConfigError, DataError or TraceError before anything is written.

    Args:
        device: where the server and the clients compute: "cpu" or "cuda".
        cache: builds data and world; pass the same cache to runs that share them.
        server_on: where the server computes, if not there.
    """
    server_on = server_on or device
    refuse_idle(config)
    inputs = (cache or InputCache()).inputs(config)
    data, trace = inputs.data, inputs.trace
    model, options = (config.model.name, config.model.options) if config.model else (inputs.model, {})
    network = build_network(model, options, data.x.shape[1:], data.n_classes)
    server = _server(config, data, network, server_on)
    needs = server.algorithm().needs
    bench = _workbench(config, data, needs, model, device)
    selector = _selector(config)
    check_parts(config, server, selector, bench, data)
    check_network(config, network, bench)
    mode = resolve_mode(bench.mode, network.module, bench.method(), device)
    bench, server = replace(bench, mode=mode), _with_plans(config, server, selector, server_on)
    asked = config.memory
    config = config.settled(mode, server.updates or cast(HistoryPlan, server.history))
    check_present(data.names, trace)
    world = World(trace, data.n_clients, leave=config.dropout.leave, unknown=config.world.unknown)
    check_ends(config, world)
    plan = _plan(config, inputs, network, bench, selector, server)
    return RunSpec(config, data, trace, world, plan, bench, server, network, asked, inputs.files)


def _server(config: RunConfig, data: FederatedData, network: Network, device: str) -> ServerSpec:
    """Return the server's specification, without the plan of its history."""
    algorithm, train = config.algorithm, config.train
    return ServerSpec(
        rule=algorithm.name,
        options=algorithm.options,
        n_clients=data.n_clients,
        total_samples=int(data.train.sizes.sum()),
        most_updates=config.pacing.pacing().most_updates,
        blocks=network.blocks,
        wrap=[wrapper.named() for wrapper in algorithm.wrap],
        lr=train.lr,
        momentum=train.momentum,
        seed=config.seed_of("train"),
        lr_decay=train.lr_decay,
        conflicts=_LEVELS[config.record.conflicts],
        device=device,
        rows=algorithm.rows,
        memory_us=algorithm.memory,
        late_rows=_late_rows(config),
        evaluated=config.evaluate.model,
        bad_updates=config.bad_updates.rule(),
    )


def _selector(config: RunConfig) -> Selector:
    """Return the run's selector. Raises ConfigError if it needs a deadline or evaluations that the run has not."""
    selector: Selector = plugins.build("selector", config.selection.name, config.selection.options)
    if "deadline" in selector.needs and config.pacing.pacing().deadline_us is None:
        raise ConfigError(
            f"selection: {config.selection.name!r} needs a deadline: give the pacing one, or the selector its own"
        )
    if "accuracy" in selector.needs and not (config.evaluate.every_steps or config.evaluate.every):
        raise ConfigError(
            f"selection: {config.selection.name!r} needs the clients' accuracies: expected evaluate.every_steps or "
            "evaluate.every above 0, found 0"
        )
    return selector


def _with_plans(config: RunConfig, server: ServerSpec, selector: Selector, device: str) -> ServerSpec:
    """Return the server's specification with what it keeps of updates, for its rule and for the selector."""
    sizes = [history_size(server)]
    if "updates" in selector.needs:
        sizes.append(updates_size(server))
    history, *others = config.memory.plans(sizes, device)
    norms = bool({"norms", "updates"} & selector.needs)
    return replace(server, history=history, norms=norms, updates=others[0] if others else None)


def _workbench(
    config: RunConfig, data: FederatedData, needs: Needs, model: str, device: str
) -> WorkbenchSpec:
    """Return the workbench's specification; `needs` are the aggregation rule's."""
    return WorkbenchSpec(
        model=model,
        model_options=config.model.options if config.model else {},
        in_shape=data.x.shape[1:],
        n_classes=data.n_classes,
        sgd=config.train.local_sgd(),
        seed=config.seed_of("train"),
        attack_seed=config.seed_of("world"),
        longest=config.bad_updates.longest,
        losses=needs.losses,
        after=needs.after,
        device=device,
        client=config.client.name,
        client_options=config.client.options,
        some=_evaluated_clients(config, data),
        mode=config.train.mode,
        adversaries=config.adversaries(),
    )


def _late_rows(config: RunConfig) -> int:
    """Return how many jobs may start from one version if late updates refresh the history; else 0."""
    pacing = config.pacing.pacing()
    if pacing.late != "history":
        return 0
    return config.task.training_clients if config.dropout.handling().replace else pacing.concurrency


def _evaluated_clients(config: RunConfig, data: FederatedData) -> tuple[int, ...] | None:
    """Draw the clients that are evaluated, among those that train and among the unseen ones; None if all are."""
    wanted, sizes = config.evaluate.clients, (data.n_clients, data.n_unseen)
    if wanted is None or wanted >= max(sizes):
        return None
    drawn: list[int] = []
    for first, n, purpose in zip((0, data.n_clients), sizes, ("evaluate", "evaluate unseen"), strict=True):
        chosen = (
            rng(config.seed_of("train"), purpose).choice(n, wanted, replace=False)
            if wanted < n
            else np.arange(n)
        )
        drawn += sorted((first + chosen).tolist())
    return tuple(drawn)


def _plan(
    config: RunConfig,
    inputs: RunInputs,
    network: Network,
    bench: WorkbenchSpec,
    selector: Selector,
    server: ServerSpec,
) -> Plan:
    sizes, facts, algorithm = inputs.data.train.sizes, _facts(inputs), server.algorithm()
    most = server.history.remembered if server.history else None
    return Plan(
        pacing=config.pacing.pacing(),
        selector=selector,
        costs=config.costs(sizes, network.P, network.flops, facts.about),
        facts=facts,
        stop=config.stop.stop(),
        seed=config.seed_of("train"),
        evaluate=_evaluate(config, inputs.data, bench),
        dropout=config.dropout.handling(),
        droppers=Droppers.among(bench.adversaries, config.seed_of("world")),
        audit=_audit(config),
        memory=Memory(algorithm.needs.memory, server.memory_us, most),
        start=algorithm.start,
        inclusion=algorithm.needs.inclusion != "none",
        selector_named=f"selector {config.selection.name!r}",
    )


def _evaluate(config: RunConfig, data: FederatedData, bench: WorkbenchSpec) -> Evaluate:
    """Return when and on whom the run evaluates, with personal models if the client method has them."""
    evaluate, method = config.evaluate, bench.method()
    return Evaluate(
        every_steps=evaluate.every_steps,
        every_us=evaluate.every,
        split=evaluate.split,
        also=(*evaluate.also, UNSEEN) if data.n_unseen else evaluate.also,
        personal=evaluate.personal and method.personal is not None,
        adapted=evaluate.personal and method.adapt is not None and data.n_unseen > 0,
        clients=None if bench.some is None else np.array(bench.some),
    )


def _audit(config: RunConfig) -> Audit | None:
    """Return when and on whom the run audits."""
    audit = config.audit
    return Audit(audit.every, audit.clients, config.seed_of("train")) if audit.every else None


def _facts(inputs: RunInputs) -> Facts:
    """Return the facts on clients that are known before a run: sizes, labels and the trace's columns."""
    about = inputs.trace.about_columns(inputs.data.n_clients)
    return Facts(
        n_samples=read_only(inputs.data.train.sizes),
        label_counts=read_only(inputs.counts),
        about={name: read_only(column) for name, column in about.items()},
    )
