"""No key is accepted and ignored: each changes a run in some setting, or is refused where it would not.

The keys are those of the configuration's models and of the signatures of all plug-ins, so that a new one without an
entry in `option_cases.py` fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import numpy as np
import pytest
import torch
from pydantic import BaseModel

import inputs
from fedsim import plugins
from fedsim.common.errors import DataError, RunError
from fedsim.common.option_requirements import without
from fedsim.common.units import US
from fedsim.config.data import federation
from fedsim.config.load import parse
from fedsim.config.run import RunConfig
from fedsim.plugins import options as plugin_options
from fedsim.runs.inputs import InputCache
from fedsim.runs.simulate import simulate
from fedsim.server.combine import combine
from fedsim.training.network import build_network
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import Trace
from option_cases import CONFIG, NO_OPTION, NOTHING, OPTIONS, TABLES, Beside
from small_data import write_small_data

pytestmark = pytest.mark.xdist_group(
    "options"
)  # one process makes the runs that many options are compared with
DAY_US = 86400 * US
BASE: dict[str, Any] = {
    "name": "base",
    "seed": 1,
    "task": {"name": "synthetic", "clients": 12, "least": 12, "log_mean": 2.0, "fractions": [0.6, 0.2, 0.2]},
    "model": {"name": "softmax"},
    "world": {"scenario": "churn", "horizon": "1d", "options": {"mean_on": "2min", "mean_off": "1min"}},
    "pacing": {"preset": "sync", "clients": 4},
    "cost": {"payload": "5 MB", "compute_scale": 10},
    "train": {"batch_size": 5, "epochs": 2},
    "stop": {"steps": 6},
    "evaluate": {"every_steps": 3},
}


def keys_of(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """Go through the keys of a table and of those inside; a plug-in's own options are not among them."""
    for name, field in model.model_fields.items():
        inside = list(models_in(field.annotation))
        for table in inside:
            yield from keys_of(table, f"{path}{name}.")
        if not inside:
            yield f"{path}{name}"


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, UnionType, tuple) or get_args(annotation):
        for part in get_args(annotation):
            yield from models_in(part)


def options_of() -> Iterator[str]:
    """Go through the options of all plug-ins, as `kind.name.option`."""
    for kind in plugins.KINDS:
        if kind in ("metric", "importer"):  # metrics have no options, and importers are no part of a run
            continue
        for name in plugins.names(kind):
            for option in plugin_options.options_of(
                plugins.factory(kind, name), plugins.KINDS[kind].supplied
            ):
                yield f"{kind}.{name}.{option}"


def known(table: Mapping[str, Any], depth: int) -> Iterator[str]:
    for key, below in table.items():
        if depth:
            yield from (f"{key}.{inner}" for inner in known(below, depth - 1))
        else:
            yield key


def test_every_key_has_an_entry() -> None:
    assert set(keys_of(RunConfig)) == set(CONFIG) | set(NOTHING)
    assert not set(CONFIG) & set(NOTHING)


def test_every_option_has_an_entry() -> None:
    assert set(options_of()) == set(known(OPTIONS, 2)) | set(NO_OPTION)
    assert not set(known(OPTIONS, 2)) & set(NO_OPTION)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_key_of_a_table_of_options_has_an_entry(table: type[BaseModel]) -> None:
    assert set(table.model_fields) == set(TABLES[table][1])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, with the files that some of them read."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "data").mkdir()
    write_small_data(folder / "data")
    worlds: dict[str, tuple[str, dict[str, Any]]] = {
        "calm": ("always_on", {}),
        "fast": ("always_on", {"devices": {"seconds_per_sample": 0.001}}),
        "slow": ("always_on", {"devices": {"uplink_bytes_per_s": 1e4}}),
        "faulty": ("always_on", {"devices": {"fault_every": "5min"}}),
        "sparse": ("churn", {"mean_on": "2min", "mean_off": "1min"}),
    }
    for name, (scenario, options) in worlds.items():
        trace = make_trace(scenario, options, clients=12, horizon_us=DAY_US, seed=5, after_end="repeat")
        trace.write(folder / f"{name}.parquet")
    client, end = np.arange(12), np.full(12, DAY_US)
    kinds = np.where(client < 6, "online", "unknown")
    unknown = Trace.of(client, 0 * end, end, kinds, clients=12, horizon_us=DAY_US, after_end="repeat")
    unknown.write(folder / "unknown.parquet")
    for name, selector, first in (("one", "uniform", 0), ("two", "round_robin", 4)):
        chosen = {"name": name, "selection": {"name": selector}}
        simulate(parse(BASE | chosen, name, name), out=folder, workers=0, device="cpu")
        rows = [f"{step},{client}" for step in range(9) for client in range(first, first + 4)]
        (folder / f"{name}.csv").write_text("\n".join(["step,client", *rows]))
    return folder


def laid(base: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return nested tables with one key changed."""
    found: dict[str, Any] = deepcopy(dict(base))
    *path, last = key.split(".")
    below: Any = found
    for step in path:
        below = below.setdefault(step, {})
        below = below[0] if isinstance(below, list) else below
    below[last] = value
    return found


_CACHE = InputCache()


@cache
def _digest(text: str, out: Path) -> str:
    raw = eval(text)
    try:
        config = parse(raw, "case", "base")
        result = simulate(config, out=out, workers=0, device="cpu", force=True, cache=_CACHE)[0]
    except RunError as error:
        return str(error)
    return str(result.digest)


def ran(raw: Mapping[str, Any], out: Path) -> str:
    """Return the digest of a run; equal configurations are run once."""
    return _digest(repr(dict(raw)), out)


@pytest.mark.parametrize("key", CONFIG)
def test_every_key_changes_some_run(key: str, out: Path) -> None:
    case = CONFIG[key]
    if key == "task.name":
        inputs.data_of("landmine")
    value, beside = (case.value, case.beside) if isinstance(case, Beside) else (case, {})
    base = dict(BASE)
    for place, other in beside.items():
        base = laid(base, place, in_folder(other, out))
    gone = [case.without] if isinstance(case, Beside) and case.without else []
    assert ran(without(laid(base, key, in_folder(value, out)), gone), out) != ran(base, out)


def in_folder(value: Any, out: Path) -> Any:
    """Return a value with the folder of the runs where it says so."""
    if isinstance(value, dict):
        return {key: in_folder(below, out) for key, below in value.items()}
    return value.replace("OUT", str(out)) if isinstance(value, str) else value


def cases() -> list[tuple[str, str, str]]:
    return [
        (kind, name, option) for kind in OPTIONS for name in OPTIONS[kind] for option in OPTIONS[kind][name]
    ]


@pytest.mark.parametrize(("kind", "name", "option"), cases())
def test_every_option_changes_something(kind: str, name: str, option: str, out: Path) -> None:
    case = OPTIONS[kind][name][option]
    value, beside = (case.value, case.beside) if isinstance(case, Beside) else (case, {})
    if value == "cvxpy":
        pytest.importorskip("cvxpy")
    if name == "hugging_face":
        pytest.importorskip("datasets")
    tables = set(RunConfig.model_fields) if kind in ("rule", "client", "selector", "adversary") else set()
    around = {place: other for place, other in beside.items() if place in tables or "." in place}
    options = {place: other for place, other in beside.items() if place not in around}
    changed = made(kind, name, {**options, option: value}, around, out)
    assert changed != made(kind, name, options, around, out)


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table, (_, keys) in TABLES.items() for key in keys], ids=str
)
def test_every_key_of_a_table_of_options_changes_something(
    table: type[BaseModel], key: str, out: Path
) -> None:
    (scenario, option), keys = TABLES[table]
    case = keys[key]
    value, beside = (case.value, case.beside) if isinstance(case, Beside) else (case, {})
    plain = made("scenario", scenario, {option: beside} if beside else {}, {}, out)
    assert made("scenario", scenario, {option: {**beside, key: value}}, {}, out) != plain


def made(kind: str, name: str, options: dict[str, Any], around: dict[str, Any], out: Path) -> str:
    """Return a fingerprint of what a plug-in does with these options."""
    options = {key: in_folder(value, out) for key, value in options.items()}
    match kind:
        case "rule":
            return _in_a_run(kind, name, options, around, out) if around else _of_steps(name, options, [])
        case "wrapper" if "stop.steps" in around:
            around = {**around, "algorithm.wrap": [{"name": name, **options}]}
            return _in_a_run("rule", "fedavg", {}, around, out)
        case "wrapper":
            return _of_steps(around.get("rule.name", "fedavg"), {}, [(name, options)])
        case "scenario":
            facts = {
                "n_samples": [5, 9, 3, 7, 20, 11],
                "min_label": [0, 1, 2, 3, 0, 1],
                "max_label": [3, 2, 3, 3, 1, 2],
            }
            more = {"n_labels": [4, 2, 2, 1, 2, 2], "labels": [4] * 6}
            trace = make_trace(name, options, clients=6, horizon_us=2 * DAY_US, seed=1, facts=facts | more)
            return trace.digest()
        case "task":
            return _of_task(name, options, out)
        case "partitioner":
            return _of_partition(name, options)
        case "model":
            return _of_model(name, options, around.get("task.shape", (60,)))
    return _in_a_run(kind, name, options, around, out)


def _in_a_run(kind: str, name: str, options: dict[str, Any], around: dict[str, Any], out: Path) -> str:
    raw = dict(BASE)
    for place, other in around.items():
        raw = laid(raw, place, in_folder(other, out))
    table = {"rule": "algorithm", "client": "client", "selector": "selection", "adversary": "adversary"}[kind]
    own = raw.get(table, {}) if kind in ("adversary", "rule") else {}
    return ran({**raw, table: {**own, "name": name, **options}}, out)


def _of_steps(rule: str, options: dict[str, Any], wrap: list[tuple[str, dict[str, Any]]]) -> str:
    """Return a fingerprint of four steps of a rule: present rows that are stale, and remembered ones."""
    draws, found = np.random.default_rng(7), hashlib.sha256()
    state = vectors = None
    for step in range(4):
        n = 6
        combined = combine(
            rule,
            draws.normal(size=(n, 12)) * draws.uniform(0.1, 3, size=(n, 1)),
            losses=draws.uniform(0.2, 2, n) + 0.2 * step,
            n_samples=draws.integers(1, 50, n),
            clients=(np.arange(n) + step) % 9,
            ages=[0, 0, 0, 0, 1, 2],
            staleness=[0, 1, 5, 9, 0, 0],
            participations=draws.integers(1, 9, n),
            losses_after=draws.uniform(0.1, 1, n),
            accuracies_after=draws.uniform(0.1, 1, n),
            blocks=[1, 5, 3, 3],
            local_steps=draws.integers(2, 9, n),
            options=options,
            wrap=wrap,
            state=state,
            vectors=vectors,
            step=step + 98,
            n_clients=9,
        )
        state, vectors = combined.state, combined.vectors
        found.update(combined.direction.tobytes() + combined.weights.tobytes())
        found.update(repr((combined.keep, combined.average)).encode())
    return found.hexdigest()


def _of_task(name: str, options: dict[str, Any], out: Path) -> str:
    task = plugins.build("task", name, options, clients=3, seed=1, data_dir=out / "data")
    return _hashed(task.x, task.y, *(task.natural or ()))


def _of_partition(name: str, options: dict[str, Any]) -> str:
    raw = {**BASE, "task": {"name": "digits", "clients": 8}, "partition": {"name": name, **options}}
    try:
        _, data = federation(parse(raw, "case", "base")[0])
    except DataError as error:
        return str(error)
    return _hashed(*(split.indices for split in data.splits().values()), data.train.sizes)


def _hashed(*arrays: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in arrays)).hexdigest()


def _of_model(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> str:
    network = build_network(name, options, shape, 7)
    start = network.initial(1)
    torch.manual_seed(3)
    x = torch.randint(0, 7, (4, *shape)) if len(shape) == 1 and name == "lstm" else torch.randn(4, *shape)
    out = network.module.train()(x)
    return hashlib.sha256(start.numpy().tobytes() + out.detach().numpy().tobytes()).hexdigest()
