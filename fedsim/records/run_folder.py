"""The folder of a run: it has a manifest from its creation on, and a lock for one process at a time."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import pyarrow as pa
import tomli_w

from fedsim.common.arrays import Ints
from fedsim.common.arrow_columns import column, numbers
from fedsim.common.errors import ConfigError, FolderError, RunError
from fedsim.common.files import (
    cannot_make,
    read_parquet,
    remove_folder,
    write_json,
    write_parquet,
    write_text,
)
from fedsim.config.run import RunConfig
from fedsim.records.file_names import ARMS, CLIENTS, CONFIG, MANIFEST, WORLD
from fedsim.records.manifest import FORMAT
from fedsim.records.schemas import CLIENT_FACTS, CLIENT_NAME, LABEL_COUNTS, OPTIONAL
from fedsim.worlds.trace import Trace

_LOCK = ".lock"
Kind = Literal["run", "child", "plan"]
"""What a new folder holds: a run, a fork or replay of one, or a plan."""
_IF_TAKEN: dict[Kind, str] = {
    "run": "choose another name with --out, overwrite it with --force, or continue it with fedsim run --resume; "
    "in Python out=, force=True or resume=True",
    "child": "choose another name with --name, overwrite it with --force, or continue it, if it is unfinished, with "
    "fedsim resume {}; in Python name=, force=True or resume(folder)",
    "plan": "choose another folder with --out, or overwrite it with --force; in Python out= or force=True",
}
"""What to do if the folder exists; braces stand for it."""


class RunFolder:
    """The folder of a run, locked against other processes until `close`. Raises RunError if another one locked it."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, ExitStack()
        self._lock.enter_context(lock(path))

    @classmethod
    def create(
        cls,
        config: RunConfig,
        trace: Trace,
        label_counts: Ints,
        names: Sequence[str] | None,
        path: Path,
        *,
        force: bool = False,
    ) -> RunFolder:
        """Make a run folder with what `describe` writes; `force` replaces an existing run. Raises RunError."""
        make_folder(path, kind_of(config), force=force, manifest={"name": config.name, "status": "running"})
        folder = cls(path)
        describe(path, config, trace, label_counts, names)
        return folder

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()


def describe(
    path: Path, config: RunConfig, trace: Trace, label_counts: Ints, names: Sequence[str] | None
) -> None:
    """Write a run's configuration, its world and its clients into its folder.

    Args:
        label_counts: [K, classes] the clients' training samples of each label.
        names: [K] the clients' names, if they have any.

    Raises RunError.
    """
    write_text(path / CONFIG, tomli_w.dumps(config.resolved()))
    clients, classes = label_counts.shape
    ends = np.arange(clients + 1, dtype=np.int32) * classes
    columns: dict[str, Any] = {
        "client": np.arange(clients),
        "n_samples": label_counts.sum(axis=1),
        "label_counts": pa.ListArray.from_arrays(
            numbers(ends), numbers(label_counts.astype(np.int32).ravel())
        ),
    }
    schema = CLIENT_FACTS.append(LABEL_COUNTS)
    if names is not None:
        schema, columns["name"] = schema.append(CLIENT_NAME), pa.array(names, pa.string())
    arrays = [column(columns[field.name], field.type) for field in schema]
    write_parquet(path / CLIENTS, schema, [pa.Table.from_arrays(arrays, schema=schema)])
    trace.write(path / WORLD)


def recorded_names(folder: Path) -> tuple[str, ...] | None:
    """Return [K] the names of a run's clients that may train, in the order of their numbers; None if it has none.

    Raises FolderError if they cannot be read.
    """
    path = folder / CLIENTS
    table = read_parquet(path, FolderError) if path.is_file() else pa.table({})
    if CLIENT_NAME.name not in table.column_names:
        return None
    return tuple(table.sort_by("client")[CLIENT_NAME.name].to_pylist())


def kind_of(config: RunConfig) -> Kind:
    """Return whether a configuration is that of a run of its own, or of a fork or replay."""
    return "run" if config.parent is None else "child"


def make_folder(path: Path, kind: Kind = "run", *, force: bool, manifest: Mapping[str, Any]) -> None:
    """Make a run folder with a manifest. With `force` it replaces an existing run in which no process runs.

    A process that is killed meanwhile leaves a whole run folder or none. Raises RunError.
    """
    check_free(path, kind, force=force)
    if path.exists():
        with ExitStack() as locks:
            for run in (path, *filter(Path.is_dir, path.iterdir())):  # also the arms of an experiment
                locks.enter_context(lock(run, create=False))
            _remove(path)
    beside = path.with_name(f".{path.name}.new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        write_json(beside / MANIFEST, {"format": FORMAT} | dict(manifest))
        beside.rename(path)
    except OSError as error:
        raise cannot_make(path, "the folder of the run", error) from error


def optional_tables(config: RunConfig) -> list[str]:
    """Return the optional tables that the configuration asks for."""
    wanted = {"conflicts": config.record.conflicts != "off", "audit": config.audit.every > 0}
    return [table for table in OPTIONAL if wanted[table]]


def check_free(path: Path, kind: Kind = "run", *, force: bool) -> None:
    """Raise FolderError unless a folder does not exist, or is a run (or empty) and `force` overwrites it."""
    if path.exists():
        replaceable = path.is_dir() and (
            (path / MANIFEST).is_file() or (path / ARMS).is_file() or not any(path.iterdir())
        )
        if not replaceable:
            raise FolderError(f"{path} exists and is not a run folder: choose another name with --out")
        if not force:
            raise FolderError(f"{path} exists: {_IF_TAKEN[kind].format(shlex.quote(str(path)))}")
    elif (path.parent / MANIFEST).is_file():
        raise FolderError(
            f"{path} would be in the folder of a run: choose another name, or another folder with --out"
        )


def refuse_parent(folder: Path, parent: Path | str) -> None:
    """Raise ConfigError if a run that comes from a parent would overwrite the parent."""
    child_path, parent_path = folder.resolve(), Path(parent).resolve()
    if child_path == parent_path or child_path in parent_path.parents:
        relation = "is the parent itself" if child_path == parent_path else f"contains the parent {parent}"
        raise ConfigError(f"{folder} {relation}: choose another name, or another folder with --out")


def _remove(folder: Path) -> None:
    """Remove a run. Raises FolderError for a link, whose target is another folder."""
    if folder.is_symlink():
        raise FolderError(
            f"{folder} is a link to {folder.resolve()}: remove it, or choose another name with --out"
        )
    try:
        remove_folder(folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be overwritten: {error.strerror or error}") from error


@contextmanager
def lock(folder: Path, *, create: bool = True) -> Iterator[None]:
    """Lock a folder against other processes in the body. Raises RunError if another process has locked it.

    Without `create` the folder need not exist, and is locked only if it has a lock file.
    """
    path = folder / _LOCK
    if not create and not path.exists():
        yield
        return
    with _locked(path) as file:
        try:
            yield
        finally:
            if _is_at(path, file):
                path.unlink(missing_ok=True)


def is_running(folder: Path) -> bool:
    """Return whether a process runs in a folder, without writing to it."""
    try:
        with (folder / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:  # or the lock is missing, or belongs to another user
        return isinstance(error, BlockingIOError)
    return False


def status_of(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Return the status in the manifest of a run, `unknown` without one; `killed` if it runs no longer."""
    status = str(manifest.get("status", "unknown"))
    return "killed" if status == "running" and not is_running(folder) else status


def _locked(path: Path) -> TextIO:
    """Open and lock a file. Raises RunError if another process has locked it.

    A process removes its lock file at the end. A file that was opened before and locked after its removal locks
    nothing, so a new file is opened then.
    """
    while True:
        try:
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise RunError(f"{path.parent}: cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise FolderError(f"{path.parent}: another process is running it") from error
        if _is_at(path, file):
            return file
        file.close()


def _is_at(path: Path, file: TextIO) -> bool:
    """Return whether an open file is the file at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
