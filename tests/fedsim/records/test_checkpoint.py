"""Checkpoints restore the state that was written, and damaged or foreign ones are refused."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.common.errors import CheckpointError, RunError
from fedsim.records import checkpoint
from fedsim.records.checkpoint import checkpoints, read, write

STATE = {
    "number": 3,
    "float": 0.1,
    "nothing": None,
    "none of them": [],
    "best": math.nan,
    "texts": ["a", {"b": True}],
    "ints": np.arange(6, dtype=np.int64).reshape(2, 3),
    "truth": np.array([True, False]),
    "words": np.array([2**63 + 1], dtype=np.uint64),
    "empty": np.zeros((0, 4)),
    "zero": np.array(1.5),
    "rows": [torch.tensor([[1.5, -0.0]], dtype=torch.bfloat16), None],
    "numpy number": np.float64(2.5),
}


@pytest.fixture(autouse=True)
def config(tmp_path: Path) -> Path:
    """The configuration of the run, to which its checkpoints belong."""
    path = tmp_path / "config.resolved.toml"
    path.write_text("seed = 1")
    return path


def test_reading_restores_the_written_state(tmp_path: Path) -> None:
    found = read(write(tmp_path, STATE, step=3, jobs=17, keep=2))
    assert found.keys() == STATE.keys()
    assert math.isnan(found["best"])
    for name in ("number", "float", "nothing", "none of them", "texts", "numpy number"):
        assert found[name] == STATE[name]
    for name in ("ints", "truth", "words", "empty", "zero"):
        assert found[name].dtype == STATE[name].dtype
        np.testing.assert_array_equal(found[name], STATE[name])
    found["ints"][0, 0] = 7  # it can be written to
    assert found["rows"][1] is None
    assert found["rows"][0].dtype == torch.bfloat16
    assert torch.signbit(found["rows"][0]).tolist() == [[False, True]]


def test_a_large_state_is_divided_among_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_FILE_BYTES", 1000)
    whole = torch.arange(2000, dtype=torch.float32).reshape(20, 100)
    path = write(tmp_path, {"rows": list(whole)}, step=1, jobs=1, keep=1)
    assert len(list(path.glob("tensors-*"))) == 10  # two rows of 400 bytes each
    assert torch.equal(torch.stack(read(path)["rows"]), whole)


@pytest.mark.parametrize(
    ("thing", "found"),
    [
        ({1, 2}, r"set \{1, 2\}"),
        ({3: 0.5}, "a dictionary with the key 3"),
        (np.array(["a", "b"]), "an array of <U1"),
        (np.array([None]), "an array of object"),
        (np.array([1.0], dtype=">f8"), "an array of >f8"),
        (np.longdouble(1), "an array of .*"),
        (1j, r"complex .*"),
    ],
)
def test_a_value_that_a_checkpoint_cannot_hold_is_named(tmp_path: Path, thing: object, found: str) -> None:
    place = r" in \['run_state'\]\['selector_state'\]\['thing'\]"
    with pytest.raises(RunError, match=rf"^a checkpoint holds .*; found {found}{place}$"):
        write(tmp_path, {"run_state": {"selector_state": {"thing": thing}}}, step=1, jobs=1, keep=1)
    assert not checkpoints(tmp_path)


def test_the_last_checkpoints_are_kept_in_order(tmp_path: Path) -> None:
    for step, jobs in ((1, 5), (2, 9), (2, 11), (10, 40)):
        write(tmp_path, STATE, step=step, jobs=jobs, keep=3)
    assert [(c.step, c.jobs) for c in checkpoints(tmp_path)] == [(2, 9), (2, 11), (10, 40)]
    write(tmp_path, STATE, step=11, jobs=41, keep="all")
    assert len(checkpoints(tmp_path)) == 4


def test_the_same_step_and_jobs_are_not_written_twice(tmp_path: Path) -> None:
    path = write(tmp_path, STATE, step=1, jobs=5, keep=1)
    before = (path / "state.json").stat().st_mtime_ns
    assert write(tmp_path, STATE | {"number": 4}, step=1, jobs=5, keep=1) == path
    assert (path / "state.json").stat().st_mtime_ns == before


def test_an_incomplete_checkpoint_is_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, STATE, step=1, jobs=5, keep=1)
    shutil.copytree(path, path.with_name(".00000002-0000000009.tmp"))
    assert [c.step for c in checkpoints(tmp_path)] == [1]
    write(tmp_path, STATE, step=2, jobs=9, keep=5)  # beside the incomplete one
    assert [c.step for c in checkpoints(tmp_path)] == [1, 2]


def test_a_checkpoint_is_flushed_to_disk_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: dict[int, int] = {}

    def flush(handle: int) -> None:
        flushed[os.fstat(handle).st_ino] = len(checkpoints(tmp_path))

    monkeypatch.setattr(os, "fsync", flush)
    path = write(tmp_path, STATE, step=1, jobs=5, keep=1)
    whole = [*path.iterdir(), path]
    assert len(whole) == 3
    assert flushed == {file.stat().st_ino: 0 for file in whole} | {path.parent.stat().st_ino: 1}


@pytest.mark.parametrize("name", ["state.json", "tensors-00000.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "missing"])
def test_a_damaged_file_is_refused_and_named(tmp_path: Path, name: str, damage: str) -> None:
    path = write(tmp_path, STATE, step=1, jobs=5, keep=1)
    content = bytearray((path / name).read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-20] ^= 1
    elif damage == "empty":
        content = bytearray()
    (path / name).unlink() if damage == "missing" else (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        read(path)


def test_a_checkpoint_of_another_run_or_format_is_refused(tmp_path: Path, config: Path) -> None:
    path = write(tmp_path, STATE, step=1, jobs=5, keep=1)
    config.write_text("seed = 2")
    with pytest.raises(
        CheckpointError, match=r"belongs to another run: expected that of [0-9a-f]{64}, found"
    ):
        read(path)
    config.write_text("seed = 1")
    head = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(head | {"format": 99}))
    with pytest.raises(CheckpointError, match="format: expected 7, found 99"):
        read(path)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, STATE, step=1, jobs=5, keep=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    with pytest.raises(RunError, match=r"cannot be written: .*No space left.* free in"):
        write(tmp_path, STATE, step=2, jobs=9, keep=1)
    assert [c.path.name for c in checkpoints(tmp_path)] == ["00000001-0000000005"]
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["00000001-0000000005"]
