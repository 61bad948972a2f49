"""Clients of a task beside those of its world: who is told to be another one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fedsim.common.errors import TraceError
from fedsim.data.client_names import check_present, mismatch
from fedsim.worlds.trace import Trace

TOWNS = ("bonn", "jena", "oslo", "york")


def world(*ids: str) -> Trace:
    n = len(ids)
    facts = {"clients": n, "horizon_us": 10, "after_end": "repeat", "about": pa.table({"id": list(ids)})}
    return Trace.of(range(n), [0] * n, [9] * n, ["online"] * n, [1.0] * n, **facts)


MISMATCHES = {
    "the same": (TOWNS, ()),
    "another order": (
        ("york", "jena", "oslo", "bonn"),
        (
            "client 0 has the samples of 'bonn' and the availability of 'york', one of 2",
            "they are the same in another order",
        ),
    ),
    "one more behind": ((*TOWNS, "zug"), ()),
    "one more before": (
        ("aalen", *TOWNS),
        ("availability of 'aalen', one of 4", "only the world has 'aalen'; `"),
    ),
    "written differently": (
        ("Bonn", "jena", "oslo", "york"),
        ("one of 1", "only the world has 'Bonn'; only the task has 'bonn'"),
    ),
    "another one": (
        ("jena", "oslo", "ulm", "york"),
        ("one of 3", "only the world has 'ulm'; only the task has 'bonn'"),
    ),
    "half of them": (
        ("a", "b", "c", "d", "e", "bonn", "jena"),
        ("only the world has 'a', 'b', 'c' and 2 more; only the task has 'oslo', 'york'",),
    ),
    "one of four": (("a", "b", "c", "york"), ()),
    "one twice": (("jena", "jena", "bonn", "york"), ()),
}


@pytest.mark.parametrize(("ids", "told"), MISMATCHES.values(), ids=MISMATCHES)
def test_clients_at_other_numbers_are_told(ids: tuple[str, ...], told: tuple[str, ...]) -> None:
    found = mismatch(TOWNS, world(*ids))
    assert bool(found) == bool(told)
    assert all(text in found for text in told), found
    assert mismatch(None, world(*ids)) == ""


def test_numbers_from_0_are_names_only_if_all_are_the_same() -> None:
    names = ("0", "1", "2")
    found = mismatch(names, world("2", "1", "0"))
    assert "client 0 has the samples of '0' and the availability of '2'" in found
    assert mismatch(names, world("2", "1", "0", "3")) == ""
    assert "only the task has '7'" in mismatch(("3", "5", "7"), world("3", "4", "5"))


def test_clients_that_the_world_lacks_are_named() -> None:
    message = "expected the 4 clients of the task that train, found 3: it lacks 'jena'; a row"
    with pytest.raises(TraceError, match=message):
        check_present(TOWNS, world("bonn", "oslo", "york"))
    check_present(TOWNS, world(*TOWNS))
    check_present(TOWNS, world("a", "b"))
    check_present(None, world("bonn"))
    check_present(("0", "1"), world("0"))
