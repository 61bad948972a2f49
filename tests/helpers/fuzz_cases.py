"""From one integer to one configuration: any world, pacing, selector, rule, client method and way to lose jobs.

Everything is small: at most twelve clients with a few samples each, and a dozen steps.
"""

from __future__ import annotations

import random
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import without
from fedsim.config.load import parse
from fedsim.plugins.options import options_of
from fuzz_worlds import PAYLOAD, SLOW, world

Raw = dict[str, Any]

_OPTIONS: dict[str, list[Raw]] = {
    "fedavg": [{"weighting": w} for w in ("data", "uniform", "scaled", "completed", "sequential")],
    "fedfv": [{"tau": 0}, {"tau": 3, "alpha": 0.5}, {"order": "random"}],
    "fedfv_released": [{"tau": 3, "guard": 1e-6}],
    "fedlf": [
        {"absent": "all"},
        {"absent": "none", "merging": False},
        {"absent": "previous"},
        {"level": "slices"},
        {"level": "model", "fair_row": "none"},
        {"lengths": "raw", "fair_row": "unit"},
    ],
    "fedmdfg": [{"search": 3}, {"absent": False}, {"guard": 1e-6}],
    "fedmgda_plus": [{"epsilon": 1.0}, {"epsilon": 1.0, "normalise": False}, {"lambda0": "samples"}],
    "afl": [{"partial": "importance"}, {"gamma_lambda": 1.0}],
    "term": [{"normaliser": "cohort", "t": 3.0}],
    "mifa": [{"divisor": "all"}],
    "fedfa": [{"form": "easyfl"}, {"form": "gfedplat"}],
    "fedasync": [{"alpha": 1.0, "staleness": "hinge"}],
    "with_absent": [{"window": 2}, {"window": "all"}],
    "external": [{"tau": 3}],
    "clipped": [{"norm": 0.01}],
    "server_opt": [{"kind": kind, "lr": 0.01} for kind in ("adam", "yogi", "adagrad")],
    "discounted": [{"staleness": "hinge"}],
    "layerwise": [{"merging": False}],
    "fedcka": [{"layers": 1}],
    "ditto": [{"epochs": 1}],
    "qmaml": [{"inner_lr": 0.1}],
    "quota": [{"group": "region"}],
    "power_of_choice": [{"losses": "reported"}, {"d": 3}],
    "refl": [{"forecast": "trace"}],
    "tifl": [{"policy": "static", "tiers": 2}],
}
"""Options worth trying, of rules, wrappers, client methods and selectors; otherwise they have their defaults."""


def case(seed: int, folder: Path) -> Raw:
    """Return the configuration that `seed` stands for, as nested tables; files that it names go into `folder`.

    It need not be a valid one: what cannot go together is refused with a reason.
    """
    draw = random.Random(seed)
    clients = draw.randint(1, 12)
    epochs = draw.randint(1, 3)
    pacing = _pacing(draw, clients)
    client = _named(draw, "client") if draw.random() < 0.3 else {"name": "plain"}
    place = world(draw, clients, folder)
    raw: Raw = {
        "name": f"fuzz{seed}",
        "seed": draw.randrange(10_000),
        "task": _task(draw, clients),
        "model": draw.choice([{"name": "softmax"}, {"name": "mlp", "hidden": [3]}]),
        "world": place,
        "pacing": pacing,
        "selection": _selection(draw, clients),
        "train": _train(draw, epochs, plain=client["name"] == "plain"),
        "client": client,
        "algorithm": _algorithm(draw, pacing),
        "cost": _cost(draw, epochs, given="trace" in place),
        "dropout": _dropout(draw),
        "stop": _stop(draw, given="trace" in place),
        "evaluate": _evaluate(draw, clients),
        "record": {"conflicts": draw.choice(["off", "model", "layers"])},
    }
    if draw.random() < 0.3:
        raw["memory"] = draw.choice([{"slots": 1}, {"slots": 3}, {"history": "bfloat16"}])
    if draw.random() < 0.2:
        raw["adversary"] = [_adversary(draw, clients) for _ in range(draw.choice([1, 1, 2]))]
    if draw.random() < 0.15:
        raw["bad_updates"] = draw.choice(
            [{"policy": "stop"}, {"policy": "clip", "limit": 0.05}, {"limit": 0.5}]
        )
    if draw.random() < 0.15:
        raw["audit"] = {"every": draw.choice([1, 2, 5]), "clients": draw.choice([1, 4, 20])}
    return _with_effect(raw)


def _with_effect(raw: Raw) -> Raw:
    """Leave out what would have no effect beside the rest, which would be refused."""
    while True:
        try:
            parse(deepcopy(raw), "fuzz", "fuzz")
        except ConfigError as error:
            idle = re.findall(r": ([\w.]+): it would have no effect", str(error))
            if not idle:
                return raw
            raw = without(raw, idle)
        else:
            return raw


def _sometimes(draw: random.Random, likely: float, /, **tables: Any) -> Raw:
    """Return each of the keys with a chance of its own; a list stands for one of its entries."""
    return {
        key: draw.choice(value) if isinstance(value, list) else value
        for key, value in tables.items()
        if draw.random() < likely
    }


def _named(draw: random.Random, kind: str) -> Raw:
    """Draw a plug-in of a kind, with its defaults or options worth trying."""
    name = draw.choice(plugins.names(kind))
    known = options_of(plugins.factory(kind, name))
    fitting = [options for options in _OPTIONS.get(name, []) if set(options) <= set(known)]
    return {"name": name} | (draw.choice(fitting) if fitting and draw.random() < 0.6 else {})


def _task(draw: random.Random, clients: int) -> Raw:
    sizes: Raw = draw.choice(
        [
            {"sizes": "fixed", "samples": 10},
            {"sizes": "fixed", "samples": 3},
            {"sizes": "lognormal", "log_mean": 1.5, "least": 3},
        ]
    )
    fractions = draw.choice([[0.8, 0.1, 0.1], [0.5, 0.0, 0.5], [0.4, 0.3, 0.3]])
    return {"name": "synthetic", "clients": clients, "fractions": fractions} | sizes


def _train(draw: random.Random, epochs: int, *, plain: bool) -> Raw:
    rate = draw.choice([0.01, 0.1, 1.0]) if draw.random() < 0.93 else draw.choice([1e10, 1e30])
    mode = draw.choice(["auto", "loop", "dense"] if plain else ["auto", "loop"])
    return {
        "epochs": epochs,
        "batch_size": draw.choice([2, 4, "full"]),
        "lr": rate,
        "mode": mode,
    } | _sometimes(
        draw, 0.2, lr_decay=0.9, momentum=0.5, weight_decay=0.01, loss_samples=3, precision="bfloat16"
    )


def _pacing(draw: random.Random, clients: int) -> Raw:
    preset = draw.choice(["sync", "overselect", "deadline", "fedbuff", "fedasync", "periodic"])
    most = draw.randint(1, clients)
    seconds = draw.choice([3, 7, 10, 20, 60])
    timed, counted = preset in ("deadline", "periodic") or draw.random() < 0.15, preset != "periodic"
    table: Raw = {"preset": preset} | ({"deadline": seconds} if timed else {})
    if preset in ("sync", "deadline"):
        table["clients"] = most
    if preset == "overselect":
        more: list[Raw] = [{"extra": clients - most}, {"factor": 1.3}]
        table |= {"clients": draw.randint(1, most)} | draw.choice(more)
    if preset in ("fedbuff", "fedasync", "periodic"):
        table["concurrency"] = most
    if preset == "fedbuff":
        table["buffer"] = draw.randint(1, most)
    changes = _sometimes(draw, 0.15, buffer=draw.randint(1, max(most // 2, 1)), max_staleness=[0, 1, 3])
    if timed:
        changes |= _sometimes(draw, 0.3, minimum=[1, 1, 2, 0.5], late=["drop", "keep", "history", "history"])
    else:
        changes |= _sometimes(draw, 0.15, late=["drop", "keep", "history"])
    if draw.random() < 0.15:
        changes |= {"refill": "step"} | ({"refill": "arrival", "late": "keep"} if counted else {})
    return table | changes


def _selection(draw: random.Random, clients: int) -> Raw:
    if draw.random() < 0.4:
        return {"name": "uniform"}
    found = _named(draw, "selector")
    if found["name"] == "fixed":
        return {"name": "fixed", "clients": draw.sample(range(clients), draw.randint(1, clients))}
    return {"name": "uniform"} if found["name"] == "replayed" else found


def _algorithm(draw: random.Random, pacing: Raw) -> Raw:
    table = _named(draw, "rule")
    if pacing.get("late") == "history" and draw.random() < 0.8:  # for rules that have a memory
        table = {"name": draw.choice(["fedlf", "fedmdfg", "fedfv", "mifa"])}
    wrap = [_named(draw, "wrapper") for _ in range(draw.choice([0, 0, 0, 0, 1, 1, 2]))]
    more = _sometimes(draw, 0.15, rows="current", memory=["5s", "30s"])
    return table | more | ({"wrap": wrap} if wrap else {})


def _cost(draw: random.Random, epochs: int, *, given: bool) -> Raw:
    """Draw `[cost]`; whether the world is a trace that was `given`, or a scenario."""
    jitter = _sometimes(
        draw, 0.5, law=["lognormal", "normal"], downlink=[0.3, "trace"], compute=[0.3, 1.0], uplink=0.3
    )
    done = draw.choice(
        [
            {"mode": "epochs", "chance": 0.5, "low": 1, "high": epochs},
            {"mode": "epochs", "low": 1, "high": epochs + 2, "fixed": True},
            {"mode": "PDU", "chance": 0.4},
            {"mode": "FSU"},
            {"mode": "ADU", "low": 1, "high": epochs + 1},
            {"mode": "ASU", "low": 1, "high": epochs + 1},
        ]
    )
    plain = {"payload": PAYLOAD, "compute_scale": draw.choice([1.0, 1.0, 0.1, 3.0])} if given else SLOW
    return plain | _sometimes(
        draw,
        0.2,
        formula=["fedscale", "flash"],
        payload=[0, 1000] if given else "5 MB",
        jitter=jitter,
        completeness=done,
        fedscale_steps=2,
        flash_most_samples=3,
    )


def _dropout(draw: random.Random) -> Raw:
    return {
        "leave": draw.choice(["abort", "abort", "pause_resume", "end_instant", "bernoulli"])
    } | _sometimes(
        draw,
        0.25,
        chance=[0.2, 0.5],
        law="uniform",
        within=["download", "compute", "upload"],
        notice=["1s", "5s"],
        retries=[1, 3],
        replace=True,
        partial=True,
    )


def _stop(draw: random.Random, *, given: bool) -> Raw:
    """Draw `[stop]`; a trace's jobs may be so short that an hour in which all are lost holds a hundred thousand."""
    return {"steps": draw.randint(1, 12), "time": "5min" if given else "1h"} | _sometimes(
        draw,
        0.15,
        time=["40s", "100s"],
        bytes=[500, 2000],
        target=[5.0, 20.0],
        patience=[1, 2],
    )


def _adversary(draw: random.Random, clients: int) -> Raw:
    some: list[Raw] = [{"share": 0.5}, {"share": 1.0}, {"clients": [draw.randrange(clients)]}]
    who = draw.choice(some)
    when = _sometimes(draw, 0.3, after="5s", until="60s", steps=[[0, 2], [1, 8]], chance=0.5)
    return _named(draw, "adversary") | who | when


def _evaluate(draw: random.Random, clients: int) -> Raw:
    return {"every_steps": draw.choice([0, 0, 1, 2, 3])} | _sometimes(
        draw,
        0.2,
        every=["2s", "10s"],
        clients=draw.randint(1, clients),
        split=["train", "valid"],
        personal=False,
    )
