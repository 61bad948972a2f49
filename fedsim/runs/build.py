"""Builds all parts of a run from its configuration before the run starts: data, network, world and plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common import plugins, threads
from fedsim.common.errors import ConfigError
from fedsim.common.rng import rng
from fedsim.config.requirements import refuse_idle
from fedsim.config.run import RunConfig
from fedsim.data.federated_data import UNSEEN, FederatedData
from fedsim.engine.audit import Audit
from fedsim.engine.client_records import read_only
from fedsim.engine.selector import Facts, Selector
from fedsim.engine.state import Evaluate, Plan
from fedsim.runs.inputs import InputCache
from fedsim.runs.memory_estimate import Footprint, check_fits, check_fits_gpu, history_size, updates_size
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import Algorithm, GramLevel, Needs
from fedsim.server.server import ServerSpec
from fedsim.training.attack import Droppers, rememberers
from fedsim.training.attacked_jobs import relabelled
from fedsim.training.augmentation import check_images
from fedsim.training.client_method import ClientMethod
from fedsim.training.evaluation import EVAL_ROWS
from fedsim.training.modes import resolve_mode
from fedsim.training.network import Network, build_network
from fedsim.training.precision import lowered
from fedsim.training.settings import WorkbenchSpec
from fedsim.training.threaded_workbench import is_large, is_serial, worth
from fedsim.worlds.trace import MODELLED, Trace
from fedsim.worlds.world import World

Ints = NDArray[np.int64]

_LEVELS: dict[str, GramLevel] = {"off": "none", "model": "model", "layers": "blocks"}


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

    def outlives(self, until_us: int | None) -> str:
        """Return a warning if a run until then outlasts its world, with what follows the horizon; else `""`."""
        if until_us is None or until_us <= self.world.horizon_us:
            return ""
        return f"{self.config.name}: longer than its world, which is {self.world.duration_text()}"

    def initial(self) -> torch.Tensor:
        """Return the start parameters [P], the same for equal seeds and models."""
        return self.network.initial(self.config.seed_of("train"))

    def auto_workers(self, cores: int, gpus: int) -> int:
        """Return the number of workers that `workers="auto"` stands for; 0: this process trains all clients.

        The number depends on GPUs, cores and model, never on a measurement. Several GPUs get one worker each. More
        cores than one process has threads (8) get one worker per core. With fewer cores, this process is at least as
        fast. The exception is a large model that trains in one thread, because it draws random numbers (dropout) or
        clients keep state: it gets one worker per core.
        """
        if self.server.device.startswith("cuda"):
            return gpus if gpus > 1 else 0
        slow = is_large(self.bench, self.network, self.data.train.sizes) and is_serial(
            self.bench, self.network, self.bench.method()
        )
        return cores if cores > threads.MOST or (slow and cores > 1) else 0

    def footprint(self, workers: int) -> Footprint:
        """Return the facts that determine the run's memory."""
        method = self.bench.method()
        threaded = worth(self.bench, self.network, method, self.data.train.sizes)
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
            forward_bytes=0 if self.server.device.startswith("cuda") else self._forward_bytes(),
            threads=threads.most() if threaded else 1,
            unseen=self.data.n_unseen,
        )

    def check_fits(self, workers: int) -> None:
        """Raise ConfigError if the run would not fit into the memory of this machine or its GPU."""
        footprint = self.footprint(workers)
        check_fits(footprint.parts(), self.config.algorithm.name, helpful=footprint.savings)
        check_fits_gpu(footprint)

    def _forward_bytes(self) -> int:
        """Return the float32 bytes of a layer's input and output, for as many samples as one evaluation batch has."""
        rows = max(len(split.indices) for split in self.data.splits().values())
        return 4 * self.network.widest * min(rows, EVAL_ROWS)


@plugins.contained()
def prepare(config: RunConfig, device: str = "cpu", cache: InputCache | None = None) -> RunSpec:
    """Build all parts of a run. Raises ConfigError, DataError or TraceError before anything is written.

    Args:
        device: where the server and the clients compute: "cpu" or "cuda".
        cache: builds data and world; pass the same cache to runs that share them.
    """
    refuse_idle(config)
    inputs = (cache or InputCache()).inputs(config)
    data, trace = inputs.data, inputs.trace
    model, options = (config.model.name, config.model.options) if config.model else (inputs.model, {})
    network = build_network(model, options, data.x.shape[1:], data.n_classes)
    server = _server(config, data, network, device)
    needs = server.algorithm().needs
    bench = _workbench(config, data, needs, model, device)
    _check_together(config, server, bench, data)
    _check_precision(network, bench)
    mode = resolve_mode(bench.mode, network.module, bench.method(), device)
    selector = _selector(config)
    bench, server = replace(bench, mode=mode), _with_plans(config, server, selector, device)
    config = config.settled(mode, server.updates or cast(HistoryPlan, server.history))
    world = World(trace, data.n_clients, leave=config.dropout.leave, unknown=config.world.unknown)
    _check_ends(config, world)
    plan = _plan(config, data, _facts(data, inputs.counts, trace), network, bench, selector)
    plan = replace(plan, audit=_audit(config, needs.memory), start=server.algorithm().start)
    return RunSpec(config, data, trace, world, plan, bench, server, network)


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
        bad_updates=config.bad_updates.rule(),
    )


def _selector(config: RunConfig) -> Selector:
    """Return the run's selector. Raises ConfigError if it needs a deadline and the pacing has none."""
    selector: Selector = plugins.build("selector", config.selection.name, config.selection.options)
    if "deadline" in selector.needs and config.pacing.pacing().deadline_us is None:
        raise ConfigError(
            f"selection: {config.selection.name!r} needs a deadline: give the pacing one, or the selector its own"
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
        losses=needs.losses,
        after=needs.after,
        device=device,
        client=config.client.name,
        client_options=config.client.options,
        some=_evaluated_clients(config, data),
        mode=config.train.mode,
        adversaries=config.adversaries(),
    )


def _check_rule(config: RunConfig, server: ServerSpec, data: FederatedData) -> None:
    """Refuse a rule that lacks what the pacing asks of it, or that asks for more than the training gives."""
    needs = server.algorithm().needs
    if server.late_rows and not needs.memory:
        raise ConfigError(
            f"pacing.late: 'history' needs a rule that remembers absent clients, and {server.rule!r} does not: use "
            "'drop', or give it a memory with the wrapper 'external' or 'with_absent'"
        )
    if needs.gradients:
        _check_gradients(config, data.train.sizes)


def _check_start(config: RunConfig, server: ServerSpec) -> None:
    """Refuse what takes updates of the current model for granted, if clients start from the models that they hold."""
    if server.algorithm().start == "current":
        return
    last = f"rule {server.rule!r} starts clients from the models that they received last"
    if server.rows != "start":
        raise ConfigError(f"algorithm.rows: {last}: expected 'start', found {server.rows!r}")
    if server.late_rows:
        raise ConfigError(f"pacing.late: {last}: expected 'drop' or 'keep', found 'history'")
    if config.audit.every:
        raise ConfigError(
            f"audit.every: {last}, and an audit starts all from the current one: expected 0, found {config.audit.every}"
        )


def _check_together(config: RunConfig, server: ServerSpec, bench: WorkbenchSpec, data: FederatedData) -> None:
    """Refuse combinations that no single table of the configuration can check."""
    _check_start(config, server)
    _check_rule(config, server, data)
    _check_halves(config, server.algorithm(), bench.method())
    least = config.pacing.pacing().least_candidates
    if least > server.n_clients:
        raise ConfigError(
            f"pacing.least_candidates: expected at most {server.n_clients}, the number of clients, found {least}"
        )
    for adversary in bench.adversaries:
        relabelled(adversary, adversary.attack(), torch.arange(bench.n_classes), bench.n_classes)
    for split in (config.evaluate.split, *config.evaluate.also):
        if not len(data.splits()[split].indices):
            key = "split" if split == config.evaluate.split else "also"
            raise ConfigError(
                f"evaluate.{key}: no client has samples of {split!r}: give it a share in task.fractions, or "
                "use another split"
            )
    if bench.sgd.augment is not None:
        check_images(bench.sgd.augment, bench.in_shape)
    if config.audit.every and bench.method().keeps:
        raise ConfigError(
            f"audit: clients keep state from job to job (client method {config.client.name!r}, or an attack that "
            "replays), and the audit's jobs would change it: use another method, or no audit"
        )


def _check_halves(config: RunConfig, algorithm: Algorithm, method: ClientMethod) -> None:
    """Refuse a rule without the client method that it is one half of, and the reverse."""
    rule, client = config.algorithm.name, config.client.name
    if algorithm.client not in ("", client):
        raise ConfigError(
            f"client.name: rule {rule!r} is one half of a method: expected {algorithm.client!r}, found {client!r}"
        )
    if method.rule not in ("", rule):
        raise ConfigError(
            f"algorithm.name: client {client!r} is one half of a method: expected {method.rule!r}, found {rule!r}"
        )
    down, up = (algorithm.sends, method.receives), (method.sends, algorithm.receives)
    for (sent, received), sender, receiver in (
        (down, "rule", "client method"),
        (up, "client method", "rule"),
    ):
        if sent != received:
            raise ConfigError(
                f"client.name: rule {rule!r} and client method {client!r} do not fit: the {sender} sends the vectors "
                f"{list(sent)} and the {receiver} receives {list(received)}"
            )


def _check_gradients(config: RunConfig, sizes: Ints) -> None:
    """Refuse training in which a job is not one gradient step on all samples; clients have `sizes` [K] samples."""
    train = config.train
    wants = f"rule {config.algorithm.name!r} wants one gradient step on all samples of a client"
    if train.batch_size != "full" and train.batch_size < sizes.max(initial=0):
        raise ConfigError(
            f"train.batch_size: {wants}: expected 'full', found {train.batch_size}, and client {sizes.argmax()} has "
            f"{sizes.max()} samples"
        )
    if train.epochs != 1:
        raise ConfigError(f"train.epochs: {wants}: expected 1, found {train.epochs}")
    if train.momentum:
        raise ConfigError(f"train.momentum: {wants}: expected 0, found {train.momentum}")
    if (mode := config.cost.completeness.mode) != "all":
        raise ConfigError(f"cost.completeness.mode: {wants}: expected 'all', found {mode!r}")


def _check_precision(network: Network, bench: WorkbenchSpec) -> None:
    """Refuse a precision in which this processor cannot compute the model; a GPU is not checked here."""
    if bench.sgd.precision != "bfloat16" or bench.device.startswith("cuda"):
        return
    module, was_training = network.module, network.module.training
    try:
        with torch.no_grad(), lowered(bench.sgd.precision, torch.device(bench.device)):
            module.eval()(torch.zeros(1, *bench.in_shape))
    except RuntimeError as error:
        raise ConfigError(
            f"train.precision: model {network.name!r} cannot compute in 'bfloat16' on this machine: {error}; "
            "use 'float32'"
        ) from error
    finally:
        module.train(was_training)


def _late_rows(config: RunConfig) -> int:
    """Return how many jobs may start from one version if late updates refresh the history; else 0."""
    pacing = config.pacing.pacing()
    if pacing.late != "history":
        return 0
    return config.task.training_clients if config.dropout.handling().replace else pacing.concurrency


def _check_ends(config: RunConfig, world: World) -> None:
    """Refuse a run that would never end, or end without a step."""
    pacing, dropout = config.pacing.pacing(), config.dropout
    empty = config.cost.payload == 0
    if config.stop.steps is None and {"compute", *(() if empty else MODELLED)} <= set(world.unmodelled):
        none = "compute, and cost.payload is 0" if empty else "downlink, compute or uplink"
        raise ConfigError(
            f"stop.steps: required, because the world models no {none}: jobs take zero time, and "
            "stop.time is never reached; [world.join] takes speeds from another world, such as the file of "
            "`fedsim trace make always_on -o devices.parquet`"
        )
    if pacing.least_candidates > 1 and pacing.least_candidates > (most := world.most_online()):
        raise ConfigError(
            f"pacing.least_candidates: expected at most {most}, as many clients as this world ever has online "
            f"together, found {pacing.least_candidates}"
        )
    counts = pacing.refill == "arrival" and pacing.deadline_us is None
    if dropout.chance == 1 and dropout.law == "same" and counts:
        raise ConfigError(
            "dropout.chance: expected less than 1, because the server waits for enough updates before it steps: "
            "1 loses every job, so it would never step"
        )


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
    data: FederatedData,
    facts: Facts,
    network: Network,
    bench: WorkbenchSpec,
    selector: Selector,
) -> Plan:
    evaluate, method = config.evaluate, bench.method()
    return Plan(
        pacing=config.pacing.pacing(),
        selector=selector,
        costs=config.costs(data.train.sizes, network.P, network.flops, facts.about),
        facts=facts,
        stop=config.stop.stop(),
        seed=config.seed_of("train"),
        evaluate=Evaluate(
            every_steps=evaluate.every_steps,
            every_us=evaluate.every,
            split=evaluate.split,
            also=(*evaluate.also, UNSEEN) if data.n_unseen else evaluate.also,
            personal=evaluate.personal and method.personal is not None,
            adapted=evaluate.personal and method.adapt is not None and data.n_unseen > 0,
            clients=None if bench.some is None else np.array(bench.some),
        ),
        dropout=config.dropout.handling(),
        droppers=Droppers.among(bench.adversaries, config.seed_of("world")),
    )


def _audit(config: RunConfig, memory: float) -> Audit | None:
    """Return when and on whom the run audits; `memory` is that of the aggregation rule."""
    audit = config.audit
    return Audit(audit.every, audit.clients, memory, config.seed_of("train")) if audit.every else None


def _facts(data: FederatedData, counts: Ints, trace: Trace) -> Facts:
    """Return the facts on clients that are known before a run: sizes, labels and the trace's columns."""
    about = trace.about_columns(data.n_clients)
    return Facts(
        n_samples=read_only(data.train.sizes),
        label_counts=read_only(counts),
        about={name: read_only(column) for name, column in about.items()},
    )
