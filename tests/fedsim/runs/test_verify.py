"""Running again and comparing row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from fedsim.common.errors import CheckpointError, FolderError
from fedsim.common.files import write_json
from fedsim.execution.actor_pool import RayPool
from fedsim.records.manifest import read_manifest
from fedsim.runs import verify as verifying
from fedsim.runs.checkpointer import Checkpointer
from fedsim.runs.fork import At, fork
from fedsim.runs.verify import verify
from interrupted_runs import BUFFERED
from small import run, small


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps its checkpoints; tests must not change it."""
    config = small(pacing=BUFFERED, checkpoint={"every_steps": 3, "keep": "all"})
    return run(config, tmp_path_factory.mktemp("verified")).folder


def differences(folder: Path, **options: object) -> dict[str, str]:
    found = verify(folder, **({"workers": 0} | options))  # type: ignore[arg-type]
    return {verdict.table: verdict.difference for verdict in found}


def test_a_run_repeats(whole: Path) -> None:
    before = sorted(p.name for p in whole.iterdir())
    assert differences(whole) == {"jobs": "", "steps": "", "evals": "", "model": "", "world": ""}
    assert sorted(p.name for p in whole.iterdir()) == before


RESTLESS = """
import numpy as np

from fedsim import Scenario


def restless() -> Scenario:
    def client(env, me):
        me.online(0, 3_000_000_000 + int(np.random.default_rng().integers(10**8)))
        yield env.timeout(1)

    return Scenario(client)
"""


def test_a_scenario_that_writes_another_world_each_time_is_noticed(tmp_path: Path) -> None:
    (file := tmp_path / "restless.py").write_text(RESTLESS)
    folder = run(small(world={"scenario": f"{file}:restless", "horizon": "1h"}), tmp_path).folder
    found = differences(folder)
    assert found.pop("world").startswith("row 0 (client 0, start_us 0): end_us: expected 3")
    assert not any(found.values())


@pytest.mark.parametrize("forked", [False, True])
def test_a_limit_of_wall_time_does_not_end_the_repetition(
    forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(small(stop={"steps": 8, "wall": "1h"}), tmp_path).folder
    if forked:
        folder = fork(folder, At(step=2), out=tmp_path / "fork", workers=0).folder
    monkeypatch.setattr(Checkpointer, "spent_s", 7200.0)
    assert not any(differences(folder).values())


@pytest.mark.ray
@pytest.mark.parametrize("forked", [False, True])
def test_a_signal_is_no_verdict(
    whole: Path, forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fork(whole, At(step=2), out=tmp_path, workers=0).folder if forked else whole
    between = Checkpointer.between

    def stopped(self: Checkpointer, event_loop: Any) -> None:
        self.interrupts.asked = True
        between(self, event_loop)

    monkeypatch.setattr(Checkpointer, "between", stopped)
    with pytest.raises(KeyboardInterrupt):
        verify(folder, workers=0)


def test_it_repeats_with_workers(whole: Path, one_worker: RayPool) -> None:
    assert set(differences(whole, workers=one_worker).values()) == {""}


def copied(whole: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.mark.parametrize("name", ["jobs.parquet", "evals.parquet", "model.safetensors"])
def test_a_run_that_lost_a_file_is_not_verified(whole: Path, tmp_path: Path, name: str) -> None:
    lost = copied(whole, tmp_path)
    (lost / name).unlink()
    with pytest.raises(FolderError, match=f"copy: cannot be verified without {name}"):
        verify(lost, workers=0)


def edited(folder: Path, table: str, column: str, row: int, value: object) -> None:
    """Change one entry of a table."""
    found = pq.read_table(folder / f"{table}.parquet")
    values = found[column].to_pylist()
    values[row] = value
    at = found.column_names.index(column)
    changed = found.set_column(
        at, found.schema.field(column), pa.array(values, found.schema.field(column).type)
    )
    pq.write_table(changed, folder / f"{table}.parquet")


def test_the_first_row_that_differs_is_named(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path)
    edited(folder, "jobs", "end_us", 17, 5)
    edited(folder, "jobs", "client", 9, 3)
    found = differences(folder)
    assert found["steps"] == ""
    assert found["jobs"].startswith("row 9 (job ")
    assert "client: expected 3, found" in found["jobs"]


def test_some_steps_are_compared_from_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    assert set(differences(whole, steps=(4, 6)).values()) == {""}
    folder = copied(whole, tmp_path)
    edited(folder, "steps", "direction_norm", 5, 1.0)
    edited(folder, "steps", "direction_norm", 7, 1.0)
    assert "row 5 (step 5, " in differences(folder, steps=(4, 6))["steps"]
    assert differences(folder, steps=(4, 5))["steps"] == ""


@pytest.mark.parametrize("steps", [(5, 5), (6, 4), (-1, 2), (4, 10**9)])
def test_steps_that_a_run_never_made_are_refused_before_it_is_run_again(
    steps: tuple[int, int], whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "resources", None)
    with pytest.raises(
        FolderError, match=rf"steps: expected some of the run's, .*, found {steps[0]}:{steps[1]}"
    ):
        verify(whole, steps=steps)


def test_a_fork_is_forked_again(whole: Path, tmp_path: Path) -> None:
    child = fork(whole, At(step=4), ["algorithm.name=fedfv"], keep_online=[2], out=tmp_path, workers=0)
    assert set(differences(child.folder).values()) == {""}


@pytest.mark.parametrize("kept", [False, True])
def test_a_fork_made_at_a_time_is_forked_again_at_that_time(whole: Path, tmp_path: Path, kept: bool) -> None:
    parent = whole if kept else run(small(pacing=BUFFERED), tmp_path / "parent").folder
    at = At(time_us=int(np.mean(pq.read_table(parent / "steps.parquet")["time_us"].to_numpy()[3:5])))
    child = fork(parent, at, ["selection.name=round_robin"], out=tmp_path, workers=0)
    origin = read_manifest(child.folder)["parent"]
    assert (origin["forked_at"], origin["forked_step"]) == ("time", 4)
    assert set(differences(child.folder).values()) == {""}


def test_some_steps_of_a_fork_need_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    changes = ["selection.name=round_robin", "checkpoint.keep=2"]
    child = fork(whole, At(step=4), changes, name="few", out=tmp_path, workers=0)
    with pytest.raises(CheckpointError, match="none is left from before step 5: verify all of it"):
        verify(child.folder, steps=(5, 7), workers=0)
    kept = fork(whole, At(step=4), changes[:1], name="all", out=tmp_path, workers=0)
    assert set(differences(kept.folder, steps=(5, 7)).values()) == {""}
    with pytest.raises(CheckpointError, match="from before step 3"):
        verify(kept.folder, steps=(3, 7), workers=0)


def test_what_cannot_repeat_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path)
    write_json(folder / "manifest.json", read_manifest(whole) | {"ended_by": "wall"})
    with pytest.raises(FolderError, match="ended by wall time, which does not repeat"):
        verify(folder)
    write_json(folder / "manifest.json", read_manifest(whole) | {"status": "failed"})
    with pytest.raises(FolderError, match="expected a run that is done, found one that is failed"):
        verify(folder)


def test_models_of_the_clients_own_are_compared(tmp_path: Path) -> None:
    folder = run(small(client={"name": "ditto"}, stop={"steps": 2}), tmp_path).folder
    assert differences(folder) == {
        "jobs": "",
        "steps": "",
        "evals": "",
        "model": "",
        "personal": "",
        "world": "",
    }
    tensors = load_file(folder / "personal.safetensors")
    tensors["personal"][0, 0] += 1
    save_file(tensors, folder / "personal.safetensors")
    assert differences(folder)["personal"] == "its parameters differ"


def test_models_of_the_clients_own_that_only_the_first_run_has_are_noticed(
    whole: Path, tmp_path: Path
) -> None:
    folder = copied(whole, tmp_path)
    (folder / "personal.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert differences(folder)["personal"] == "its parameters differ"
