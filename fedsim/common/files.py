"""Atomic writing of files, and reading of files that may be damaged or malicious."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.common.errors import Error, FolderError, RunError, closest
from fedsim.common.units import show_bytes

if TYPE_CHECKING:
    import torch

PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, TypeError, MemoryError)
"""The exceptions of pyarrow for damaged Parquet files."""
MOST_PARTS = 100
"""Most parts of a dotted key in TOML."""
_KEY = re.compile(r"\s*[\w\"'-]+\s*")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file with `write` beside `path`, flush it to disk, and replace `path` by it in one step.

    A failed write leaves the previous file, and nothing beside it. A link at `path` is replaced, never followed.
    Raises RunError that names the file, with the free space if the disk is full, and FolderError if `path` is a device
    such as /dev/null, which a file would replace for all programs.
    """
    if path.name in ("", ".."):
        raise FolderError(f"{path}: expected the name of a file to write, found that of a folder")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise FolderError(f"{path}: expected a file to write, found a device, a pipe or a socket")
        temporary.unlink(missing_ok=True)  # left by a killed process, or a link to another place
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}{space(path, error)}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Make a folder and its parents, unless they exist.

    Raises FolderError if a file is in the way, and RunError if the folder cannot be made for another reason.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_make(path, "the folder", error) from error


def cannot_make(path: Path, noun: str, error: OSError) -> RunError:
    """Return the error for a folder that cannot be made; `noun` is its name in the message."""
    kind = FolderError if isinstance(error, (FileExistsError, NotADirectoryError)) else RunError
    return kind(f"{path}: {noun} cannot be made: {error.strerror or error}")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one step. Raises RunError as `write_atomically` does."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file in one step. Raises RunError as `write_atomically` does."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False, default=str) + "\n")


def sha256(path: Path) -> str:
    """Return the sha256 of a file's content in hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Flush the list of files of a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_folder(folder: Path) -> None:
    """Remove a folder; an interruption leaves no incomplete folder under its name. Raises OSError."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    shutil.rmtree(old)


def refuse_links(folder: Path) -> None:
    """Raise FolderError if a folder contains a link, through which a run would write outside of its folder."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise FolderError(
                f"{path} is a link to {os.readlink(path)}: a run writes only into its own folder"
            )


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file that others may read as they may the process's other files. Raises SafetensorError."""
    from safetensors.torch import save_file  # imported here: most commands need no torch

    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(dict(tensors), path)
    path.chmod(mode)  # safetensors writes for the owner alone


def from_json(text: str) -> Any:
    """Parse a JSON text. Raises ValueError, also for a text that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def flat(tables: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables with their dotted keys."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def from_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises ValueError, also for a text that is nested too deeply."""
    if (parts := _longest_key(text)) > MOST_PARTS:
        raise ValueError(f"expected keys of at most {MOST_PARTS} parts, found one of {parts:,}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _longest_key(text: str) -> int:
    """Return an upper bound of the parts of the longest dotted key in a TOML text; each part is a nested table."""
    longest = parts = 1
    for piece in text.split(".")[1:-1]:
        parts = parts + 1 if _KEY.fullmatch(piece) else 1
        longest = max(longest, parts)
    return longest + 1


def write_parquet(path: Path, schema: pa.Schema, pieces: Iterable[pa.Table]) -> None:
    """Write a table, piece by piece, with a checksum for each page. Raises RunError as `write_atomically` does.

    Columns of 64 bits have no dictionary: their values rarely repeat, and the dictionary takes most of the time. Nor
    have lists and texts.
    """
    fixed = [f for f in schema if not (pa.types.is_list(f.type) or pa.types.is_string(f.type))]
    repeated = [f.name for f in fixed if f.type.bit_width < 64]

    def write(target: Path) -> None:
        with pq.ParquetWriter(target, schema, use_dictionary=repeated, write_page_checksum=True) as writer:
            for piece in pieces:
                writer.write_table(piece)

    write_atomically(path, write)


def read_parquet(path: Path, wrong: type[Error], columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some of its columns, and check every value's encoding and every page's checksum.

    Raises `wrong`, which names the file and the missing column or another fault.
    """
    if not path.is_file():
        place = "" if path.is_absolute() else f", seen from {Path.cwd()}"
        raise wrong(f"{path}: {'it is not a file' if path.exists() else f'there is no such file{place}'}")
    try:
        return parquet_table(path, columns)
    except PermissionError as error:
        raise wrong(f"{path}: cannot be read: {error.strerror}") from error
    except PARQUET_ERRORS as error:
        raise wrong(
            f"{path}: not a readable Parquet file (truncated, damaged or foreign): {error}"
        ) from error


def parquet_table(source: Path | pa.NativeFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Read and check a Parquet file. Raises one of PARQUET_ERRORS."""
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        for name in columns or ():
            if name not in names:
                raise ValueError(f"there is no column {name!r}{closest(name, names)}")
        table = file.read(None if columns is None else list(columns))
    table.validate(full=True)
    return table


def space(path: Path, error: Exception) -> str:
    """Return the free space for a message if a file cannot be written because the disk is full; else ""."""
    if not (isinstance(error, OSError) and error.errno in _FULL) and "os error 28" not in str(error):
        return ""
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return ""
    return f"; {show_bytes(free)} free in {path.parent}"
