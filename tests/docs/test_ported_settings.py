"""The configurations of docs/from_other_simulators.md are loaded and planned, and its tables name keys that exist."""

from __future__ import annotations

import pickle
import re
import shlex
from pathlib import Path

import pytest

import programs
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.plugins import factory
from fedsim.plugins.options import options_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "from_other_simulators.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FLGO, FEDSCALE = (body for kind, body in BLOCK.findall(PAGE) if kind == "toml")
SMALLER = ("task.name=digits", "stop.steps=3")
"""Data that need no download."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the files of the page, and FedScale's two traces of some clients."""
    behaviour = {
        number: {"active": [0], "inactive": [80_000], "finish_time": 86_400, "model": "a phone"}
        for number in range(1, 401)
    }
    capacity = {number: {"computation": 40.0 + number, "communication": 1600.0} for number in range(400)}
    (tmp_path / "client_behave_trace").write_bytes(pickle.dumps(behaviour))
    (tmp_path / "client_device_capacity").write_bytes(pickle.dumps(capacity))
    (tmp_path / "flgo.toml").write_text(FLGO, encoding="utf-8")
    (tmp_path / "fedscale.toml").write_text(FEDSCALE, encoding="utf-8")
    return tmp_path


def planned(name: str, place: Path, *more: str) -> str:
    sets = [word for assignment in (*SMALLER, *more) for word in ("--set", assignment)]
    done = programs.fedsim("plan", name, *sets, place=place)
    assert done.code == 0, f"{done.out[-2000:]}\n{done.err[-2000:]}"
    return done.out


def test_settings_of_flgo_are_planned(place: Path) -> None:
    [config] = load_config(place / "flgo.toml")
    assert (config.task.name, config.stop.steps, config.train.epochs) == ("mnist", 50, 5)
    of_digits = ("task.pool=all", "task.fractions=[0.8, 0.1, 0.1]", "task.clients=40")
    plan = planned(
        "flgo.toml", place, *of_digits, 'cost.completeness={mode="all"}', 'dropout={leave="ignore"}'
    )
    hours, minutes, seconds = map(int, re.findall(r"^steps +3 in (\d+):(\d+):(\d+)", plan, re.MULTILINE)[0])
    assert (
        280 < 3600 * hours + 60 * minutes + seconds < 360
    )  # three rounds of LN-100-10, each of the slowest client


def test_settings_of_fedscale_are_planned_with_its_traces(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line for kind, body in BLOCK.findall(PAGE) if kind == "sh" for line in body.splitlines()]
    assert len(lines) == 2
    for line in lines:
        done = programs.fedsim(*shlex.split(line)[1:], place=place)
        assert done.code == 0, f"{line}\n{done.err[-2000:]}"
    monkeypatch.chdir(place)
    [config] = load_config("fedscale.toml")
    assert config.pacing.clients + config.pacing.extra == int(50 * 1.3)
    assert re.search(r"^steps +3 in", planned("fedscale.toml", place), re.MULTILINE)


def test_the_tables_name_keys_of_a_configuration() -> None:
    cells = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    keys = [key for cell in cells for key in re.findall(r"`([a-z]+)\.([a-z_]+)\b", cell)]
    assert len(keys) > 25
    for table, key in keys:
        section = RunConfig.model_fields[table].annotation
        fields = getattr(section, "model_fields", None)
        if fields is not None and table not in ("algorithm", "partition"):
            assert key in fields or table == "pacing", f"{table}.{key}"


def test_the_options_of_oort_exist() -> None:
    rows = re.findall(r"^\| `(?:exploration|clip|round|blacklist)_.*$", PAGE, re.MULTILINE)
    named = {option for row in rows for option in re.findall(r"`(\w+)`", row.split("|")[2])}
    assert len(named) == 12
    assert named <= {*options_of(factory("selector", "oort"))}
