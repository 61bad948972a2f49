"""What a run that failed leaves behind, and the command that shows again what killed a process."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w

from fedsim.common.errors import ConfigError
from fedsim.config.load import load_config
from fedsim.execution.actor_pool import RayPool
from fedsim.invariants import check
from fedsim.records.manifest import read_manifest
from fedsim.runs.build import prepare
from fedsim.runs.session import reproduction
from fedsim.server.history_storage import LADDER, Rung
from small import run, small

FAILING = '''
from fedsim.training.client_method import ClientMethod, Trained

def failing(*, version: int) -> ClientMethod:
    """Plain training that fails from a version of the model on."""
    def train(local, start, kept):
        if local.job.version >= version:
            raise ValueError("no training")
        return Trained(*local.sgd(start))
    return ClientMethod(train)
'''
DEADLINE = {"preset": "deadline", "clients": 8, "deadline": "40s"}
PACINGS: dict[str, dict[str, Any]] = {
    "sync": {"preset": "sync", "clients": 4},
    "buffered": {"preset": "fedbuff", "concurrency": 6, "buffer": 3},
    "dropped": DEADLINE | {"late": "drop"},
    "kept": DEADLINE | {"late": "keep"},
    "remembered": DEADLINE | {"late": "history"},
}


@pytest.mark.ray
@pytest.mark.parametrize(("pacing", "version"), [("sync", 0), *((pacing, 3) for pacing in PACINGS)])
def test_a_failed_run_leaves_the_same_with_workers_as_without(
    pacing: str, version: int, tmp_path: Path, one_worker: RayPool
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    client = {"name": f"{tmp_path}/failing.py:failing", "version": version}
    config = small(client=client, pacing=PACINGS[pacing], evaluate={"every_steps": 1}, stop={"steps": 12})
    here, there = tmp_path / "here" / "small", tmp_path / "there" / "small"
    for folder, workers in ((here, 0), (there, one_worker)):
        with pytest.raises(ValueError, match="no training") as told:
            run(config, folder.parent, workers=workers)
        steps = read_manifest(folder)["steps"]
        assert f"failed at step {steps};" in told.value.__notes__[0]
        assert check(folder).violations == ()
    for name in ("jobs", "steps", "evals", "clients"):
        tables = [pd.read_parquet(folder / f"{name}.parquet") for folder in (here, there)]
        pd.testing.assert_frame_equal(*tables, check_exact=True, obj=name)
    kept = ("steps", "virtual_us", "jobs", "waits", "accuracy", "warning")
    assert [read_manifest(here)[name] for name in kept] == [read_manifest(there)[name] for name in kept]


@pytest.mark.parametrize("rung", LADDER)
def test_the_command_that_reproduces_a_death_on_a_gpu_runs_on_the_processor(
    tmp_path: Path, rung: Rung
) -> None:
    config = prepare(small(memory={"history": rung, "slots": 5}), device="cuda").config
    file = tmp_path / "config.resolved.toml"
    file.write_text(tomli_w.dumps(config.resolved()))
    if rung.startswith("host"):
        with pytest.raises(ConfigError, match=r"memory\.history"):
            prepare(load_config(file)[0])
    words = shlex.split(reproduction(tmp_path, 4, config))
    assert words[:3] == ["fedsim", "run", str(file)]
    assert words[words.index("--device") + 1] == "cpu"
    sets = tuple(after for word, after in pairwise(words) if word == "--set")
    found = prepare(load_config(file, sets)[0]).config
    assert found.stop.steps == 6
    assert found.memory.history == rung.removeprefix("host_")
    assert found.memory.slots == 5
