"""What differs between two worlds."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.analysis.worlds.difference import compare_worlds, ks_distance
from fedsim.worlds.trace import Trace

lines = st.lists(st.booleans(), min_size=12, max_size=12)
tables = st.lists(lines, min_size=1, max_size=4).map(np.array)


def world_of(table):
    rows = [(int(c), int(t), int(t) + 1) for c, t in np.argwhere(table)]
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 3
    return Trace.of(*columns, "online", clients=len(table), horizon_us=table.shape[1])


@given(tables, tables)
@settings(max_examples=80, deadline=None)
def test_disagreement_agrees_with_counting(a, b):
    found = compare_worlds(world_of(a), world_of(b))
    n = min(len(a), len(b))
    differ = a[:n] ^ b[:n]
    assert found.clients == n
    assert found.disagreement == pytest.approx(differ.mean())
    assert found.differing == differ.any(axis=1).sum()
    if differ.any():
        time = int(np.argmax(differ.any(axis=0)))
        assert found.first == (time, int(np.argmax(differ[:, time])))
    else:
        assert found.first is None


@given(tables)
@settings(max_examples=40, deadline=None)
def test_a_world_is_the_same_as_itself(a):
    found = compare_worlds(world_of(a), world_of(a))
    assert found.same
    assert found.disagreement == 0
    assert set(found.kinds.values()) == {None}


def test_only_the_shared_clients_and_time_are_compared():
    long = Trace.of([0, 1, 2], [0, 5, 0], [5, 30, 9], "online", clients=3, horizon_us=30)
    short = Trace.of([0, 1], [0, 5], [5, 10], "online", clients=2, horizon_us=10)
    found = compare_worlds(long, short)
    assert (found.clients, found.span_us, found.disagreement, found.first) == (2, 10, 0, None)
    assert not found.same
    assert found.kinds["online"] == (1, 5)


def test_a_loop_is_the_same_as_its_laps_written_out():
    loop = Trace.of(0, 0, 2, "online", clients=1, horizon_us=12, periods={"online": np.array([4])})
    written = Trace.of([0, 0, 0], [0, 4, 8], [2, 6, 10], "online", clients=1, horizon_us=12)
    found = compare_worlds(loop, written)
    assert (found.disagreement, found.first) == (0, None)
    assert not found.same


def test_shares_of_time_count_whole_and_begun_laps() -> None:
    """Online in the first of 5, twice in 6: the share of a client's own period says nothing of the world."""
    loop = Trace.of(0, 0, 1, "online", clients=1, horizon_us=6, periods={"online": np.array([5])})
    written = Trace.of([0, 0], [0, 5], [1, 6], "online", clients=1, horizon_us=6)
    assert compare_worlds(loop, written).distances["online share"] == 0


def test_a_period_of_the_length_of_the_world_is_no_difference():
    a = Trace.of(0, 0, 2, "online", clients=1, horizon_us=4, after_end="repeat")
    rows = [0, 0], [0, 0], [2, 3], ["online", "uplink"], [1.0, 2.0]
    b = Trace.of(*rows, clients=1, horizon_us=4, after_end="repeat", periods={"online": np.array([4])})
    assert compare_worlds(a, b).kinds == dict.fromkeys(compare_worlds(a, b).kinds) | {"uplink": (0, 0)}


def test_the_first_other_interval_of_each_kind_is_named():
    rows = [(c, t, t + 10, kind, 2.0) for c in (0, 1) for kind in ("uplink", "fault") for t in (0, 20)]
    a = Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=50)
    rows[5] = (1, 20, 30, "uplink", 3.0)
    b = Trace.of(*zip(*rows[:-1], strict=True), clients=2, horizon_us=50)
    kinds = compare_worlds(a, b).kinds
    assert kinds == dict.fromkeys(kinds) | {"uplink": (1, 20), "fault": (1, 20)}


def test_facts_alone_make_another_world():
    a = Trace.of(0, 0, 2, "online", clients=1, horizon_us=12)
    b = Trace.of(0, 0, 2, "online", clients=1, horizon_us=12, about=pa.table({"tier": [1]}))
    found = compare_worlds(a, b)
    assert (found.same, found.disagreement, set(found.kinds.values())) == (False, 0, {None})


@given(*[st.lists(st.integers(0, 9), min_size=1, max_size=20)] * 2)
@settings(max_examples=60, deadline=None)
def test_the_distance_is_that_of_kolmogorov_and_smirnov(a, b):
    below = [abs(np.mean([x <= t for x in a]) - np.mean([x <= t for x in b])) for t in range(10)]
    assert ks_distance(np.array(a), np.array(b)) == pytest.approx(max(below))


def test_without_values_there_is_no_distance():
    assert np.isnan(ks_distance(np.zeros(0), np.ones(3)))


def test_rounding_is_no_distance() -> None:
    speeds = np.array([0.1, 3.0, np.inf])
    for first, second in ((speeds, np.nextafter(speeds, np.inf)), (np.nextafter(speeds, np.inf), speeds)):
        assert ks_distance(first, second) == 0
    assert ks_distance(speeds, speeds * (1 + 1e-9)) == pytest.approx(1 / 3)
