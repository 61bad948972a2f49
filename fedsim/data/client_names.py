"""Compare the names of a task's clients with those of its world, whose clients a run pairs by number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from fedsim.common.errors import TraceError
from fedsim.worlds.trace import Trace

_SHOWN = 3
_ALIKE = (
    "`fedsim trace import FILE --option order=name` numbers clients of csv and parquet files as a task does, once file "
    "and task have the same ones"
)
_ABSENT = "a row of the kind offline stands for a client that is never online"


def check_present(names: Sequence[str] | None, trace: Trace) -> None:
    """Raise TraceError with the names of clients that the world lacks, if it has fewer clients than there are names."""
    ids = _ids(trace)
    if names is None or trace.clients >= len(names) or not _are_of_each_other(names, ids):
        return
    lacking = [name for name in names if name not in set(ids)]
    raise TraceError(
        f"world: expected the {len(names)} clients of the task that train, found {len(ids)}: it lacks "
        f"{_listed(lacking)}; {_ABSENT}"
    )


def mismatch(names: Sequence[str] | None, trace: Trace) -> str:
    """Return how the clients of a world differ from those of the task, or their order; "" if they are other clients.

    They are taken for the same if half of the task's names are among the world's, and all are if the names are the
    numbers from 0, which two files may have in common by chance.
    """
    ids = _ids(trace)
    if names is None or not _are_of_each_other(names, ids):
        return ""
    differ = [k for k, (name, other) in enumerate(zip(names, ids, strict=False)) if name != other]
    if not differ:
        return ""
    first = differ[0]
    only = [
        f"only the {place} has {_listed(left)}"
        for place, own, others in (("world", ids, names), ("task", names, ids))
        if (left := [name for name in own if name not in set(others)])
    ]
    found = "; ".join(only) or "they are the same in another order"
    return (
        f"its world has not the clients of its task at the same numbers: client {first} has the samples of "
        f"{names[first]!r} and the availability of {ids[first]!r}, one of {len(differ)} such clients; {found}; "
        f"{_ALIKE}" + (f"; {_ABSENT}" if only else "")
    )


def _ids(trace: Trace) -> list[str]:
    """Return the names of the world's clients; an empty list if it has none, or one of them twice."""
    ids = [str(name) for name in trace.about["id"].to_pylist()] if "id" in trace.about.column_names else []
    return ids if len(set(ids)) == len(ids) else []


def _are_of_each_other(names: Sequence[str], ids: Sequence[str]) -> bool:
    common = len(set(names) & set(ids))
    if list(names) == [str(k) for k in range(len(names))]:
        return common == len(names) == len(ids)
    return 2 * common >= len(names)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, islice(names, _SHOWN))) + more
