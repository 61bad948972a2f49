"""Truncates the tables of a run to their rows at a checkpoint, from which the run resumes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.common.errors import CheckpointError
from fedsim.common.files import read_parquet, sync_folder, write_parquet
from fedsim.records.file_names import PARTS, part_name
from fedsim.records.schemas import TABLES


def cut_tables(folder: Path, rows: Mapping[str, int], *, source: Path | None = None) -> None:
    """Replace `<folder>/parts` and the merged tables by one part per table with its first `rows`.

    The rows come from the merged tables or the parts of `source`, by default the folder itself. After an interruption
    the function can be called again. Raises CheckpointError if a table has fewer rows.
    """
    source = source or folder
    parts, new, old = folder / PARTS, folder / f".{PARTS}.new", folder / f".{PARTS}.old"
    if not parts.exists() and old.exists():
        old.rename(parts)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for table, count in rows.items():
        write_parquet(new / part_name(table, 0), TABLES[table], _first(source, table, count))
    shutil.rmtree(old, ignore_errors=True)
    if parts.exists():
        parts.rename(old)
    new.rename(parts)
    sync_folder(folder)
    shutil.rmtree(old, ignore_errors=True)
    for table in TABLES:
        (folder / f"{table}.parquet").unlink(missing_ok=True)


def _first(folder: Path, table: str, count: int) -> Iterator[pa.Table]:
    """Yield the first `count` rows of a table, part by part."""
    left = count
    for path in _files(folder, table, count):
        if left <= 0:
            break
        piece = read_parquet(path, CheckpointError)
        yield piece.slice(0, left)
        left -= len(piece)


def _files(folder: Path, table: str, count: int) -> list[Path]:
    """Return the files of a table with at least `count` rows: the merged table, otherwise the parts.

    The merged table comes first, since a killed process may have removed some of the parts after merging.
    """
    parts = sorted((folder / PARTS).glob(f"{table}-*.parquet"))
    merged = folder / f"{table}.parquet"
    most = 0
    for files in ([merged] if merged.exists() else [], parts):
        n = sum(_rows(path) for path in files)
        if n >= count:
            return files
        most = max(most, n)
    raise CheckpointError(
        f"{folder}: table {table!r}: expected at least {count} rows, as at the checkpoint, found {most}"
    )


def _rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
