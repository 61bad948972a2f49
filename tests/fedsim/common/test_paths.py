"""Every function that opens a folder or a file explains why an argument is no path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim import analysis
from fedsim.common.errors import ConfigError
from fedsim.runs.fork import At, fork
from fedsim.runs.resume import resume
from fedsim.runs.verify import verify

OPENERS: dict[str, Callable[[Any], object]] = {
    "load_config": fedsim.load_config,
    "read_trace": fedsim.read_trace,
    "open": analysis.open_run,
    "open_all": analysis.open_all,
    "open_study": analysis.open_study,
    "resume": lambda path: resume(path, workers=0),
    "verify": verify,
    "fork": lambda path: fork(path, At(step=1), workers=0),
}


@pytest.mark.parametrize("wrong", [None, 5, b"runs", 1.5, "no\0where", "no\udcffwhere"])
@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS.keys())
def test_a_value_that_is_no_path_is_refused_with_a_message(
    opener: Callable[[Any], object], wrong: object
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^(path|config|folder|parent): expected (a path|a path or a dict of tables|text in UTF-8), found ",
    ):
        opener(wrong)


@pytest.mark.parametrize("sets", [None, 5, [5], "train.lr=1"])
def test_assignments_are_texts(sets: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^sets: expected "):
        fedsim.load_config(tmp_path / "any.toml", sets)


def test_a_removed_working_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir("gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="the working directory has been removed"):
        analysis.open_run("runs/small")
