"""The folder of a run: from the first moment on it says what it is, and one process at a time runs in it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from fedsim.common.errors import ConfigError, FolderError, RunError
from fedsim.common.files import unmade, write_json
from fedsim.records.manifest import FORMAT, MANIFEST

CONFIG, WORLD = "config.resolved.toml", "world.parquet"
_LOCK = ".lock"


def make_folder(path: Path, *, force: bool, manifest: Mapping[str, Any]) -> None:
    """Make a new run folder that holds a manifest. An existing one is refused, or replaced if `force`.

    Nothing but a run is ever removed, and none in which a process runs; a process that is killed meanwhile leaves a run
    or none. Raises RunError.
    """
    check_free(path, force=force)
    if path.exists():
        with ExitStack() as held:
            for run in (path, *filter(Path.is_dir, path.iterdir())):  # also the arms of an experiment
                held.enter_context(alone(run, there=False))
            _remove(path)
    beside = path.with_name(f".{path.name}.new")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        write_json(beside / MANIFEST, {"format": FORMAT} | dict(manifest))
        beside.rename(path)
    except OSError as error:
        raise unmade(path, "the folder of the run", error) from error


def check_free(path: Path, *, force: bool) -> None:
    """Raise FolderError unless a run may have this folder: it is not there, or is a run that `force` overwrites."""
    if path.exists():
        known = path.is_dir() and (
            (path / MANIFEST).is_file() or (path / "arms.json").is_file() or not any(path.iterdir())
        )
        if not known:
            raise FolderError(f"{path} exists and is not a run folder: choose another name with --out")
        if not force:
            raise FolderError(
                f"{path} exists: choose another name with --out, or overwrite it with --force; fedsim run --resume "
                "goes on with what is there"
            )
    elif (path.parent / MANIFEST).is_file():
        raise FolderError(
            f"{path} would lie in the folder of a run: choose another name, or another place with --out"
        )


def refuse_parent(folder: Path, parent: Path | str) -> None:
    """Raise ConfigError if a run that comes from another one would take its place."""
    here, there = folder.resolve(), Path(parent).resolve()
    if here == there or here in there.parents:
        what = "is the parent itself" if here == there else f"holds the parent {parent}"
        raise ConfigError(f"{folder} {what}: choose another name, or another place with --out")


def _remove(folder: Path) -> None:
    """Remove a run; a link to one is refused, as what it leads to lies elsewhere."""
    if folder.is_symlink():
        raise FolderError(
            f"{folder} is a link to {folder.resolve()}: remove it, or choose another name with --out"
        )
    old = folder.with_name(f".{folder.name}.old")
    try:
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)  # half of a run is no run
        shutil.rmtree(old)
    except OSError as error:
        raise RunError(f"{folder} cannot be overwritten: {error.strerror or error}") from error


@contextmanager
def alone(folder: Path, *, there: bool = True) -> Iterator[None]:
    """Keep other processes from running in a folder. Raises RunError if one does.

    there: whether to keep the folder; otherwise it is only looked at, and need not exist.
    """
    if not there and not (folder / _LOCK).exists():
        yield
        return
    path = folder / _LOCK
    with _locked(path) as file:
        try:
            yield
        finally:
            if _is_at(path, file):
                path.unlink(missing_ok=True)


def is_running(folder: Path) -> bool:
    """Return whether a process runs in a folder; nothing is written there."""
    try:
        with (folder / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the lock is missing, or belongs to another user
        return False
    return False


def _locked(path: Path) -> TextIO:
    """Lock a file and return it. Raises RunError if another process has locked it.

    Who is done removes the file. One that was opened before and locked afterwards is not there for anybody else, so
    another takes its place.
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
    """Return whether an open file is the one that is found at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
