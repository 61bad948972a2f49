"""Reading the Parquet files of a run folder: merged files where there are any, else the numbered parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedsim.errors import RunError
from fedsim.records import TABLES

PARTS, WORLD = "parts", "world.parquet"


def read_table(folder: Path, name: str, complete: bool) -> pa.Table:
    """Return one table of a run, `name` being a key of `fedsim.records.TABLES`, in its declared schema.

    A run that is not `complete` may have written nothing yet: its table is empty then. Raises RunError
    naming the file.
    """
    merged = folder / f"{name}.parquet"
    if merged.is_file():
        return _conformed(merged, read_parquet(merged), TABLES[name])
    parts = _parts(folder / PARTS, name)
    if not parts and complete:
        raise RunError(f"{folder}: {merged.name} is missing, and so are its parts in {PARTS}/")
    tables = [_conformed(part, read_parquet(part), TABLES[name]) for part in parts]
    return pa.concat_tables([TABLES[name].empty_table(), *tables]).unify_dictionaries().combine_chunks()


def read_world(folder: Path) -> pa.Table:
    """Return the trace that the run saw. Raises RunError if it is missing."""
    path = folder / WORLD
    if not path.is_file():
        raise RunError(f"{folder}: {WORLD} is missing")
    return read_parquet(path)


def read_parquet(path: Path) -> pa.Table:
    """Read one Parquet file. Raises RunError naming the file."""
    try:
        return pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path}: not a readable Parquet file (truncated?): {error}") from error


def word_counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each word of a dictionary column occurs, leaving out words that never do."""
    counts: list[dict[str, Any]] = pc.value_counts(column.cast(pa.string())).to_pylist()
    return {entry["values"]: entry["counts"] for entry in counts}


def _parts(folder: Path, name: str) -> list[Path]:
    parts = sorted(folder.glob(f"{name}-*.parquet"))
    expected = [folder / f"{name}-{index:05d}.parquet" for index in range(len(parts))]
    missing = next((path for path, part in zip(expected, parts, strict=True) if path != part), None)
    if missing:
        raise RunError(f"{missing} is missing, though later parts of the table are there")
    return parts


def _conformed(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise RunError(f"{path}: missing column {', '.join(missing)}; found {', '.join(table.column_names)}")
    try:
        return table.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        raise RunError(f"{path}: a column has another type than declared: {error}") from error
