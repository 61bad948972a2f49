"""The world as a table: when each client is online, how fast it is, and when it fails.

One row is one half-open interval `[start_us, end_us)` of one client and one kind (see `KINDS`). A client
without rows exists and is never online. Intervals of the same client and kind may touch but must not overlap.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from fedsim.common import arguments
from fedsim.common.arrow_columns import array, numbers, texts
from fedsim.common.errors import TraceError, closest
from fedsim.common.files import make_directory, read_parquet, write_atomically
from fedsim.common.paths import as_path
from fedsim.worlds.metadata import (
    AFTER_ENDS,
    SCHEMA_VERSION,
    AfterEnd,
    checked_about,
    checked_periods,
    from_metadata,
    metadata_problems,
    more_to_text,
    to_metadata,
)
from fedsim.worlds.validation import (
    COLUMNS,
    KINDS,
    MODELLED,
    MOST_LINES,
    Columns,
    Malformed,
    columns_of,
    listed,
    problem_text,
    row_name,
    row_problems,
    undescribed,
)

__all__ = ["AFTER_ENDS", "KINDS", "MODELLED", "SCHEMA", "AfterEnd", "Spans", "Trace", "read_trace"]

SCHEMA = pa.schema(
    [
        ("client", pa.int32()),
        ("start_us", pa.int64()),
        ("end_us", pa.int64()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("value", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Spans:
    """The intervals of one kind as arrays of equal length, in order of (client, start)."""

    client: NDArray[np.int64]
    start_us: NDArray[np.int64]
    end_us: NDArray[np.int64]
    value: NDArray[np.float64]

    def joined(self, *, equal: bool = False) -> Spans:
        """Return the intervals with those that touch joined, with `equal` only if their values are equal.

        Each keeps the value of its first part.
        """
        touches = (self.client[1:] == self.client[:-1]) & (self.start_us[1:] == self.end_us[:-1])
        if equal:
            touches &= self.value[1:] == self.value[:-1]
        edge = np.ones(min(len(self.client), 1), dtype=bool)
        opens, closes = np.concatenate([edge, ~touches]), np.concatenate([~touches, edge])
        return Spans(self.client[opens], self.start_us[opens], self.end_us[closes], self.value[opens])


class TraceFacts(TypedDict):
    """The fields of a Trace besides its table, as keyword arguments; see there."""

    clients: int
    horizon_us: int
    after_end: NotRequired[AfterEnd]
    source: NotRequired[str]
    origin: NotRequired[str]
    periods: NotRequired[Mapping[str, ArrayLike] | None]
    about: NotRequired[pa.Table | None]


@dataclass(frozen=True, slots=True)
class Trace:
    """An immutable, checked table of intervals with its metadata.

    `table` may be any table with the columns of `SCHEMA` (integers of any width, text of any kind). The Trace checks
    it, puts it in order of (kind, client, start) and keeps it in `SCHEMA`. Raises TraceError with every problem, naming
    the client and the row of the original table (rows count from 0).
    """

    table: pa.Table
    clients: int
    """Number of clients, 1 or more; their ids run from 0."""
    horizon_us: int
    """The world is described over [0, horizon_us)."""
    after_end: AfterEnd = "error"
    source: str = ""
    """Where the trace comes from: free text or JSON."""
    origin: str = ""
    """The date and time of virtual time 0 in ISO format, or an empty text."""
    periods: Mapping[str, ArrayLike] = field(default_factory=dict)
    """By kind: [clients] microseconds after which each client's intervals of that kind begin again; 0 for clients that
    follow the world's horizon. `unknown` follows `online`."""
    about: pa.Table = field(default_factory=lambda: pa.table({}))
    """Facts about clients: one row for each, columns of any name (such as `id`, `model`, `region`)."""

    def __post_init__(self) -> None:
        arguments.check("table", self.table, pa.Table)
        arguments.check("source", self.source, str)
        arguments.check("origin", self.origin, str)
        arguments.check("periods", self.periods, Mapping[str, ArrayLike])
        arguments.check("about", self.about, pa.Table)
        columns = _checked(self)
        object.__setattr__(self, "periods", _checked_periods(self, columns))
        object.__setattr__(self, "about", checked_about(self.about, self.clients))
        object.__setattr__(self, "table", _canonical(columns))

    @classmethod
    def of(
        cls,
        client: ArrayLike,
        start_us: ArrayLike,
        end_us: ArrayLike,
        kind: str | Sequence[str],
        value: ArrayLike = 1.0,
        **facts: Unpack[TraceFacts],
    ) -> Trace:
        """Make a Trace of columns of equal length; a single kind or value stands for all rows.

        `facts` are the other fields of Trace by name, such as `clients` and `horizon_us`.
        """
        n = len(np.atleast_1d(client))
        columns = {
            "client": np.atleast_1d(client),
            "start_us": np.atleast_1d(start_us),
            "end_us": np.atleast_1d(end_us),
            "kind": pa.array([kind] * n if isinstance(kind, str) else kind, pa.string()),
            "value": np.broadcast_to(value, n) if np.ndim(value) == 0 else value,
        }
        try:
            table = pa.table(columns) if n else SCHEMA.empty_table()
        except (pa.ArrowException, ValueError) as error:
            raise TraceError(f"cannot make a table of the columns: {error}") from error
        return cls.from_table(table, **facts)

    @classmethod
    def from_table(cls, table: pa.Table, **facts: Unpack[TraceFacts]) -> Trace:
        """Make a Trace of an Arrow table with the columns of `SCHEMA`; `facts` as for `of`."""
        fields: dict[str, Any] = {name: fact for name, fact in facts.items() if fact is not None}
        return cls(table, **fields)

    @property
    def nbytes(self) -> int:
        """Bytes of the table in memory."""
        return int(self.table.nbytes)

    def spans(self, kind: str) -> Spans:
        """Return the intervals of one kind."""
        if kind not in KINDS:
            raise ValueError(f"there is no kind {kind!r}{closest(kind, KINDS)}")
        codes = array(self.table.column("kind").chunk(0).indices)
        first, last = np.searchsorted(codes, [KINDS.index(kind), KINDS.index(kind) + 1]).tolist()
        part = self.table.slice(first, last - first)
        arrays = {name: array(part.column(name)) for name in COLUMNS if name != "kind"}
        return Spans(arrays["client"].astype(np.int64), arrays["start_us"], arrays["end_us"], arrays["value"])

    def period_us(self, kind: str) -> NDArray[np.int64]:
        """Return [clients] the periods of a kind, 0 for clients that follow the world's horizon."""
        periods = self.periods.get("online" if kind == "unknown" else kind)
        return np.zeros(self.clients, dtype=np.int64) if periods is None else np.asarray(periods)

    def about_columns(self, n: int) -> dict[str, NDArray[Any]]:
        """Return the columns [n] of `about` on the first `n` clients, by name."""
        return {name: array(self.about.column(name))[:n] for name in self.about.column_names}

    def digest(self) -> str:
        """Return a SHA-256 that is equal for worlds that behave equally, however their files are laid out.

        It covers intervals, periods, the number of clients, the horizon, `after_end` and `about`; not `source` and
        `origin`.
        """
        text = f"trace {SCHEMA_VERSION} {self.clients} {self.horizon_us} {self.after_end} {len(self.table)}"
        sha = hashlib.sha256(text.encode())
        sha.update(array(self.table.column("kind").chunk(0).indices).tobytes())
        for name in ("client", "start_us", "end_us", "value"):
            little = array(self.table.column(name))
            sha.update(little.astype(little.dtype.newbyteorder("<"), copy=False).tobytes())
        if self.periods or self.about.num_columns:
            sha.update(more_to_text(self.periods, self.about).encode())
        return sha.hexdigest()

    def write(self, path: Path | str) -> None:
        """Write the Trace as a Parquet file, all or nothing.

        Raises RunError that names the file on failure, and FolderError if `path` or its folder is something else.
        """
        target = as_path(path, "path")
        names = ("clients", "horizon_us", "after_end", "source", "origin")
        facts = {name: getattr(self, name) for name in names}
        table = self.table.replace_schema_metadata(to_metadata(facts, self.periods, self.about))
        make_directory(target.parent)
        write_atomically(
            target, lambda beside: pq.write_table(table, beside, compression="zstd", write_page_checksum=True)
        )


def read_trace(path: Path | str) -> Trace:
    """Read and check a trace file. Raises TraceError with the file's name and every problem."""
    file = as_path(path, "path")
    try:
        table = read_parquet(file, TraceError)
    except TraceError as error:
        if not file.is_file() or file.suffix == ".parquet":
            raise
        command = shlex.join(
            ["fedsim", "trace", "import", str(file), "-o", str(file.with_suffix(".parquet"))]
        )
        raise TraceError(f"{error}; to make a trace of a file in another format: {command}") from error
    try:
        return Trace(table, **from_metadata(table.schema.metadata or {}))
    except TraceError as error:
        raise TraceError(f"{file}: {error}") from error


def _checked(trace: Trace) -> Columns:
    problems = metadata_problems(trace.clients, trace.horizon_us, trace.after_end, trace.origin)
    try:
        columns = columns_of(trace.table)
    except Malformed as error:
        raise TraceError(listed([*problems, *error.args])) from None
    if problems:
        raise TraceError(listed(problems))
    findings = list(row_problems(columns, trace.clients, trace.horizon_us))
    inside = columns.rows((columns.client >= 0) & (columns.client < trace.clients))
    problems = list(undescribed(inside, trace.clients))
    if problems or any(len(rows) for rows, _ in findings):
        raise TraceError(problem_text(findings, columns, problems))
    return columns


def _checked_periods(trace: Trace, columns: Columns) -> dict[str, NDArray[np.int64]]:
    """Return the periods as arrays, without kinds that have none. Raises TraceError with every problem."""
    by_kind = checked_periods(trace.periods, trace.clients, trace.horizon_us)
    lines: list[str] = []
    for kind, periods in by_kind.items():
        kinds = [KINDS.index(k) for k in ((kind, "unknown") if kind == "online" else (kind,))]
        limit = np.where(periods > 0, periods, trace.horizon_us)
        over = np.flatnonzero(np.isin(columns.kind, kinds) & (columns.end_us > limit[columns.client]))
        lines += [
            f"{row_name(columns, i)}: end_us {columns.end_us[i]} is beyond the client's period of "
            f"{periods[columns.client[i]]} us"
            for i in over[:MOST_LINES]
        ]
    if lines:
        raise TraceError(listed(lines))
    return {kind: periods for kind, periods in by_kind.items() if periods.any()}


def _canonical(columns: Columns) -> pa.Table:
    order = np.lexsort((columns.start_us, columns.client, columns.kind))
    ordered = columns.rows(order)
    unused = ~np.isin(ordered.kind, [KINDS.index(kind) for kind in MODELLED])
    kind = pa.DictionaryArray.from_arrays(numbers(ordered.kind.astype(np.int8)), texts(KINDS))
    arrays = [
        numbers(ordered.client.astype(np.int32)),
        numbers(ordered.start_us),
        numbers(ordered.end_us),
        kind,
        numbers(np.where(unused, 1.0, ordered.value)),
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
