"""Ties a world to the data: clients that hold certain data are online more, or slower, with a stated strength.

The module assigns the world's clients to the data's clients in another order. The world as a whole stays the same; only
which client of the data lives which trace changes. This works for any world, simulated or imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats
from fedsim.common.errors import ConfigError, RunError, TraceError, closest
from fedsim.config.join import ConfoundConfig
from fedsim.worlds.availability import Unknown, sessions_of
from fedsim.worlds.client_statistics import trait
from fedsim.worlds.interval_arithmetic import table_of
from fedsim.worlds.matching import assign
from fedsim.worlds.trace import KINDS, Trace
from fedsim.worlds.transforms import edited_source, select

Facts = Mapping[str, NDArray[Any]]


def confounded(
    trace: Trace,
    facts: Facts,
    config: ConfoundConfig,
    seed: int,
    unknown: Unknown = "offline",
    rotation: int | None = None,
) -> tuple[Trace, dict[str, Any]]:
    """Assign the world's first n clients to the n clients of the data, with the rank correlation of `config`.

    facts: by name, arrays with one entry per client of the data: `n_samples` [n], `label_counts` [n, classes], and any
    others. `unknown` is the availability where the trace has no record. `rotation` is what `config.rotate` adds to
    labels, by default `seed`. The rank correlation of `config.what` (a property of the world's clients, see
    `fedsim.worlds.client_statistics`) and `config.to` (of the data's) is `strength` with `sign`: 1 is perfectly sorted,
    0 is independent. Returns a world of n clients and a report, which its `source` holds as well. Raises ConfigError
    for an unknown property or one that is the same for all, TraceError for a world with fewer clients.
    """
    n = _n_clients(facts)
    if trace.clients < n:
        raise TraceError(f"world.confound: the trace has {trace.clients} clients, but the data has {n}")
    config = _rotated(config, facts, seed if rotation is None else rotation)
    wanted = data_property(facts, config, n)
    lived = trace if unknown != "online" else _online_when_unknown(select(trace, np.arange(n)))
    night = config.night_start, config.night_end
    values = _named("what", lambda: trait(lived, config.what, night))[:n]
    _check_differs("what", config.what, values)
    _check_differs("to", config.to, wanted)
    rho = config.strength if config.sign == "positive" else -config.strength
    assignment = assign(wanted, values, rho, seed, "confound")
    report = {
        "what": config.what,
        "to": config.to,
        "strength": config.strength,
        "sign": config.sign,
        "clients": n,
        "undefined": int(np.isnan(values).sum()),
        "spearman": assignment.spearman,
    }
    step = {"confound": report | {"labels": list(config.labels), "seed": seed}}
    return replace(select(trace, assignment.right), source=edited_source(trace, step)), report


def _rotated(config: ConfoundConfig, facts: Facts, seed: int) -> ConfoundConfig:
    """Return the configuration with `seed` added to its labels, if it says so; labels that are none stay."""
    if not config.rotate or "label_counts" not in facts:
        return config
    classes = np.shape(facts["label_counts"])[1]
    labels = [(label + seed) % classes if _is_label(label, classes) else label for label in config.labels]
    return config.model_copy(update={"labels": tuple(labels)})


def _is_label(label: int | str, classes: int) -> TypeGuard[int]:
    return isinstance(label, int) and 0 <= label < classes


def _online_when_unknown(trace: Trace) -> Trace:
    """Return the world with clients online wherever their availability is unknown."""
    kinds = {kind: trace.spans(kind) for kind in KINDS if kind != "unknown"}
    return replace(trace, table=table_of(kinds | {"online": sessions_of(trace, trace.clients, "online")}))


def data_property(facts: Facts, config: ConfoundConfig, n: int) -> Floats:
    """Return [n] the property of the data's clients that `config.to` names. Raises ConfigError."""
    if config.to == "label":
        return _label_share(facts, config.labels)
    if config.to == "loss":
        return final_losses(config.run, n)
    if config.to not in facts or np.ndim(facts[config.to]) != 1:
        known = ["label", "loss", *(name for name, fact in facts.items() if np.ndim(fact) == 1)]
        raise ConfigError(
            f"world.confound.to: the data's clients have no {config.to!r}{closest(config.to, known)}"
        )
    fact = np.asarray(facts[config.to])
    return _membership(config, fact) if fact.dtype.kind in "UO" else fact.astype(np.float64)


def final_losses(run: Path | None, n: int) -> Floats:
    """Return [n] each client's loss at the last evaluation of an earlier run. Raises ConfigError."""
    from fedsim import analysis

    if run is None:
        raise ConfigError("world.confound.run: missing; to = 'loss' needs the folder of an earlier run")
    try:
        last = analysis.open_run(run).final()
    except RunError as error:
        raise ConfigError(f"world.confound.run: {error}") from error
    if last.client.tolist() != list(range(n)):
        raise ConfigError(
            f"world.confound.run: {run}: expected losses of clients 0 to {n - 1}, found {len(last.client)} clients"
        )
    return np.asarray(last.loss, dtype=np.float64)


def _label_share(facts: Facts, labels: Sequence[int | str]) -> Floats:
    """Return [n] the share of each client's samples whose label is one of `labels`."""
    if "label_counts" not in facts:
        raise ConfigError("world.confound.to: 'label' needs data with labels")
    counts = np.asarray(facts["label_counts"], dtype=np.float64)
    classes = counts.shape[1]
    wrong = [label for label in labels if not _is_label(label, classes)]
    if wrong or not labels:
        found = repr(wrong[0]) if wrong else "none"
        raise ConfigError(f"world.confound.labels: expected labels from 0 to {classes - 1}, found {found}")
    total = counts.sum(axis=1)
    chosen = counts[:, sorted({int(x) for x in labels})].sum(axis=1)
    return np.asarray(np.divide(chosen, total, out=np.zeros(len(total)), where=total > 0))


def _membership(config: ConfoundConfig, fact: NDArray[Any]) -> Floats:
    """Return [n] 1 for clients whose text is one of `labels`, else 0."""
    known = sorted({str(value) for value in fact})
    wrong = [label for label in map(str, config.labels) if label not in known]
    if wrong or not config.labels:
        near = closest(wrong[0], known) if wrong else f"; known: {', '.join(known)}"
        found = repr(wrong[0]) if wrong else "none"
        raise ConfigError(
            f"world.confound.labels: {config.to!r} is text: expected some of its values, found {found}{near}"
        )
    return np.isin(fact.astype(str), [str(label) for label in config.labels]).astype(np.float64)


def _n_clients(facts: Facts) -> int:
    lengths = {name: len(fact) for name, fact in facts.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"expected facts about equally many clients, found {json.dumps(lengths)}")
    return next(iter(lengths.values()))


def _named(key: str, measure: Callable[[], Floats]) -> Floats:
    """Return what `measure` returns; its ConfigError then names the key."""
    try:
        return np.asarray(measure())
    except ConfigError as error:
        raise ConfigError(f"world.confound.{key}: {error}") from error


def _check_differs(key: str, name: str, values: Floats) -> None:
    if len(np.unique(values)) < 2 and len(values) > 1:
        raise ConfigError(
            f"world.confound.{key}: {name!r} is {values[0]:g} for all {len(values)} clients: nothing to tie"
        )
