"""Cutting the tables of a run back to where a checkpoint was, so that it can go on from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fedsim.common.errors import CheckpointError
from fedsim.common.files import parquet_writer, read_parquet, sync_folder, write_atomically
from fedsim.records.schemas import PARTS, TABLES, part_name

_NEW, _OLD = f".{PARTS}.new", f".{PARTS}.old"


def cut_tables(folder: Path, rows: Mapping[str, int], *, source: Path | None = None) -> None:
    """Let `<folder>/parts` hold the first `rows` of each table, in one part each, and nothing else.

    The rows come from the merged tables or the parts of `source`, by default the folder itself. Whatever interrupts
    this, it can be done again. Raises CheckpointError if a table has fewer rows than that.
    """
    source = source or folder
    parts, new, old = folder / PARTS, folder / _NEW, folder / _OLD
    if not parts.exists() and old.exists():
        old.rename(parts)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for table, count in rows.items():
        pieces = _first(source, table, count)
        write_atomically(
            new / part_name(table, 0),
            lambda beside, p=pieces, t=table: _write(beside, TABLES[t], p),  # type: ignore[misc]
        )
    shutil.rmtree(old, ignore_errors=True)
    if parts.exists():
        parts.rename(old)
    new.rename(parts)
    sync_folder(folder)
    shutil.rmtree(old, ignore_errors=True)
    for table in TABLES:
        (folder / f"{table}.parquet").unlink(missing_ok=True)


def _write(path: Path, schema: pa.Schema, pieces: Iterator[pa.Table]) -> None:
    with parquet_writer(path, schema) as writer:
        for piece in pieces:
            writer.write_table(piece)


def _first(folder: Path, table: str, count: int) -> Iterator[pa.Table]:
    """Return the first `count` rows of a table, part by part."""
    left = count
    for path in _files(folder, table, count):
        if left <= 0:
            break
        piece = read_parquet(path, CheckpointError)
        yield piece.slice(0, left)
        left -= len(piece)


def _files(folder: Path, table: str, count: int) -> list[Path]:
    """Return the files that hold a table: the merged one, or where it is not there or does not hold enough the parts.

    The other way round, who was killed while the parts of merged tables were removed would take what is left of them.
    """
    parts = sorted((folder / PARTS).glob(f"{table}-*.parquet"))
    merged = folder / f"{table}.parquet"
    found = 0
    for files in ([merged] if merged.exists() else [], parts):
        held = sum(_rows(path) for path in files)
        if held >= count:
            return files
        found = max(found, held)
    raise CheckpointError(
        f"{folder}: table {table!r}: expected at least {count} rows, as at the checkpoint, found {found}"
    )


def _rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
