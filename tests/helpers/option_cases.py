"""For each key and each option: a value that changes a run, and what has to stand beside it for that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedsim.scenarios.fitted import FittedDevices, Length
from fedsim.scenarios.processes.devices import Devices
from fedsim.scenarios.processes.laws import Law


@dataclass(frozen=True)
class Beside:
    """A value, and the keys that are set in either case."""

    value: Any
    beside: dict[str, Any] = field(default_factory=dict)
    without: str = ""
    """A key that goes when the value comes."""


def beside(value: Any, **others: Any) -> Beside:
    return Beside(value, others)


NOTHING = {
    "name": "names the folder",
    "task.data_dir": "where data lie, not what they are",
    "memory.host_budget": "refused but on a GPU",
    "checkpoint.every_steps": "when a run is saved",
    "checkpoint.every_s": "when a run is saved",
    "checkpoint.keep": "what is kept of what was saved",
    **{
        f"parent.{key}": "written by replay and fork, as a record"
        for key in (
            "run",
            "digest",
            "same_participation",
            "changes",
            "forked_step",
            "forked_us",
            "forked_at",
            "kept_online",
        )
    },
}
"""Keys that change nothing of what a run does, and why."""
NO_OPTION = {
    "task.synthetic.alpha": "adds the same to the logits of all classes, as in the paper, and so moves no label",
}
"""Options that change nothing, and why they are there."""

_STALE = {"pacing": {"preset": "fedbuff", "concurrency": 4, "buffer": 2}, "algorithm.name": "fedbuff"}

_HUGGING = {"path": "hugging/small"}
_LOSSES = {"algorithm.name": "fedfv"}
_ATTACK = {"adversary.name": "sign_flip", "adversary.share": 0.5}
_PARTS = {"world": {"join": {"availability": "OUT/calm.parquet", "compute": "OUT/fast.parquet"}}}
_CONFOUND = {"world.confound.what": "compute", "world.confound.to": "label", "world.confound.labels": [0, 1]}
_IMAGES = {
    "task": {"name": "digits", "clients": 8},
    "model": {"name": "cnn", "channels": [2], "kernel": 3, "hidden": [4]},
    "partition": {"name": "iid"},
    "train": {"batch_size": 40, "epochs": 1},
    "stop": {"steps": 2},
}

CONFIG: dict[str, Any] = {
    "seed": 2,
    "task.name": Beside("landmine", {"task": {"name": "synthetic", "clients": 29}}),
    "task.clients": 7,
    "task.pool": Beside(
        "train",
        {"task": {"name": "mnist", "clients": 8, "data_dir": "OUT/data"}, "partition": {"name": "iid"}},
    ),
    "task.fractions": [0.5, 0.3, 0.2],
    "task.shuffle": False,
    "model.name": Beside("mlp", {}),
    "partition.name": Beside("shards", {"task": {"name": "digits", "clients": 8}, "partition.name": "iid"}),
    "world.scenario": "correlated_outage",
    "world.trace": Beside("OUT/fast.parquet", {"world": {"trace": "OUT/calm.parquet"}}),
    "world.join.availability": Beside("OUT/sparse.parquet", _PARTS),
    "world.join.compute": Beside("OUT/calm.parquet", _PARTS),
    "world.join.network": Beside("OUT/slow.parquet", _PARTS),
    "world.join.faults": Beside("OUT/faulty.parquet", _PARTS),
    "world.join.assign": Beside(
        "rank", {"world": {"join": {"availability": "OUT/sparse.parquet", "compute": "OUT/calm.parquet"}}}
    ),
    "world.join.replace": Beside(True, _PARTS),
    "world.clients": Beside(20, {"world": {"join": {"availability": "OUT/sparse.parquet"}}}),
    "world.horizon": "40s",
    "world.seed": 9,
    "world.unknown": Beside("offline", {"world": {"trace": "OUT/unknown.parquet", "unknown": "online"}}),
    "world.after_end": Beside("stop", {"world.horizon": "40s"}),
    "world.options": {"mean_on": "5min", "mean_off": "10min"},
    "world.confound.what": Beside("downlink", _CONFOUND),
    "world.confound.to": Beside("n_samples", _CONFOUND, without="world.confound.labels"),
    "world.confound.labels": Beside([3, 4], _CONFOUND),
    "world.confound.run": Beside(
        "OUT/two", {"world.confound": {"what": "compute", "to": "loss", "run": "OUT/one"}}
    ),
    "world.confound.strength": Beside(0.0, _CONFOUND),
    "world.confound.sign": Beside("negative", _CONFOUND),
    "world.confound.night_start": Beside(2.0, {**_CONFOUND, "world.confound.what": "night"}),
    "world.confound.night_end": Beside(2.0, {**_CONFOUND, "world.confound.what": "night"}),
    "pacing.preset": Beside(
        "periodic", {"pacing": {"preset": "fedasync", "concurrency": 4, "deadline": "10s"}}
    ),
    "pacing.clients": 3,
    "pacing.extra": Beside(3, {"pacing.preset": "overselect", "pacing.clients": 2, "pacing.extra": 1}),
    "pacing.factor": Beside(2.5, {"pacing.preset": "overselect", "pacing.clients": 2, "pacing.factor": 1.1}),
    "pacing.deadline": Beside("30s", {"pacing.preset": "deadline", "pacing.deadline": "10s"}),
    "pacing.concurrency": Beside(5, _STALE),
    "pacing.buffer": Beside(3, _STALE),
    "pacing.refill": Beside("step", _STALE),
    "pacing.late": Beside("keep", {"pacing.preset": "deadline", "pacing.deadline": "10s"}),
    "pacing.minimum": Beside(3, {"pacing.preset": "deadline", "pacing.deadline": "10s"}),
    "pacing.max_staleness": Beside(0, _STALE),
    "pacing.least_candidates": 10,
    "selection.name": "round_robin",
    "train.epochs": 3,
    "train.batch_size": 3,
    "train.lr": 0.2,
    "train.lr_decay": 0.5,
    "train.momentum": 0.5,
    "train.weight_decay": 0.1,
    "train.loss": "hinge",
    "train.mode": Beside("loop", {"model": {"name": "mlp", "hidden": [8]}, "train.mode": "dense"}),
    "train.augment.crop": Beside(1, {**_IMAGES, "train.augment.flip": True}),
    "train.augment.flip": Beside(True, {**_IMAGES, "train.augment.crop": 1}),
    "train.precision": "bfloat16",
    "train.loss_samples": Beside(2, _LOSSES),
    "client.name": "fedprox",
    "algorithm.name": "fedmgda",
    "algorithm.wrap.name": Beside("server_opt", {"algorithm.wrap": [{"name": "clipped"}]}),
    "algorithm.rows": Beside("current", _STALE),
    "algorithm.memory": Beside("1s", {"algorithm.name": "mifa"}),
    "memory.history": Beside("bfloat16", {"algorithm.name": "mifa"}),
    "memory.budget": Beside("20 kB", {"algorithm.name": "mifa"}),
    "memory.slots": Beside(1, {"algorithm.name": "mifa"}),
    "cost.formula": "flash",
    "cost.payload": "1 MB",
    "cost.reference_flops": 1000.0,
    "cost.compute_scale": 3.0,
    "cost.fedscale_steps": Beside(3, {"cost.formula": "fedscale"}),
    "cost.flash_most_samples": Beside(3, {"cost.formula": "flash"}),
    "cost.jitter.law": Beside("normal", {"cost.jitter.compute": 0.5}),
    "cost.jitter.downlink": 0.5,
    "cost.jitter.compute": 0.5,
    "cost.jitter.uplink": 0.5,
    "cost.completeness.mode": "FSU",
    "cost.completeness.chance": Beside(0.5, {"cost.completeness.mode": "PDU"}),
    "cost.completeness.low": Beside(2, {"cost.completeness": {"mode": "epochs", "high": 2}}),
    "cost.completeness.high": Beside(2, {"cost.completeness.mode": "epochs"}),
    "cost.completeness.fixed": Beside(True, {"cost.completeness": {"mode": "epochs", "high": 2}}),
    "dropout.leave": Beside("pause_resume", {"stop.steps": 14}),
    "dropout.chance": 0.5,
    "dropout.law": Beside("uniform", {"dropout.chance": 0.5}),
    "dropout.within": Beside("upload", {"dropout.chance": 0.5}),
    "dropout.notice": Beside("20min", {"dropout.chance": 0.5}),
    "dropout.retries": Beside(2, {"dropout.chance": 0.5}),
    "dropout.replace": Beside(True, {"dropout.chance": 0.5}),
    "dropout.partial": Beside(True, {"pacing.preset": "deadline", "pacing.deadline": "10s"}),
    "stop.steps": 5,
    "stop.time": "2min",
    "stop.bytes": "30 MB",
    "stop.wall": 1e-6,
    "stop.metric": Beside("std_percent", {"stop.target": 5.0, "evaluate.every_steps": 1}),
    "stop.split": Beside(
        "train",
        {
            "stop.target": 1.0,
            "stop.metric": "loss",
            "evaluate.every_steps": 1,
            "evaluate.also": ["train"],
        },
    ),
    "stop.rising": Beside(False, {"stop.target": 60.0, "evaluate.every_steps": 1}),
    "stop.target": Beside(1.0, {"evaluate.every_steps": 1}),
    "stop.patience": Beside(1, {"evaluate.every_steps": 1, "stop.least": 90.0, "stop.patience": 3}),
    "stop.least": Beside(90.0, {"evaluate.every_steps": 1, "stop.patience": 2}),
    "evaluate.every_steps": 2,
    "evaluate.every": "2min",
    "evaluate.clients": 3,
    "evaluate.split": "valid",
    "evaluate.also": ["train"],
    "evaluate.personal": Beside(False, {"client.name": "ditto"}),
    "adversary.name": Beside("zero", _ATTACK),
    "adversary.clients": Beside([1, 2, 3], {"adversary": {"name": "sign_flip", "clients": [0]}}),
    "adversary.share": Beside(1.0, _ATTACK),
    "adversary.after": Beside("30s", _ATTACK),
    "adversary.until": Beside("30s", _ATTACK),
    "adversary.steps": Beside([2, 3], _ATTACK),
    "adversary.chance": Beside(0.3, _ATTACK),
    "bad_updates.policy": Beside("clip", {"bad_updates.limit": 0.1}),
    "bad_updates.limit": 0.1,
    "record.conflicts": "model",
    "audit.every": Beside(2, {"algorithm.name": "mifa"}),
    "audit.clients": Beside(1, {"algorithm.name": "mifa", "audit.every": 2}),
}
"""Keys of a run's configuration: another value, or one beside others."""

_FEDBUFF = {"pacing": {"preset": "fedbuff", "concurrency": 6, "buffer": 2, "refill": "step"}}
_LONG = {"stop.steps": 14}
_DAYS = {
    "world": {"scenario": "diurnal", "horizon": "2d", "options": {"day_share": 0.4}},
    "cost": {"payload": "1 MB", "compute_scale": 5000},
    "dropout.leave": "pause_resume",
    "stop.steps": 30,
    "task.clients": 30,
}


_FEDSCALE = {"variant": "fedscale", "task.clients": 40}

_CNN = {"task.shape": (3, 16, 16), "channels": [4, 4], "hidden": [5], "kernel": 3}

OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "rule": {
        "afl": {"gamma_lambda": 0.5, "partial": "importance", "average": False, "projection": "gfedplat"},
        "drfl": {"q": 2.0},
        "fedasync": {"alpha": 0.5, "staleness": "constant", "a": 0.7, "b": beside(2.0, staleness="hinge")},
        "fedavg": {"weighting": "uniform"},
        "fedavg_n": {
            "lambda0": "samples",
            "server_lr": 0.5,
            "decay": 0.5,
        },
        "fedbuff": {"server_lr": 0.5, "staleness": "none", "normalise": True},
        "fedfa": {"beta": 0.2, "gamma": 0.2, "server_lr": beside(0.5, form="easyfl"), "form": "gfedplat"},
        "fedfv": {
            "alpha": 0.5,
            "tau": 2,
            "order": "reverse",
            "seed": beside(1, order="random"),
        },
        "fedfv_released": {"alpha": 0.5, "tau": Beside(3, {"stop.steps": 10}), "guard": 0.5},
        "fedgini": {"epsilon": 0.2, "order": "descending", "rank": "released"},
        "fedlf": {
            "lengths": "raw",
            "level": "model",
            "fair_row": "none",
            "merging": beside(False, zero_tolerance=0.3),
            "absent": "none",
            "zero_tolerance": 0.5,
            "solver": "cvxpy",
        },
        "fedlf_released": {"solver": "cvxpy"},
        "fedmdfg": {
            "theta_deg": 90.0,
            "absent": Beside(False, {"stop.steps": 10}),
            "search": Beside(3, {"seed": 1}),
            "lr": Beside(1e-4, {"search": 3, "stop.steps": 10}),
            "guard": 0.5,
            "zero_tolerance": 0.9,
            "solver": "cvxpy",
        },
        "fedmgda": {"solver": "cvxpy"},
        "fedmgda_plus": {
            "epsilon": 0.3,
            "lambda0": "samples",
            "cap": 0.5,
            "normalise": False,
            "server_lr": 0.5,
            "decay": 0.5,
            "solver": "cvxpy",
        },
        "fedsgd": {"weighting": "uniform"},
        "fedstaleweight": {"window": 2, "offset": 0.5},
        "mifa": {"divisor": "all"},
        "qfedavg": {
            "losses": beside("after", lr=0.1),
            "reduction": beside("sum", lr=0.1),
            "q": beside(2.0, lr=0.1),
            "lr": beside(0.5, lr=0.1),
            "L": beside(2.0, L=10.0),
            "guard": beside(0.5, lr=0.1),
        },
        "qfedsgd": {
            "q": beside(2.0, lr=0.1),
            "lr": beside(0.5, lr=0.1),
            "L": beside(2.0, L=10.0),
            "guard": beside(0.5, lr=0.1),
        },
        "refl": {"beta": 0.7},
        "term": {"t": 2.0, "normaliser": "cohort", "smoothing": 0.3},
        "term_released": {"t": 2.0},
    },
    "wrapper": {
        "clipped": {"norm": 0.5, "median_multiple": 0.5},
        "discounted": {"staleness": "constant", "a": 0.7, "b": beside(2.0, staleness="hinge")},
        "external": {"tau": 2},
        "layerwise": {
            "merging": Beside(False, {"zero_tolerance": 0.5, "rule.name": "fedmgda"}),
            "zero_tolerance": Beside(0.5, {"rule.name": "fedmgda"}),
        },
        "server_opt": {"kind": "adam", "lr": 0.5, "betas": [0.5, 0.9], "tau": beside(0.1, kind="adam")},
        "with_absent": {"window": Beside(1, {"stop.steps": 10})},
    },
    "client": {
        "ditto": {"lam": 0.5, "epochs": 1, "lr": 0.3},
        "ditto_global": {"lam": 0.5},
        "fedcka": {"mu": 1.0, "layers": Beside(1, {"model": {"name": "mlp", "hidden": [8, 8]}})},
        "fedprox": {"mu": 0.5, "form": "doubled"},
        "plain": {},
        "qmaml": {"inner_lr": 0.1, "inner_steps": 2, "support": 0.3, "order": "second"},
    },
    "selector": {
        "availability_forecast": {
            "prefer": Beside("leaving", _LONG),
            "ahead": Beside("9h", _DAYS),
        },
        "biased": {
            "by": "speed",
            "strength": 1.0,
            "sign": -1,
            "labels": Beside([1], {"by": "label", "labels": [0], "strength": 1.0}),
            "values": Beside(
                ["True"],
                {
                    "by": "late",
                    "values": ["False"],
                    "strength": 1.0,
                    "world": {
                        "scenario": "late_joiners",
                        "options": {"present_share": 0.5, "joining": {"mean": "1s"}},
                    },
                },
            ),
        },
        "divfl": {
            "share": Beside(0.3, _LONG),
            "distance": Beside("squared", {"task.clients": 30, "stop.steps": 20}),
        },
        "f3ast": {"b": Beside(0.3, _LONG), "initial": Beside("samples", _LONG)},
        "fastest_first": {},
        "fedcs": {
            "deadline": beside("12s", deadline="1h"),
            "upload_share": Beside(1.0, {"deadline": "20s", "seed": 1}),
        },
        "fixed": {
            "clients": beside([4, 5, 6, 7], clients=[0, 1, 2, 3]),
            "table": Beside("OUT/two.csv", {"table": "OUT/one.csv"}),
        },
        "longest_absent": {"since": Beside("dispatched", _LONG)},
        "loss_based": {
            "variant": "afl",
            "alpha1": beside(0.2, variant="afl"),
            "alpha2": beside(3.0, variant="afl"),
            "alpha3": beside(0.9, variant="afl"),
        },
        "minimise_reuse": {},
        "oort": {
            "variant": "fedscale",
            "exploration": 0.2,
            "exploration_decay": 0.3,
            "exploration_floor": beside(1.0, exploration=0.2),
            "clip": Beside(0.1, _LONG),
            "uncertainty": Beside(50.0, _LONG),
            "penalty": Beside(0.0, _LONG),
            "cut_off": Beside(0.01, _LONG),
            "fairness": Beside(1.0, _LONG),
            "preferred": Beside("1s", _LONG),
            "preferred_step": Beside("10h", {"pacer": 1, "preferred": "1s", **_LONG}),
            "percentile": Beside(95.0, _LONG),
            "pacer": Beside(1, _LONG),
            "pacer_delta": Beside(60.0, {"pacer": 1, "percentile": 5.0, "variant": "fedscale", **_LONG}),
            "barred_after": Beside(1, _LONG),
            "barred_share": Beside(1.0, {"barred_after": 1, **_LONG}),
            "few_samples": Beside(1, _FEDSCALE),
            "window": Beside(1.0, _FEDSCALE),
        },
        "optimal_sampling": {
            "by": Beside("losses", _LONG),
            "weights": Beside("uniform", _LONG),
            "floor": Beside(1.0, _LONG),
        },
        "power_of_choice": {"d": 5, "losses": "reported"},
        "quota": {"group": "label", "floor": 1.0},
        "refl": {
            "variant": Beside("released", _LONG),
            "forecast": Beside("trace", _LONG),
            "a": Beside(0.9, {"forecast": "trace", **_LONG}),
            "initial": beside("10s", forecast="trace"),
            "kept": beside(0.0, forecast="trace", variant="released"),
            "adaptive": Beside(True, _FEDBUFF),
            "target": 2,
            "cap": Beside(0.0, {"adaptive": True, **_FEDBUFF}),
        },
        "replayed": {"jobs": Beside("OUT/two/jobs.parquet", {"jobs": "OUT/one/jobs.parquet"})},
        "round_robin": {},
        "slowest_first": {},
        "tifl": {
            "policy": Beside("static", {"evaluate.every_steps": 1, "tiers": 2, "interval": 1, **_LONG}),
            "tiers": 2,
            "odds": beside([1.0, 0.0], tiers=2),
            "credits": Beside(1, {"tiers": 2, "odds": [1.0, 0.01]}),
            "interval": Beside(1, {"evaluate.every_steps": 1, "tiers": 2, **_LONG}),
            "t_max": "12s",
        },
        "ucb_cs": {"gamma": Beside(1.0, _LONG)},
        "uniform": {},
        "weighted": {"replacement": True},
    },
    "scenario": {
        "always_on": {"devices": {"compute_sigma": 0.1}},
        "battery": {
            "online_from": 0.3,
            "plugged_only": False,
            "charge_time": "5h",
            "idle_life": "20h",
            "use_life": "2h",
            "use_every": "20min",
            "use_length": "1h",
            "plug_h": 20.0,
            "unplug_h": 9.0,
            "habit_shift": "3h",
            "forget_share": 0.6,
            "devices": {"compute_sigma": 0.1},
        },
        "churn": {"mean_on": "1h", "mean_off": "1h", "devices": {"compute_sigma": 0.1}},
        "correlated_outage": {
            "regions": 2,
            "outage_every": "4h",
            "outage_length": "3h",
            "hit_share": 0.5,
            "mean_on": "1h",
            "mean_off": "2h",
            "devices": {"compute_sigma": 0.1},
        },
        "diurnal": {
            "night_share": 0.8,
            "day_share": 0.2,
            "night_centre_h": 4.0,
            "night_width": "4h",
            "mean_session": "1h",
            "time_zones": 2,
            "zone_spread": "12h",
            "habit_sigma": 0.1,
            "habit_shift": "3h",
            "devices": {"compute_sigma": 0.1},
        },
        "fitted": {
            "on": {"mean": "1h"},
            "off": {"mean": "1h"},
            "leaving": [1.0] * 12 + [2.0] * 12,
            "coming": [1.0] * 12 + [2.0] * 12,
            "spread_correlation": beside(0.9, on={"spread": 1.0}, off={"spread": 1.0}),
            "always": 0.5,
            "never": 0.5,
            "devices": {"compute_sigma": 0.1},
        },
        "flaky_network": {
            "model": "ar1",
            "levels": [1.0, 0.5, 0.1],
            "stay": ["1h", "1h", "1h"],
            "sigma": beside(2.0, model="ar1"),
            "memory": beside("2h", model="ar1"),
            "step": beside("10min", model="ar1"),
            "mean_on": beside("1h", mean_off="1h"),
            "mean_off": "1h",
            "devices": {"compute_sigma": 0.1},
        },
        "flash_crowd": {
            "times": ["6h"],
            "share": 0.2,
            "mean_delay": "1h",
            "mean_stay": "3h",
            "mean_on": "1h",
            "mean_off": "1h",
            "devices": {"compute_sigma": 0.1},
        },
        "flgo": {
            "availability": "HOMO",
            "beta": beside(0.9, availability="HOMO"),
            "formula": beside("docstring", availability="LDF"),
            "round": beside("1h", availability="HOMO"),
            "unit": beside("2min", availability="HOMO", roundwise=False),
            "roundwise": beside(False, availability="HOMO"),
            "federation": beside(600, availability="LN", beta=0.9),
            "responsiveness": "LN",
            "latency_mean": beside(50.0, responsiveness="LN"),
            "latency_var": beside(90.0, responsiveness="LN"),
            "latency_min": beside(5, responsiveness="UNI", latency_max=9),
            "latency_max": beside(9, responsiveness="UNI"),
            "job_samples": beside(7.0, responsiveness="LN"),
            "devices": {"compute_sigma": 0.1},
        },
        "late_joiners": {
            "joining": {"mean": "5h"},
            "present_share": 0.9,
            "mean_on": "1h",
            "mean_off": "2h",
            "devices": {"compute_sigma": 0.1},
        },
        "permanent_dropout": {
            "life": {"mean": "5h"},
            "loyal_share": 0.9,
            "mean_on": "1h",
            "mean_off": "2h",
            "devices": {"compute_sigma": 0.1},
        },
        "semi_markov": {
            "on": {"mean": "1h"},
            "off": {"mean": "1h"},
            "devices": {"compute_sigma": 0.1},
        },
        "shared_uplink": {
            "cell_clients": 2,
            "cell_bytes_per_s": 1e6,
            "channels": 3,
            "load": 0.2,
            "mean_transfer": "1h",
            "mean_on": beside("1h", mean_off="1h"),
            "mean_off": "1h",
            "devices": {"compute_sigma": 0.1},
        },
        "stragglers": {
            "law": "uniform",
            "shape": 3.0,
            "most": 1.5,
            "slow_network": True,
            "mean_on": beside("1h", mean_off="1h"),
            "mean_off": "1h",
            "devices": {"downlink_sigma": 0.1},
        },
    },
    "task": {
        "adult": {},
        "cifar10": {"normalise": "image"},
        "digits": {},
        "fashion_mnist": {"normalise": True, "classes": [0, 2, 6]},
        "hugging_face": {
            "path": Beside("hugging/other", _HUGGING),
            "features": Beside("more", _HUGGING),
            "label": Beside("kind", _HUGGING),
            "client": Beside("owner", _HUGGING),
            "split": Beside("rest", _HUGGING),
            "test": Beside("rest", _HUGGING),
        },
        "landmine": {},
        "mnist": {"normalise": True, "classes": [0, 2, 6]},
        "shakespeare": {"length": 40, "least": 3000, "stride": 5},
        "synthetic": {
            "beta": 0.1,
            "variant": "hybrid",
            "sizes": "fixed",
            "log_mean": 2.0,
            "sigma": 0.1,
            "least": 20,
            "samples": beside(30, sizes="fixed"),
        },
        "vehicle": {},
    },
    "model": {
        "cnn": {
            "channels": Beside([4, 3], _CNN),
            "kernel": Beside(5, _CNN),
            "padding": Beside("valid", _CNN),
            "pool": Beside("last", _CNN),
            "relu": Beside(False, _CNN),
            "norm": Beside("group", _CNN),
            "groups": Beside(2, {**_CNN, "norm": "group"}),
            "hidden": Beside([6], _CNN),
            "channel_dropout": Beside(0.5, _CNN),
            "dropout": Beside([0.5], _CNN),
            "doubled_softmax": Beside(True, _CNN),
        },
        "lstm": {
            "embedding": Beside(4, {"hidden": [5], "task.shape": (6,)}),
            "hidden": Beside([4], {"hidden": [5], "task.shape": (6,)}),
            "alphabet": Beside(9, {"hidden": [5], "task.shape": (6,)}),
        },
        "mlp": {"hidden": [8], "doubled_softmax": True},
        "nfresnet": {
            "stem": Beside(8, {"stem": 4, "stages": [4, 8], "blocks": 1, "task.shape": (3, 16, 16)}),
            "stages": Beside([8, 8], {"stem": 4, "stages": [4, 8], "blocks": 1, "task.shape": (3, 16, 16)}),
            "blocks": Beside(2, {"stem": 4, "stages": [4, 8], "blocks": 1, "task.shape": (3, 16, 16)}),
            "alpha": Beside(0.5, {"stem": 4, "stages": [4, 8], "blocks": 1, "task.shape": (3, 16, 16)}),
        },
        "softmax": {"bias": False, "zero_init": True, "doubled_softmax": True},
    },
    "partitioner": {
        "dirichlet": {
            "alpha": 0.5,
            "min_samples": 150,
            "tries": Beside(1, {"min_samples": 120}),
        },
        "iid": {"sizes": "lognormal", "sigma": beside(0.3, sizes="lognormal")},
        "pathological": {"classes": 3, "assignment": "blocks", "unbalanced": True},
        "shards": {"shards_per_client": 3},
        "whole_classes": {"groups": beside([2, 1, 1, 1, 1, 1, 1, 2], groups=[1, 2, 1, 1, 1, 1, 1, 2])},
    },
    "adversary": {
        "drop": {},
        "gaussian_noise": {
            "sigma": Beside(0.1, {"adversary.share": 0.5}),
            "per": Beside("entry", {"adversary.share": 0.5}),
            "replace": Beside(True, {"adversary.share": 0.5}),
        },
        "label_flip": {"change": Beside([[5, 3]], {"adversary.share": 0.5})},
        "loss_bias": {"bias": Beside(3.0, {"adversary.share": 0.5, "algorithm.name": "fedfv"})},
        "nan": {
            "value": Beside("inf", {"adversary.share": 0.5, "bad_updates.policy": "stop"}),
            "entries": Beside(9, {"adversary.share": 0.5, "bad_updates.policy": "stop"}),
        },
        "replay": {},
        "scale": {
            "factor": Beside(2.0, {"adversary.share": 0.5}),
            "losses": Beside(True, {"adversary.share": 0.5, "algorithm.name": "fedfv"}),
        },
        "sign_flip": {},
        "zero": {},
    },
}
"""Options of plug-ins: another value, or one beside other options, and keys of a run (with a point in them)."""

TABLES: dict[type, tuple[tuple[str, str], dict[str, Any]]] = {
    Devices: (
        ("always_on", "devices"),
        {
            "seconds_per_sample": 0.05,
            "compute_sigma": 0.1,
            "downlink_bytes_per_s": 1e6,
            "downlink_sigma": 0.1,
            "uplink_bytes_per_s": 2e6,
            "uplink_sigma": 0.1,
            "fault_every": "2h",
            "fault_length": beside("1h", fault_every="2h"),
        },
    ),
    FittedDevices: (
        ("fitted", "devices"),
        {
            "seconds_per_sample": 0.05,
            "compute_sigma": 0.1,
            "downlink_bytes_per_s": 1e6,
            "downlink_sigma": 0.1,
            "uplink_bytes_per_s": 2e6,
            "uplink_sigma": 0.1,
            "fault_every": "2h",
            "fault_length": beside("1h", fault_every="2h"),
            "modelled": ["compute"],
            "compute_downlink": 0.5,
            "compute_uplink": 0.5,
            "downlink_uplink": 0.5,
        },
    ),
    Law: (
        ("semi_markov", "on"),
        {
            "law": beside("uniform", mean="2h"),
            "mean": beside("1h", mean="2h"),
            "shape": beside(2.0, law="gamma", mean="2h", shape=1.0),
        },
    ),
    Length: (
        ("fitted", "on"),
        {"law": "constant", "mean": "1h", "shape": beside(2.0, law="weibull"), "spread": 1.0},
    ),
}
"""Tables inside the options of scenarios: where they stand, and a value for each of their keys."""
