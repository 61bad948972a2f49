"""Find the files of data sets, and name those that are missing."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedsim.common.errors import DataError


def folder(data_dir: Path | None) -> Path:
    """Return the folder of data sets: `data_dir`, else the environment variable FEDSIM_DATA, else `./data`."""
    return Path(data_dir if data_dir is not None else os.environ.get("FEDSIM_DATA") or "data").expanduser()


def may_download(root: Path) -> bool:
    """Return whether `root` is the default folder, the only one for downloads: no configuration can redirect them."""
    return root.resolve() == folder(None).resolve()


def existing(task: str, data_dir: Path | None, *names: str) -> list[Path]:
    """Return the paths of a task's files. Raises DataError that names those that are missing, and the folder."""
    root = folder(data_dir)
    if missing := [name for name in names if not (root / name).is_file()]:
        raise DataError(
            f"task {task!r}: no {', '.join(missing)} in {root}. Put the files there, or set task.data_dir or "
            f"FEDSIM_DATA to a folder that holds them (docs/tasks.md says where to get them)"
        )
    return [root / name for name in names]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors raised while a file is read into a DataError that names it."""
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
