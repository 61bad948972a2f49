"""Data that were edited since a run began are noticed where the run would go on with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.common.errors import FolderError
from fedsim.config.run import RunConfig
from fedsim.records.manifest import read_manifest
from fedsim.runs.build import prepare
from fedsim.runs.fork import fork
from fedsim.runs.resume import resume
from fedsim.runs.verify import verify
from fedsim.studies.estimate import plan_study
from fedsim.studies.load_study import load_study
from fedsim.studies.run import opened
from fedsim.studies.run import study as run_study_of
from interrupted_runs import stopped_at
from small import run, small

TASK = """
import numpy as np
from fedsim.data.federated_data import Task

def mine(*, clients, seed, data_dir):
    x = np.load(data_dir / "x.npy")
    return Task("mine", x, np.arange(len(x)) % 4, 4, np.zeros(len(x), dtype=bool))
"""


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Return a run whose data lie in `tmp_path / "x.npy"`."""
    (tmp_path / "mine.py").write_text(TASK)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((240, 5), dtype=np.float32))
    task = {"name": f"{tmp_path / 'mine.py'}:mine", "clients": 12, "data_dir": str(tmp_path)}
    return small(task=task, checkpoint={"every_steps": 2}, model={"name": "softmax"})


def edit(folder: Path) -> None:
    """Change the last bit of one number."""
    x = np.load(folder / "x.npy")
    x[7, 3] = np.nextafter(x[7, 3], np.float32(2))
    np.save(folder / "x.npy", x)


def verified(folder: Path) -> Any:
    return verify(folder, workers=0)


def forked(folder: Path) -> Any:
    return fork(folder, 3, [], out=folder.parent / "forks", workers=0)


@pytest.mark.parametrize("go_on", [forked, verified])
def test_a_finished_run_is_not_repeated_with_other_data(
    config: RunConfig, tmp_path: Path, go_on: Callable[[Path], Any]
) -> None:
    folder = run(config, tmp_path, cache=None).folder
    edit(tmp_path)
    with pytest.raises(FolderError, match=r"the data of task '.*mine.py:mine' are not those of the run"):
        go_on(folder)


def test_an_interrupted_run_does_not_go_on_with_other_data(config: RunConfig, tmp_path: Path) -> None:
    folder = stopped_at(5, config, tmp_path, cache=None)
    before = (tmp_path / "x.npy").read_bytes()
    edit(tmp_path)
    with pytest.raises(FolderError, match="are not those of the run"):
        resume(folder, workers=0)
    (tmp_path / "x.npy").write_bytes(before)
    assert resume(folder, workers=0).digest == run(config, tmp_path / "peace", cache=None).digest


def studied(grid: dict[str, Any], out: Path) -> Any:
    return run_study_of(grid, out=out, jobs=1)


def estimated(grid: dict[str, Any], out: Path) -> Any:
    return plan_study(opened(load_study(grid), "edited", out))


@pytest.mark.parametrize("begin", [studied, estimated])
def test_a_study_does_not_add_levels_with_other_data(
    config: RunConfig, tmp_path: Path, begin: Callable[[dict[str, Any], Path], Any]
) -> None:
    grid = {
        "name": "edited",
        "seeds": [3, 4],
        "run": {k: v for k, v in config.resolved().items() if k not in ("name", "seed")},
        "axes": {
            "rule": {"fedavg": {"algorithm": {"name": "fedavg"}}, "fedfv": {"algorithm": {"name": "fedfv"}}}
        },
    }
    out = tmp_path / "out"
    assert studied(grid | {"only": {"rule": "fedavg"}}, out).done == 2
    before = (tmp_path / "x.npy").read_bytes()
    edit(tmp_path)
    with pytest.raises(FolderError, match=r"fedavg/seed-3: the data of task .* run in another folder"):
        begin(grid, out)
    with pytest.raises(FolderError, match="fedavg/seed-3"):
        begin(grid | {"seeds": [5, 3, 4]}, out)
    assert not (out / "edited" / "runs" / "fedfv").exists()
    assert studied(grid | {"seeds": [5], "name": "new"}, out).done == 2
    (tmp_path / "x.npy").write_bytes(before)
    assert studied(grid, out).done == 4


def test_runs_of_versions_without_the_digest_go_on(config: RunConfig, tmp_path: Path) -> None:
    folder = stopped_at(5, config, tmp_path, cache=None)
    manifest = folder / "manifest.json"
    digest = read_manifest(folder)["data"]
    text = manifest.read_text()
    assert text.count(digest) == 1
    manifest.write_text(text.replace(f'"{digest}"', "null"))
    assert resume(folder, workers=0).status == "done"


@pytest.mark.parametrize(
    "change",
    [
        {"partition": {"name": "iid"}},
        {"seeds": {"data": 4, "world": 3, "train": 3}},
        {"task": {"name": "digits", "clients": 11}},
    ],
)
def test_the_digest_is_of_the_division_too(change: dict[str, Any]) -> None:
    """Beside the world and the training, which do not change it."""
    digest = prepare(small()).data.digest
    assert prepare(small(**change)).data.digest != digest
    assert prepare(small(train={"lr": 0.5}, world={"scenario": "always_on"})).data.digest == digest
