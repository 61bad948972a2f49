"""Places to be attacked in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedsim.worlds.trace import Trace
from small import run, small


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in: an attack that works leaves a file there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small(stop={"steps": 3}), tmp_path_factory.mktemp("finished")).folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A run folder as somebody may have sent it."""
    return Path(shutil.copytree(finished, tmp_path / "received"))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / "w.parquet"
    Trace.of([0, 1], [0, 5], [9, 10], "online", clients=2, horizon_us=10).write(path)
    return path
