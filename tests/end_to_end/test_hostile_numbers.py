"""Every number of a configuration, and every option of a plug-in, is refused in a line or can be computed with."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest

from fedsim import plugins
from fedsim.common.errors import ConfigError, Error
from fedsim.config.run import RunConfig
from fedsim.plugins.options import options_of
from fedsim.runs.build import prepare
from fedsim.runs.simulate import simulate
from small import small

HOSTILE = (10**30, 2**63 - 1, 1e300, 1e-300, -1, -1e300, math.nan, math.inf)
ALWAYS = {"scenario": "always_on", "horizon": "2h"}


def numbers(model: type[pydantic.BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys of a table, and of those within it, that may hold a number."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *typing.get_args(field.annotation))
        tables = [k for k in kinds if isinstance(k, type) and issubclass(k, pydantic.BaseModel)]
        for table in tables:
            yield from numbers(table, (*path, name))
        if not tables and any(word in str(field.annotation) for word in ("int", "float")):
            yield (*path, name)


def options(kind: str) -> Iterator[tuple[str, str]]:
    """Yield the plug-ins of a kind with each option that may hold a number."""
    for name in plugins.names(kind):
        for option, known in options_of(plugins.factory(kind, name), plugins.KINDS[kind].supplied).items():
            if any(word in str(known.annotation) for word in ("int", "float")):
                yield name, option


def with_option(kind: str, name: str, option: str, value: Any) -> dict[str, Any]:
    """Return the tables of a configuration that name a plug-in with one option."""
    table = {"name": name, option: value}
    tables: dict[str, dict[str, Any]] = {
        "rule": {"algorithm": table},
        "wrapper": {"algorithm": {"name": "fedavg", "wrap": [table]}},
        "client": {"client": table},
        "selector": {"selection": table},
        "adversary": {"adversary": [table | {"share": 0.5}]},
        "partitioner": {"partition": table},
        "scenario": {"world": {"scenario": name, "horizon": "2h", "options": {option: value}}},
    }
    return {"world": ALWAYS} | tables[kind]


def refused(changes: dict[str, Any]) -> bool:
    """Build what a configuration says; whatever is not refused in words comes out."""
    told = ""
    try:
        prepare(small(**changes))
    except Error as error:
        told = str(error)
    assert len(told) < 2_000
    return bool(told)


KEYS = sorted({path for path in numbers(RunConfig) if path[0] not in ("parent", "adversary", "world")})


@pytest.mark.parametrize("path", KEYS, ids=".".join)
def test_a_number_of_the_configuration(path: tuple[str, ...]) -> None:
    found = []
    for value in HOSTILE:
        inner: Any = value
        for key in reversed(path[1:]):
            inner = {key: inner}
        raw = small(world=ALWAYS).resolved()
        merged = raw.get(path[0], {}) | inner if isinstance(inner, dict) else inner
        found.append(refused({"world": ALWAYS, path[0]: merged}))
    assert found[-1], "infinity is no number to compute with"
    assert found[0] or path in (("bad_updates", "limit"), ("train", "lr")), "10^30 has no room elsewhere"


@pytest.mark.parametrize("kind", ["rule", "wrapper", "client", "selector", "adversary", "partitioner"])
def test_an_option_of_a_plug_in(kind: str) -> None:
    tried = 0
    for name, option in options(kind):
        for value in HOSTILE:
            found = refused(with_option(kind, name, option, value))
            assert found or value == -1, f"{name}.{option} = {value}"
            tried += 1
    assert tried


def test_an_option_of_a_scenario() -> None:
    """With 12 clients for two hours, and what is tiny or huge: it is a world, or refused in words."""
    for name, option in options("scenario"):
        for value in (1e-300, 1e300, -1e300, math.nan, math.inf, 10**30):
            assert refused(with_option("scenario", name, option, value)), f"{name}.{option} = {value}"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"train": {"lr": 1e300}},
            "train.lr: input should be less than or equal to 10+, found 1e\\+300",
        ),
        (
            {"train": {"weight_decay": 1e308}},
            "train.weight_decay: input should be less than or equal to 1000000000",
        ),
        (
            {"train": {"batch_size": 12345678901234567890}},
            "train.batch_size: .* less than or equal to 2147483647",
        ),
        ({"train": {"epochs": 10**9}}, "train.epochs: input should be less than or equal to 1000000"),
        ({"cost": {"compute_scale": 1e308}}, "cost.compute_scale: .* less than or equal to 1000000000"),
        (
            {"task": {"name": "digits", "clients": 2**63 - 1}},
            "task.clients: .* less than or equal to 2147483647",
        ),
        (
            {"task": {"name": "digits", "clients": 2**31 - 1}},
            "task.clients: expected at most .* of free memory",
        ),
        (
            {"task": {"name": "digits", "clients": 2000}},
            "task.clients: expected at most 1,797, the number of samples",
        ),
        (
            {"model": {"name": "mlp", "hidden": [10**9]}},
            "model 'mlp': .* at most .* parameters, .* found 75,000,000,010",
        ),
        ({"seed": "9" * 200_000}, "seed: .*exceeded maximum size"),
        ({"seed": 2**63}, "seed: input should be less than 9223372036854775808"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_cannot_be_computed_is_refused_with_its_bound(
    changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match) as told:
        simulate(small(**changes), out=tmp_path / "runs", workers=0)
    assert len(str(told.value)) < 1_000
    assert not (tmp_path / "runs").exists()
