"""What to write in place of a name or a key that a configuration does not know.

Names of plug-ins are looked for among the plug-ins of all kinds. The tables of this file have keys and names that
other frameworks use: Flower, FLGo, pfl-research, FedScale, FedLab, fluke.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import get_args

from fedsim import plugins
from fedsim.common.errors import closest
from fedsim.engine.pacing import Preset
from fedsim.plugins.options import options_of

_SERVER_OPT = '[[algorithm.wrap]] with name = "server_opt"'

KEYS = {
    "seed": "random_seed rng_seed manual_seed",
    "name": "experiment experiment_name exp_name run_name",
    "task.name": "dataset dataset_name data data_name benchmark",
    "task.clients": "num_clients n_clients client_num clients_num total_clients num_users n_users num_supernodes "
    "num_parties client_num_in_total population",
    "task.data_dir": "data_path data_root data_folder dataset_path dataset_dir",
    "task.fractions": "train_ratio test_ratio val_ratio test_size test_fraction val_fraction train_fraction "
    "train_holdout test_holdout local_holdout client_split train_split test_split",
    "task.unseen": "unseen unseen_clients num_unseen_clients n_unseen held_out heldout held_out_clients "
    "num_held_out_clients holdout_clients new_clients num_new_clients num_novel_clients novel_clients",
    'client.adapt_steps, with client.name = "qmaml"': "num_fine_tune fine_tune_steps finetune_steps "
    "fine_tuning_steps adaptation_steps inner_step_test num_adaptation_steps",
    "model.name": "model_name arch architecture net network backbone",
    'partition.name, such as partition.name = "dirichlet"': "partitioner partition_method distribution "
    "data_distribution data_split split_method iid non_iid noniid heterogeneity",
    'partition.alpha, with partition.name = "dirichlet"': "dirichlet_alpha alpha_dirichlet dir_alpha alpha_dir "
    "dirichlet dirichlet_beta",
    'partition.classes, with partition.name = "pathological"': "classes_per_client labels_per_client "
    "num_classes_per_client n_classes_per_client class_per_client",
    "world.scenario": "scenario simulator availability availability_model client_availability stragglers straggler",
    "world.trace": "trace trace_file device_trace availability_trace behavior_trace device_avail_file",
    "world.horizon": "horizon",
    'pacing.preset, such as pacing.preset = "fedbuff"': "preset async asynchronous async_mode is_async semi_async "
    "synchronous sync scheduler scheduling",
    "pacing.clients, the number of clients of a round": "clients_per_round num_clients_per_round "
    "client_num_per_round num_participants num_selected clients_per_step cohort_size min_fit_clients m",
    "pacing.clients, a number of clients or a share such as 0.1": "C proportion fraction_fit fraction_train frac "
    "fraction client_fraction participation participation_rate participation_fraction eligible_perc sample_rate "
    "sample_ratio sampling_rate client_sample_rate join_ratio",
    'pacing.factor, with pacing.preset = "overselect"': "overcommitment over_commitment over_selection "
    "overselection overcommit",
    "pacing.buffer": "buffer buffer_size async_buffer",
    "pacing.concurrency": "concurrency max_concurrency async_concurrency num_concurrent_clients",
    "pacing.max_staleness": "max_staleness staleness staleness_threshold stale_threshold staleness_limit",
    "pacing.deadline": "deadline round_deadline round_timeout timeout tolerance_for_latency",
    "selection.name": "sampler selector client_selection client_selector client_sampler sampling sample_mode "
    "selection_strategy sample_option",
    "train.lr": "lr learning_rate client_lr local_lr client_learning_rate local_learning_rate step_size eta",
    "train.lr_decay": "lr_decay learning_rate_decay decay_rate lr_scheduler scheduler_gamma",
    "train.epochs": "epochs E local_epochs num_epochs n_epochs local_ep num_local_epochs client_epochs local_epoch "
    "epochs_per_round",
    "train.batch_size": "batch_size B batch bs batchsize local_bs local_batch_size train_batch_size "
    "minibatch_size mini_batch_size client_batch_size",
    "train.momentum": "momentum local_momentum client_momentum",
    "train.weight_decay": "weight_decay wd l2 l2_regularization",
    'client.mu, with client.name = "fedprox"': "mu proximal_mu prox_mu prox_coef proximal_term",
    "client.name": "local_algorithm local_training client_algorithm trainer",
    "algorithm.name": "aggregator strategy aggregation aggregation_rule aggregate agg server method algo fl_algorithm "
    "rule server_strategy gradient_policy",
    "cost.payload": "payload model_size upload_size message_size",
    "dropout.chance": "dropout_rate drop_rate drop_prob dropout_prob dropout_probability failure_rate failure_prob "
    "drop_chance client_dropout",
    "stop.steps": "steps rounds num_rounds n_rounds comm_round comm_rounds communication_rounds global_rounds "
    "global_epochs max_rounds num_server_rounds server_rounds central_num_iterations total_rounds T",
    "stop.time": "max_time time_budget time_limit simulation_time",
    "stop.target": "target target_accuracy target_acc goal_accuracy",
    "stop.patience": "patience early_stop early_stopping",
    "evaluate.every_steps": "eval_interval eval_every eval_freq eval_frequency evaluate_every eval_gap test_every "
    "evaluation_frequency test_interval eval_rounds",
    "adversary.name": "attack attacker attackers byzantine malicious num_malicious attack_type",
    "checkpoint.every_steps": "checkpoint_every save_every save_interval checkpoint_interval",
}  # fmt: skip
"""Keys of fedsim, and the words for them elsewhere or in another table."""

ADVICE = {
    "clients train by SGD: train.lr, train.momentum and train.weight_decay; a server optimiser is "
    + _SERVER_OPT: "optimizer optim local_optimizer client_optimizer",
    "it is " + _SERVER_OPT: "server_lr global_lr server_learning_rate eta_g server_optimizer "
    "server_momentum server_opt beta_1 beta_2",
    "clients train whole epochs: train.epochs": "local_steps num_steps local_iterations local_iters num_local_steps",
    "train.loss": "loss criterion loss_fn objective",
    '[[algorithm.wrap]] with name = "clipped" shortens updates': "clip clipping clip_norm max_grad_norm clipping_norm",
    "it is an option of the command: --device cuda": "device gpu gpus cuda use_gpu use_cuda num_gpus gpu_id",
    "it is an option of the command: --workers 4": "workers num_workers num_processes num_process num_threads "
    "num_thread client_resources num_cpus n_jobs parallel",
    "it is an option of the command: --out DIR": "out output output_dir out_dir save_dir save_path log_dir logdir",
    "it is an option of the command: --tensorboard DIR": "tensorboard logger wandb use_wandb",
    "a file has one 'seed'; several are an option of the command: --seeds 5": "seeds num_seeds n_seeds repeats "
    "num_trials n_trials",
    "speeds are part of the world: world.scenario or world.trace": "bandwidth latency speed compute_speed "
    "network_speed responsiveness",
    "fedsim does not model privacy": "dp privacy noise_multiplier differential_privacy local_dp",
}  # fmt: skip
"""What to do instead of setting a key that fedsim does not have."""

NAMES = {
    "rule": {"mean": "fedavg", "weightedaverage": "fedavg", "average": "fedavg", "qffl": "qfedavg"},
    "wrapper": {
        **dict.fromkeys(("fedopt", "fedadam", "fedyogi", "fedadagrad", "fedavgm"), "server_opt"),
        "normclipping": "clipped",
    },
    "client": {"sgd": "plain", "fedproximal": "fedprox", "perfedavg": "qmaml", "maml": "qmaml"},
    "selector": {
        "random": "uniform", "all": "uniform", "full": "uniform", "poc": "power_of_choice",
        "powd": "power_of_choice", "roundrobin": "round_robin",
    },
    "scenario": {"ideal": "always_on", "none": "always_on", "alwaysavailable": "always_on", "straggler": "stragglers"},
    "task": {"cifar": "cifar10", "fmnist": "fashion_mnist", "fashion": "fashion_mnist"},
    "model": {
        "linear": "softmax", "logistic": "softmax", "logisticregression": "softmax", "lr": "softmax",
        "resnet": "nfresnet", "resnet18": "nfresnet", "resnet20": "nfresnet", "rnn": "lstm", "lenet": "cnn",
        "lenet5": "cnn", "convnet": "cnn",
    },
    "partitioner": {
        "noniid": "dirichlet", "dir": "dirichlet", "lda": "dirichlet", "labelskew": "pathological",
        "random": "iid", "homogeneous": "iid", "shard": "shards",
    },
    "metric": {
        "accuracy": "mean_percent", "acc": "mean_percent", "testaccuracy": "mean_percent", "mean": "mean_percent",
        "worst": "min_percent", "min": "min_percent", "best": "max_percent", "max": "max_percent",
        "std": "std_percent", "variance": "variance_percent2", "fairness": "std_percent", "angle": "angle_deg",
    },
    "adversary": {"noise": "gaussian_noise", "gaussian": "gaussian_noise", "labelflipping": "label_flip",
                  "signflipping": "sign_flip"},
    "preset": {
        "async": "fedasync", "asynchronous": "fedasync", "semiasync": "fedbuff", "buffered": "fedbuff",
        "synchronous": "sync", "overselection": "overselect", "overcommit": "overselect",
    },
}  # fmt: skip
"""Names of plug-ins elsewhere, in lower case without signs, by kind."""

_KINDS = {
    "rule": ("a rule", 'algorithm.name = "{}"'),
    "wrapper": ("a wrapper", '[[algorithm.wrap]] with name = "{}"'),
    "client": ("a client method", 'client.name = "{}"'),
    "selector": ("a selector", 'selection.name = "{}"'),
    "preset": ("a pacing preset", 'pacing.preset = "{}"'),
    "scenario": ("a scenario", 'world.scenario = "{}"'),
    "task": ("a task", 'task.name = "{}"'),
    "model": ("a model", 'model.name = "{}"'),
    "partitioner": ("a partitioner", 'partition.name = "{}"'),
    "adversary": ("an attack", 'adversary.name = "{}"'),
    "metric": ("a metric", 'stop.metric = "{}"'),
}
"""What a plug-in of each kind is, and how a configuration names it."""

_MISSING = {
    "task": 'give [task] with a name and clients, such as name = "digits" and clients = 20',
    "pacing": "give [pacing]: clients = 10 has 10 clients in each round; see docs/pacing.md",
    "stop": "give [stop] with steps, time, bytes or wall, such as steps = 100",
    "clients": "the number of clients that share the data",
    "run": "give [run] with the tables of a run's configuration, such as [run.task]",
}
"""What to write for a key that a configuration must have."""

_NEAR, _NEARER = 0.7, 0.8
"""Likeness, from 0 to 1, above which an option of the same plug-in or a name of another kind is suggested."""


def key_text(key: str) -> str:
    """Return what to write in place of an unknown key, such as `train.lr`; "" if this file does not know the word."""
    return _TEXTS.get(key) or _TEXTS.get(_snake(key), "")


def option_hint(key: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """Return a hint for an unknown option of a plug-in; `known` and `others` are as for `closest`."""
    options = [*known, *others]
    if "share" in others and _snake(key) in _SHARES:
        return ": here it is share, such as 0.2"
    if (text := key_text(key)) and max((_alike(key, option) for option in options), default=0.0) < _NEAR:
        return f": {text}" + (f"; known: {', '.join(sorted(known))}" if known else "")
    return closest(key, known, others)


def scenario_option_hint(key: str) -> str:
    """Return where an option of a scenario stands, if `key` in `[world]` is one; else ""."""
    for name in plugins.names("scenario"):
        if key in options_of(plugins.factory("scenario", name)):
            return f": an option of a scenario stands in [world.options]: world.options.{key}"
    return ""


def missing_hint(key: str, kind: str | None) -> str:
    """Return what to write for a missing key; `kind` is that of the plug-in that the key's table names."""
    if key == "name" and kind is not None:
        return f"; the name of {_KINDS[kind][0]}: {', '.join(plugins.names(kind))}"
    return f"; {_MISSING[key]}" if key in _MISSING else ""


def name_hint(kind: str, name: str) -> str:
    """Return what a name that is no plug-in of its kind stands for, such as `: it is a rule: algorithm.name = "afl"`.

    `kind` is a key of `fedsim.plugins.KINDS` or `preset`. Returns "" if nothing is alike.
    """
    if (own := NAMES.get(kind, {}).get(_plain(name)) or _same(name, _names(kind))) is not None:
        return f": here it is {own!r}"
    others = [each for each in _KINDS if each != kind]
    if places := [_place(each, own) for each in others if (own := _same(name, _names(each)))]:
        return f": it is {' and '.join(places)}"
    if places := [_place(each, own) for each in others if (own := NAMES[each].get(_plain(name)))]:
        return f": here it is {' or '.join(places)}"
    likeness = max((_alike(name, known) for known in _names(kind)), default=0.0)
    near = [(_alike(name, known), each, known) for each in others for known in _names(each)]
    best, other, known = max(near)
    return f"; did you mean {_place(other, known)}?" if best > max(likeness, _NEARER) else ""


def object_hint(loc: tuple[int | str, ...], value: object) -> str:
    """Return how to give what is code or data of Python's to the table at `loc`, or "" if `value` is neither."""
    # Metrics return a float, which is also a value of configurations.
    products = {kind.product for kind in plugins.KINDS.values()} - vars(builtins).keys()
    if not callable(value) and not products & {made.__name__ for made in type(value).__mro__}:
        return ""
    if beside := {"task", "model"} & set(loc[:2]):
        return f": pass it beside the configuration, {beside.pop()}=..."
    name = getattr(value, "__name__", "FUNCTION")
    name = name if name.isidentifier() else "FUNCTION"
    return f": save the function in a file (in a notebook: %%writefile FILE.py), and write 'FILE.py:{name}'"


def _place(kind: str, name: str) -> str:
    what, place = _KINDS[kind]
    return f"{what}: {place.format(name)}"


def _names(kind: str) -> list[str]:
    return list(get_args(Preset)) if kind == "preset" else plugins.names(kind)


def _same(name: str, known: Iterable[str]) -> str | None:
    """Return the known name with the same letters and digits, or None."""
    return next((each for each in known if _plain(each) == _plain(name)), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("+", "plus"))


def _snake(key: str) -> str:
    """Return `num_rounds` for `numRounds`, `NumRounds`, `num-rounds` and `NUM_ROUNDS`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()


def _alike(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


_SHARES = {
    _snake(word) for word in KEYS["pacing.clients, a number of clients or a share such as 0.1"].split()
}
"""Words for a share of the clients, such as that of the attackers in `[adversary]`."""
_TEXTS = {word: f"here it is {key}" for key, words in KEYS.items() for word in words.split()} | {
    word: text for text, words in ADVICE.items() for word in words.split()
}
