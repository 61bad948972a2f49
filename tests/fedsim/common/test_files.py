"""Files are written completely or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedsim.common.errors import FolderError, RunError
from fedsim.common.files import read_parquet, save_tensors, write_atomically, write_json


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_json(path, {"a": 1})

    def fail(beside: Path) -> None:
        beside.write_text("half")
        raise OSError("no space left")

    with pytest.raises(RunError, match=r"manifest.json: cannot be written: no space"):
        write_atomically(path, fail)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_file_is_flushed_to_disk_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    write_json(path, {"a": 1})
    flushed = []

    def flush(handle: int) -> None:
        flushed.append((os.fstat(handle).st_ino, json.loads(path.read_text())))

    monkeypatch.setattr(os, "fsync", flush)
    write_json(path, {"a": 2})
    assert flushed == [(path.stat().st_ino, {"a": 1}), (tmp_path.stat().st_ino, {"a": 2})]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_tensors_may_be_read_by_those_who_may_read_other_files(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        save_tensors({"a": torch.ones(2)}, tmp_path / "model.safetensors")
        write_json(tmp_path / "manifest.json", {})
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode for name in ("model.safetensors", "manifest.json")]
    assert modes[0] == modes[1]
    assert torch.equal(load_file(tmp_path / "model.safetensors")["a"], torch.ones(2))


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_never_replaced_by_a_file(tmp_path: Path, linked: bool) -> None:
    """Otherwise `--out /dev/null` as root would take the device away from all programs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    target = tmp_path / "link" if linked else pipe
    if linked:
        target.symlink_to(pipe)
    with pytest.raises(FolderError, match="expected a file to write, found a device, a pipe or a socket"):
        write_json(target, {})
    assert pipe.is_fifo()
    assert target.is_symlink() == linked


def test_a_table_that_may_not_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("fedsim.common.files.parquet_table", refused)
    (path := tmp_path / "jobs.parquet").touch()
    with pytest.raises(RunError, match=r"jobs\.parquet: cannot be read: Permission denied$"):
        read_parquet(path, RunError)
