"""SECURITY.md, promise 2: what the text of a configuration can do, and what it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim import plugins
from fedsim.common.errors import ConfigError, DataError
from fedsim.config.load import parse
from received import MARK, touching
from small import run, small


@pytest.mark.parametrize(
    "table",
    [
        {"algorithm": {"name": "os:system", "command": f"touch {MARK}"}},
        {"algorithm": {"name": "subprocess:call", "popenargs": ["touch", MARK]}},
        {"algorithm": {"name": "subprocess:Popen", "args": ["touch", MARK]}},
        {"model": {"name": "pathlib:Path", "args": MARK}},
        {"selection": {"name": "shutil:rmtree", "path": "."}},
        {"world": {"scenario": "os:system", "options": {"command": f"touch {MARK}"}}},
        {"client": {"name": "builtins:exec", "source": touching()}},
        {"partition": {"name": "fedsim.algorithms.fedavg:fedavg"}},
    ],
)
def test_a_configuration_calls_no_function_that_is_no_plug_in(table: dict[str, Any], here: Path) -> None:
    with pytest.raises(ConfigError, match="expected a function whose annotation says that it returns a"):
        small(**table)
    assert not any(here.iterdir())


def test_code_from_elsewhere_can_be_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine.py").write_text(f"{touching()}\ndef rule(): ...\n")
    monkeypatch.setenv(plugins.ONLY_SHIPPED, "1")
    for name in ("mine.py:rule", "fedsim.algorithms.fedavg:fedavg"):
        with pytest.raises(
            ConfigError, match="is code that fedsim does not ship, and FEDSIM_ONLY_SHIPPED refuses it"
        ):
            small(algorithm={"name": name})
    assert small(algorithm={"name": "fedavg"}).algorithm.name == "fedavg"
    assert not (here / MARK).exists()
    monkeypatch.setenv(plugins.ONLY_SHIPPED, "0")
    with pytest.raises(ConfigError):
        small(algorithm={"name": "mine.py:rule"})
    assert (here / MARK).exists(), "by default such a file is run, as SECURITY.md says"


NAMES = [
    "../../x",
    "..",
    ".",
    "",
    "/x",
    "a/../b",
    "a/b/c",
    "a//b",
    "a/",
    "C:\\x",
    "a\\b",
    "x\0y",
    "x\ny",
    "x\n",
    "x y",
    ".hidden",
    "-rf",
    "~",
    "$HOME",
    "con",
    "NUL.txt",
    "run/LPT1",
    "x.",
    "a" * 101,
    "\u202etxt",
    "é",
    "[bold]",
    "<b>",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_run_leads_nowhere_else(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        small(name=name)
    if name:
        with pytest.raises(ConfigError):
            parse({"name": "x", "arms": {name: {}}, **plain()}, "x.toml", "x")


def plain() -> dict[str, Any]:
    return {
        "task": {"name": "digits", "clients": 4},
        "partition": {"name": "iid"},
        "pacing": {"preset": "sync", "clients": 2},
        "stop": {"steps": 1},
    }


@pytest.mark.parametrize("name", ["a", "a.b-c_D9", "experiment/arm", "console", "nullable", "a" * 100])
def test_plain_names_are_names(name: str) -> None:
    assert small(name=name).name == name


def test_a_run_writes_into_its_folder_alone(here: Path) -> None:
    run(small(stop={"steps": 2}, record={"conflicts": "layers"}), here / "out", profile=True)
    assert [p.name for p in here.iterdir()] == ["out"]
    assert [p.name for p in (here / "out").iterdir()] == ["small"]


@pytest.mark.parametrize("task", ["mnist", "fashion_mnist"])
def test_a_configuration_has_no_data_written_elsewhere(task: str, here: Path) -> None:
    given = {"clients": 2, "seed": 0, "data_dir": here / "chosen"}
    with pytest.raises(DataError, match="downloads go to the folder of FEDSIM_DATA alone"):
        plugins.build("task", task, {}, **given)
    assert not (here / "chosen").exists()
