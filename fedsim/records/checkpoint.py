"""Checkpoints: the state of a run on disk, from which it resumes after any interruption.

A checkpoint is a folder `<run>/checkpoints/<step>-<jobs>` with `state.json`, plain data, and the arrays and tensors of
the state in `tensors-<n>.safetensors`. It is written under another name, flushed to disk and renamed, so that it is
always complete. Checksums of all files are verified on reading, and no file contains code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedsim.common.errors import CheckpointError, RunError
from fedsim.common.files import from_json, remove_folder, save_tensors, sha256, space, sync_folder
from fedsim.records.file_names import CONFIG
from fedsim.server.rule_check import SAVED, unsaved

FORMAT = 7
FOLDER = "checkpoints"
_STATE = "state.json"
_FILE_BYTES = 64 * 2**20
"""Bytes of tensors in one file. Each file is copied before writing, so a large history is never in memory twice."""
_ARRAY = "@array"
"""Key of the object that refers to an array in the plain data."""

State = dict[str, Any]
"""Nested dicts with text keys, lists, numbers, texts, None, NumPy arrays and tensors."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path
    step: int
    jobs: int
    """Number of jobs dispatched so far."""


def checkpoints(run: Path) -> list[Checkpoint]:
    """Return the checkpoints of a run, the oldest first."""
    complete = []
    for path in (run / FOLDER).glob("*-*"):
        step, _, jobs = path.name.partition("-")
        if path.is_dir() and step.isdecimal() and jobs.isdecimal():
            complete.append(Checkpoint(path, int(step), int(jobs)))
    return sorted(complete, key=lambda c: (c.step, c.jobs))


def write(run: Path, state: State, *, step: int, jobs: int, keep: int | Literal["all"]) -> Path:
    """Write a checkpoint, remove all but the last `keep`, and return its folder.

    An existing checkpoint of the same step and jobs stays: the run continues equally from it. Raises RunError if the
    checkpoint cannot be written; earlier checkpoints then stay.

    Args:
        run: the folder of the run.
        state: the state to write.
        step: the number of server steps.
        jobs: the number of jobs dispatched.
        keep: the number of checkpoints to keep.
    """
    path = run / FOLDER / f"{step:08d}-{jobs:010d}"
    if not path.exists():
        _write_folder(path, state, _owner(run))
    if keep != "all":
        for old in checkpoints(run)[:-keep]:
            with suppress(OSError):
                remove_folder(old.path)
    return path


def _owner(run: Path) -> str:
    """Return the identity of a run, to which its checkpoints belong: a hash of its configuration."""
    return hashlib.sha256((run / CONFIG).read_bytes()).hexdigest()


def _write_folder(path: Path, state: State, owner: str) -> None:
    beside = path.with_name(f".{path.name}.tmp")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        _write_files(beside, state, owner)
        sync_folder(beside)
        beside.rename(path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise RunError(f"{path}: the checkpoint cannot be written: {error}{space(path, error)}") from error


def remove_after(run: Path, *, step: int, jobs: int) -> None:
    """Remove later checkpoints, since the run resumes from an earlier one and its tables are cut. Raises RunError."""
    for checkpoint in checkpoints(run):
        if (checkpoint.step, checkpoint.jobs) > (step, jobs):
            try:
                remove_folder(checkpoint.path)
            except OSError as error:
                raise RunError(f"{checkpoint.path}: the checkpoint cannot be removed: {error}") from error


def _write_files(folder: Path, state: State, owner: str) -> None:
    if fault := next(unsaved(state), ""):
        raise RunError(f"a checkpoint holds {SAVED}; found {fault}")
    arrays: dict[str, torch.Tensor] = {}
    body = json.dumps(_plain(state, "", arrays))
    files: dict[str, str] = {}
    for number, names in enumerate(_grouped(arrays)):
        path = folder / f"tensors-{number:05d}.safetensors"
        # Copies: tensors that share memory cannot be saved.
        save_tensors({name: arrays[name].detach().cpu().clone().contiguous() for name in names}, path)
        files[path.name] = sha256(path)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    head = {"format": FORMAT, "owner": owner, "files": files, "state_sha256": checksum, "state": body}
    (folder / _STATE).write_text(json.dumps(head), encoding="utf-8")
    for name in (*files, _STATE):
        with (folder / name).open("rb+") as file:
            os.fsync(file.fileno())


def _grouped(arrays: Mapping[str, torch.Tensor]) -> Iterator[list[str]]:
    """Divide the names of arrays among files."""
    names: list[str] = []
    size = 0
    for name, tensor in arrays.items():
        if names and size + tensor.nbytes > _FILE_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.nbytes
    yield names


def read(path: Path) -> State:
    """Return the state of a checkpoint.

    Raises CheckpointError for a checkpoint that is damaged, incomplete, of another format, or not of the run in whose
    folder it is: the run's configuration must be the same.
    """
    head = _head(path)
    if head.get("format") != FORMAT:
        raise CheckpointError(f"{path}: format: expected {FORMAT}, found {head.get('format')!r}")
    if head.get("owner") != (owner := _owner(path.parents[1])):
        raise CheckpointError(
            f"{path}: the checkpoint belongs to another run: expected that of {owner}, found {head.get('owner')}"
        )
    body = head.get("state")
    if not isinstance(body, str) or hashlib.sha256(body.encode()).hexdigest() != head.get("state_sha256"):
        raise CheckpointError(f"{path / _STATE}: damaged: its contents do not agree with its checksum")
    arrays: dict[str, torch.Tensor] = {}
    files = head.get("files")
    for name, digest in (files if isinstance(files, dict) else {}).items():
        arrays |= _arrays(path / Path(name).name, digest)
    try:
        state: State = _restored(from_json(body), arrays)
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path / _STATE}: not the state of a run: {error}") from error
    return state


def _arrays(path: Path, digest: object) -> dict[str, torch.Tensor]:
    try:
        if sha256(path) != digest:
            raise CheckpointError(f"{path}: damaged: its contents do not agree with their checksum")
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _head(path: Path) -> Mapping[str, Any]:
    try:
        head = from_json((path / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / _STATE}: cannot be read: {error}") from error
    if not isinstance(head, dict):
        raise CheckpointError(f"{path / _STATE}: expected an object, found {type(head).__name__}")
    return head


def _plain(value: Any, name: str, arrays: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON data, and put its arrays into `arrays` under their paths."""
    if isinstance(value, dict):
        return {key: _plain(entry, f"{name}/{key}", arrays) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{name}/{i}", arrays) for i, entry in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        arrays[name] = torch.from_numpy(np.array(value, order="C"))  # a copy, since arrays may be read-only
        return {_ARRAY: name, "numpy": True}
    if isinstance(value, torch.Tensor):
        arrays[name] = value
        return {_ARRAY: name, "numpy": False}
    return value


def _restored(value: Any, arrays: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            # A copy has the allocator's alignment, on which the last bits of a product depend.
            tensor = arrays.pop(value[_ARRAY]).clone()
            return tensor.numpy() if value["numpy"] else tensor
        return {key: _restored(entry, arrays) for key, entry in value.items()}
    if isinstance(value, list):
        return [_restored(entry, arrays) for entry in value]
    return value
