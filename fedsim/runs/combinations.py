"""Refuses combinations of options that no table of the configuration can check alone."""

from __future__ import annotations

import torch

from fedsim.common.arrays import Ints
from fedsim.common.errors import ConfigError
from fedsim.config.run import RunConfig
from fedsim.data.federated_data import FederatedData
from fedsim.engine.selector import Selector
from fedsim.server.rule import Algorithm, Inclusion
from fedsim.server.spec import ServerSpec
from fedsim.training.attacked_jobs import relabelled
from fedsim.training.augmentation import check_images
from fedsim.training.client_method import ClientMethod
from fedsim.training.network import Network
from fedsim.training.precision import lowered
from fedsim.training.settings import WorkbenchSpec
from fedsim.worlds.trace import MODELLED
from fedsim.worlds.world import World


def check_parts(
    config: RunConfig, server: ServerSpec, selector: Selector, bench: WorkbenchSpec, data: FederatedData
) -> None:
    """Refuse parts that do not fit each other or the data: rule, selector, pacing, client method, attacks, splits."""
    _check_start(config, server)
    _check_inclusion(config, server.algorithm().needs.inclusion, selector)
    _check_rule(config, server, data, bench.method())
    _check_halves(config, server.algorithm(), bench.method())
    _check_two_steps(config, bench.method())
    least = config.pacing.pacing().least_candidates
    if least > server.n_clients:
        raise ConfigError(
            f"pacing.least_candidates: expected at most {server.n_clients}, the number of clients, found {least}"
        )
    for adversary in bench.adversaries:
        relabelled(adversary, adversary.attack(), torch.arange(bench.n_classes), bench.n_classes)
    _check_splits(config, data)
    if bench.sgd.augment is not None:
        check_images(bench.sgd.augment, bench.in_shape)
    if config.audit.every and bench.method().keeps:
        raise ConfigError(
            f"audit: clients keep state from job to job (client method {config.client.name!r}, or an attack that "
            "replays), and the audit's jobs would change it: use another method, or no audit"
        )


def _check_two_steps(config: RunConfig, method: ClientMethod) -> None:
    """Refuse what two steps by one gradient, taken as one, would apply once."""
    if not method.plain_step_first:
        return
    for key, value in (("momentum", config.train.momentum), ("weight_decay", config.train.weight_decay)):
        if value:
            raise ConfigError(
                f"train.{key}: client method {config.client.name!r} makes two steps by each gradient: expected 0, "
                f"found {value}"
            )


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


def _check_inclusion(config: RunConfig, wanted: Inclusion, selector: Selector) -> None:
    """Refuse a rule that divides by inclusion probabilities where there are none, or where they are not a step's."""
    if wanted == "none":
        return
    rule = f"rule {config.algorithm.name!r} divides by the probabilities with which clients are chosen"
    if not selector.draws:
        raise ConfigError(
            f"selection.name: {rule}, and {config.selection.name!r} draws none but ties: expected a selector that "
            "draws, such as 'uniform', or a rule that counts, such as 'debiased' with rate = \"count\""
        )
    pacing = config.pacing.pacing()
    at_once = pacing.cancels and pacing.refill == "step" and not config.dropout.replace
    if wanted == "rates" and not (at_once and pacing.most_updates == pacing.concurrency):
        raise ConfigError(
            f"algorithm.rate: {rule} for a step, which are known where all clients of a step are chosen at once and "
            "all may count: with pacing.refill = 'step' and pacing.late = 'drop', without over-selection and without "
            "dropout.replace; expected these, normalise = true, or another rate such as 'count'"
        )


def _check_rule(config: RunConfig, server: ServerSpec, data: FederatedData, method: ClientMethod) -> None:
    """Refuse a rule that lacks what the pacing asks of it, or that asks for more than the training gives."""
    algorithm = server.algorithm()
    needs = algorithm.needs
    if algorithm.as_sent:
        _check_as_sent(config, server)
    if server.late_rows and not needs.memory:
        raise ConfigError(
            f"pacing.late: 'history' needs a rule that remembers absent clients, and {server.rule!r} does not: use "
            "'drop', or give it a memory with the wrapper 'external' or 'with_absent'"
        )
    if server.late_rows and algorithm.receives:
        raise ConfigError(
            f"pacing.late: rule {server.rule!r} receives vectors beside the updates that count, and late ones that are "
            "only remembered would bring theirs in vain: expected 'drop' or 'keep', found 'history'"
        )
    if needs.gradients:
        _check_gradients(config, data.train.sizes, method)


def _check_as_sent(config: RunConfig, server: ServerSpec) -> None:
    """Refuse what changes updates on their way to a rule that needs them as clients sent them."""
    needs = (
        f"rule {server.rule!r} follows what clients keep by their updates, and needs these as they were sent"
    )
    if server.rows != "start":
        raise ConfigError(f"algorithm.rows: {needs}: expected 'start', found {server.rows!r}")
    if config.bad_updates.policy == "clip":
        raise ConfigError(f"bad_updates.policy: {needs}: expected 'skip_and_record' or 'stop', found 'clip'")


def _check_gradients(config: RunConfig, sizes: Ints, method: ClientMethod) -> None:
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
    for key, value in (("momentum", train.momentum), ("weight_decay", train.weight_decay)):
        if value:
            raise ConfigError(f"train.{key}: {wants}: expected 0, found {value}")
    if config.algorithm.rows != "start":
        raise ConfigError(f"algorithm.rows: {wants}: expected 'start', found {config.algorithm.rows!r}")
    if (mode := config.cost.completeness.mode) != "all":
        raise ConfigError(f"cost.completeness.mode: {wants}: expected 'all', found {mode!r}")
    if method.plain_step_first:
        raise ConfigError(f"client.name: {wants}, and client method {config.client.name!r} makes two")
    if method.train is not None and not method.reports_loss:
        raise ConfigError(
            f"client.name: {wants}, and client method {config.client.name!r} descends another loss"
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


def _check_splits(config: RunConfig, data: FederatedData) -> None:
    """Refuse evaluations on a split without samples."""
    for split in (config.evaluate.split, *config.evaluate.also):
        if not len(data.splits()[split].indices):
            key = "split" if split == config.evaluate.split else "also"
            raise ConfigError(
                f"evaluate.{key}: no client has samples of {split!r}: give it a share in task.fractions, or "
                "use another split"
            )


def check_network(config: RunConfig, network: Network, bench: WorkbenchSpec) -> None:
    """Refuse a model that cannot be trained as asked on its device."""
    _check_precision(network, bench)
    _check_derivatives(config, network, bench)


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


def _check_derivatives(config: RunConfig, network: Network, bench: WorkbenchSpec) -> None:
    """Refuse a method that differentiates gradients of recurrent layers on a GPU, where cuDNN computes these."""
    recurrent = any(isinstance(module, torch.nn.RNNBase) for module in network.module.modules())
    if bench.method().second_derivatives and recurrent and bench.device.startswith("cuda"):
        raise ConfigError(
            f"client.name: method {config.client.name!r} differentiates gradients, which the recurrent layers of model "
            f"{network.name!r} do not have on a GPU: use --device cpu, another model, or first-order gradients"
        )


TAKE_SPEEDS = (
    "[world.join] takes speeds from another world, such as the file of "
    "`fedsim trace make always_on -o devices.parquet`"
)


def without_time(config: RunConfig, world: World) -> str:
    """Return what the world does not model if jobs take no time; empty if they take some."""
    empty = config.cost.payload == 0
    if not {"compute", *(() if empty else MODELLED)} <= set(world.unmodelled):
        return ""
    return "compute, and cost.payload is 0" if empty else "downlink, compute or uplink"


def check_ends(config: RunConfig, world: World) -> None:
    """Refuse a run that would never end, or end without a step."""
    pacing, dropout = config.pacing.pacing(), config.dropout
    # Deadlines pass even if jobs take no time.
    at_deadlines = pacing.buffer is None and pacing.deadline_us is not None
    if config.stop.steps is None and not at_deadlines and (none := without_time(config, world)):
        raise ConfigError(
            f"stop.steps: required, because the world models no {none}: jobs take zero time, and stop.time is never "
            f"reached; {TAKE_SPEEDS}"
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
    if counts and (names := _drop_all(config)):
        raise ConfigError(
            f"adversary: expected some updates to arrive, found that {' and '.join(names)} loses those of all clients: "
            "the server waits for enough updates before it steps, so it would never step"
        )


def _drop_all(config: RunConfig) -> list[str]:
    """Return the names of the attacks that drop all updates of all clients together; none if some updates arrive."""
    always = [
        a
        for a in config.adversaries()
        if a.attack().drops and a.chance == 1 and not a.after_us and a.until_us is None and a.steps is None
    ]
    dropped = {client for a in always for client in a.clients or ()}
    return sorted({a.name for a in always}) if len(dropped) == config.task.training_clients else []
