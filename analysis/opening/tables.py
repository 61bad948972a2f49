"""Read the Parquet files of a run folder: the merged files, or the numbered parts of a run that has not ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedsim.common.arrays import Ints
from fedsim.common.arrow_columns import array
from fedsim.common.errors import FolderError, closest
from fedsim.common.files import read_parquet
from fedsim.engine.record_words import STATUSES, STEP_STATUSES
from fedsim.records.file_names import CLIENTS, PARTS, WORLD, part_name
from fedsim.records.schemas import CLIENT_FACTS, CLIENT_NAME, LABEL_COUNTS, TABLES

_FROM_ZERO = ("job", "client", "dispatch_us", "end_us", "time_us", "n_samples", "n", "correct")
"""Columns in which -1 is an error; elsewhere it stands for "none"."""
KEYS = {
    "jobs": ("job",),
    "steps": ("step",),
    "evals": ("step", "time_us", "split", "client"),
    "audit": ("step", "client"),
}
"""The columns that together form a unique key of each table."""
_STATUSES = {*STATUSES, *STEP_STATUSES}


def read_table(folder: Path, name: str, complete: bool) -> pa.Table:
    """Return a table of a run, by its name in `fedsim.records.schemas.TABLES`, in its declared schema.

    A missing table is empty, or an error if the run is `complete`. Raises FolderError that names the file.
    """
    merged = folder / f"{name}.parquet"
    if merged.is_file():
        return _conformed(merged, read_parquet(merged, FolderError), TABLES[name])
    parts = _parts(folder / PARTS, name)
    if not parts and complete:
        raise FolderError(f"{folder}: {merged.name} is missing, and so are its parts in {PARTS}/")
    tables = [_conformed(part, read_parquet(part, FolderError), TABLES[name]) for part in parts]
    return pa.concat_tables([TABLES[name].empty_table(), *tables]).unify_dictionaries().combine_chunks()


def check_rows(folder: Path, name: str, table: pa.Table, clients: int | None) -> pa.Table:
    """Return a table whose keys are unique, whose clients are the run's, and whose accuracies lie from 0 to 1.

    Raises FolderError that names the file and the first row that breaks this.
    """
    path = folder / f"{name}.parquet"
    if clients is not None and "client" in table.column_names:
        foreign = np.flatnonzero(array(table["client"]) >= clients)
        if len(foreign):
            client = table["client"][int(foreign[0])].as_py()
            raise FolderError(
                f"{path}, row {foreign[0]}: expected one of the run's {clients:,} clients, found client {client}"
            )
    if name == "evals":
        accuracy = array(table["accuracy"])
        wrong = np.flatnonzero((accuracy < 0) | (accuracy > 1))  # NaN where there was nothing to measure
        if len(wrong):
            at = int(wrong[0])
            raise FolderError(f"{path}, row {at}: expected an accuracy from 0 to 1, found {accuracy[at]:g}")
    if name in KEYS and (row := _second(table.select(KEYS[name]))) is not None:
        repeated = ", ".join(f"{key} {table[key][row].as_py()}" for key in KEYS[name])
        raise FolderError(
            f"{path}, row {row}: expected each {' and '.join(KEYS[name])} once, found {repeated} again"
        )
    return table


def _second(keys: pa.Table) -> int | None:
    """Return the first row that repeats the key of an earlier row; None if there is none."""
    columns = [_codes(column) for column in keys.columns]
    order = np.lexsort(columns)
    repeats = np.ones(max(len(order) - 1, 0), dtype=bool)
    for values in columns:
        repeats &= np.diff(values[order]) == 0
    return int(order[1:][repeats].min()) if repeats.any() else None


def _codes(column: pa.ChunkedArray) -> Ints:
    """Return a column of whole numbers unchanged, and a column of words as numbers."""
    if pa.types.is_dictionary(column.type):
        words = pc.cast(column, pa.string())
        column = pc.index_in(words, value_set=pc.unique(words))
    return np.asarray(array(column), np.int64)


def read_world(folder: Path) -> pa.Table:
    """Return the trace that the run saw as a table. Raises FolderError if it is missing."""
    path = folder / WORLD
    if not path.is_file():
        raise FolderError(f"{folder}: {WORLD} is missing")
    return read_parquet(path, FolderError)


def read_clients(folder: Path) -> pa.Table:
    """Return `clients.parquet` without its label counts. Raises FolderError that names what is missing."""
    path = folder / CLIENTS
    table = read_parquet(path, FolderError)
    columns = table.column_names
    for name in CLIENT_FACTS.names:
        if name not in columns:
            raise FolderError(f"{path}: there is no column {name!r}{closest(name, columns)}")
    return table.select([name for name in (*CLIENT_FACTS.names, CLIENT_NAME.name) if name in columns])


def read_label_counts(folder: Path) -> Ints | None:
    """Return [K, classes] the training samples of each client by label, in the order of the clients; None without them.

    Raises FolderError if they are damaged.
    """
    path = folder / CLIENTS
    table = read_parquet(path, FolderError) if path.is_file() else pa.table({})
    if LABEL_COUNTS.name not in table.column_names:
        return None
    try:
        lists = table.sort_by("client")[LABEL_COUNTS.name].cast(LABEL_COUNTS.type).combine_chunks()
    except (pa.ArrowException, ValueError) as error:
        raise FolderError(f"{path}: {LABEL_COUNTS.name}: expected lists of whole numbers: {error}") from error
    counts, classes = lists.flatten(), lists.value_lengths().unique()
    if len(classes) != 1 or classes.null_count or counts.null_count:
        raise FolderError(f"{path}: {LABEL_COUNTS.name}: expected a count of each label for each client")
    return array(counts).reshape(len(lists), -1).astype(np.int64)


def word_counts(column: pa.ChunkedArray) -> dict[str, int]:
    """Return how often each word of a dictionary column occurs; words without a row are left out."""
    counts: list[dict[str, Any]] = pc.value_counts(column.cast(pa.string())).to_pylist()
    return {entry["values"]: entry["counts"] for entry in counts}


def _parts(folder: Path, name: str) -> list[Path]:
    parts = sorted(folder.glob(f"{name}-*.parquet"))
    expected = [folder / part_name(name, index) for index in range(len(parts))]
    missing = next((path for path, part in zip(expected, parts, strict=True) if path != part), None)
    if missing:
        raise FolderError(f"{missing} is missing, though later parts of the table exist")
    return parts


def _conformed(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise FolderError(
            f"{path}: missing column {', '.join(missing)}; found {', '.join(table.column_names)}"
        )
    try:
        table = table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise FolderError(f"{path}: a column has another type than declared: {error}") from error
    for name in schema.names:
        if wrong := _wrong(name, table[name]):
            raise FolderError(f"{path}, column {name!r}: {wrong}")
    return table


def _wrong(name: str, column: pa.ChunkedArray) -> str:
    """Return what is wrong with a column's values; empty if nothing is."""
    if column.null_count:
        return f"expected values in all {len(column)} rows, found {column.null_count} nulls"
    if name in _FROM_ZERO and len(column) and (least := pc.min(column).as_py()) < 0:
        return f"expected numbers of at least 0, found {least}"
    if name == "status" and not set(counts := word_counts(column)) <= _STATUSES:
        return f"expected one of {', '.join(sorted(_STATUSES))}, found {min(set(counts) - _STATUSES)!r}"
    return ""
