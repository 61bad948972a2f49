"""Traces: what is refused and how it is told, and files."""

import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import RunError, TraceError
from fedsim.worlds.trace import KINDS, SCHEMA, Trace, read_trace

ROWS = [
    (1, 0, 50, "online", 1.0),
    (0, 10, 20, "online", 1.0),
    (0, 20, 90, "online", 1.0),
    (0, 0, 100, "compute", 0.01),
    (1, 0, 100, "compute", 0.02),
    (0, 30, 31, "fault", 1.0),
]


def trace(rows=ROWS, clients=3, horizon_us=100, **facts):
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 5
    return Trace.of(*columns, clients=clients, horizon_us=horizon_us, **facts)


def problems(rows, **facts):
    with pytest.raises(TraceError) as caught:
        trace(rows, **facts)
    return str(caught.value)


def test_rows_are_kept_in_order_of_kind_client_and_start():
    table = trace().table
    assert table.schema == SCHEMA
    assert table.column("kind").to_pylist() == ["online"] * 3 + ["compute"] * 2 + ["fault"]
    assert table.column("client").to_pylist() == [0, 0, 1, 0, 1, 0]
    assert table.column("start_us").to_pylist() == [10, 20, 0, 0, 0, 30]


def test_spans_are_the_rows_of_a_kind_and_touching_ones_can_be_joined():
    spans = trace().spans("online")
    assert spans.client.tolist() == [0, 0, 1]
    joined = spans.joined()
    assert list(zip(joined.client, joined.start_us, joined.end_us, strict=True)) == [(0, 10, 90), (1, 0, 50)]
    assert len(trace().spans("uplink").joined().client) == 0
    with pytest.raises(ValueError, match="did you mean 'uplink'"):
        trace().spans("uplnk")


def test_one_kind_and_one_value_stand_for_all_rows_and_a_world_may_be_empty():
    assert Trace.of([0, 1], [0, 0], [5, 6], "online", clients=2, horizon_us=10).table.num_rows == 2
    assert trace([]).table.num_rows == 0
    with pytest.raises(TraceError, match="cannot make a table"):
        Trace.of([0, 1], [0], [5, 6], "online", clients=2, horizon_us=10)


def test_the_value_of_kinds_that_need_none_is_not_part_of_the_world():
    odd = [(c, a, b, k, float("nan") if k in ("online", "fault") else v) for c, a, b, k, v in ROWS]
    assert trace(odd) == trace()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, 60, 55, "online", 1.0), "row 6 (client 1, online): end_us 55 is before start_us 60"),
        ((1, 60, 60, "fault", 1.0), "row 6 (client 1, fault): start_us and end_us are both 60"),
        ((1, -3, 5, "fault", 1.0), "row 6 (client 1, fault): start_us -3 is before 0"),
        ((1, 60, 101, "fault", 1.0), "row 6 (client 1, fault): end_us 101 is beyond the horizon 100"),
        ((3, 1, 2, "online", 1.0), "row 6 (client 3, online): expected a client from 0 to 2"),
        ((-1, 1, 2, "online", 1.0), "row 6 (client -1, online): expected a client from 0 to 2"),
        ((2, 0, 9, "compute", 0.0), "row 6 (client 2, compute): expected a finite value above 0, found 0.0"),
        (
            (2, 0, 9, "compute", -1.0),
            "row 6 (client 2, compute): expected a finite value above 0, found -1.0",
        ),
        (
            (2, 0, 9, "compute", float("nan")),
            "row 6 (client 2, compute): expected a finite value above 0, found nan",
        ),
        (
            (2, 0, 9, "compute", float("inf")),
            "row 6 (client 2, compute): expected a finite value above 0, found inf",
        ),
        ((1, 1, 2, "onlin", 1.0), "row 6 (client 1): unknown kind 'onlin'; did you mean 'online'?"),
        ((0, 89, 95, "online", 1.0), "row 6 (client 0, online): [89, 95) overlaps row 2, [20, 90)"),
        ((0, 30, 31, "fault", 1.0), "row 6 (client 0, fault): [30, 31) overlaps row 5, [30, 31)"),
        (
            (2, 0, 9, "online", 1.0),
            "client 2 is online at times but has no 'compute' interval, while client 0 has one",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_each_problem_names_client_and_row_of_the_given_table(row, message):
    assert message in problems([*ROWS, row])


def test_an_interval_within_a_longer_one_is_told_with_the_longer_one():
    rows = [(0, 0, 100, "online", 1.0), (0, 10, 20, "online", 1.0), (0, 30, 40, "online", 1.0)]
    assert "row 2 (client 0, online): [30, 40) overlaps row 0, [0, 100)" in problems(rows)


def test_all_problems_are_told_at_once_and_the_rest_is_counted():
    text = problems([(0, t, t, "online", 1.0) for t in range(30)] + [(9, 1, 2, "fault", 1.0)])
    assert text.startswith("31 problems:")
    assert text.count("\n") == 21
    assert text.endswith("... and 11 more")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 12), st.integers(1, 5), st.sampled_from(["online", "fault"])
        ),
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_exactly_overlapping_intervals_are_refused(rows):
    rows = [(c, a, a + n, kind, 1.0) for c, a, n, kind in rows]
    clash = any(
        x[0] == y[0] and x[3] == y[3] and x[1] < y[2] and y[1] < x[2]
        for i, x in enumerate(rows)
        for y in rows[:i]
    )
    if clash:
        assert "overlaps row" in problems(rows, horizon_us=20)
    else:
        assert trace(rows, horizon_us=20).table.num_rows == len(rows)


def test_columns_are_checked_by_name_type_and_nulls():
    good = trace().table
    words = pa.table({**dict(zip(good.column_names, good.columns, strict=True)), "client": ["a"] * 6})
    cases = {
        "column 'end_us' is missing": good.drop_columns("end_us"),
        "column 'client' is missing; is it 'clients'?": good.rename_columns(
            ["clients", *good.column_names[1:]]
        ),
        "unknown column 'clients'; a trace has client, start_us": good.append_column(
            "clients", good["client"]
        ),
        "column 'client' is there 2 times": good.append_column("client", good["client"]),
        "column 'client' has type string, expected an integer": words,
        "column 'start_us' has type double": good.set_column(1, "start_us", good["start_us"].cast("double")),
        "column 'kind' has type int64, expected text": good.set_column(3, "kind", good["end_us"]),
        "row 1 (client 7): value is null": pa.table(
            {
                "client": [7, 7],
                "start_us": [0, 1],
                "end_us": [1, 2],
                "kind": ["fault"] * 2,
                "value": [1.0, None],
            }
        ),
        "row 0: client is null": pa.table(
            {
                "client": pa.array([None], pa.int32()),
                "start_us": [0],
                "end_us": [1],
                "kind": ["fault"],
                "value": [1.0],
            }
        ),
    }
    for message, table in cases.items():
        with pytest.raises(TraceError) as caught:
            Trace.from_table(table, clients=3, horizon_us=100)
        assert message in str(caught.value), message


def test_any_width_of_integer_and_any_text_will_do():
    wide = pa.table(
        {
            "client": pa.array([0], pa.int64()),
            "start_us": pa.array([0], pa.uint32()),
            "end_us": pa.array([5], pa.int16()),
            "kind": pa.array(["online"], pa.large_string()),
            "value": pa.array([1], pa.int64()),
        }
    )
    assert Trace.from_table(wide, clients=1, horizon_us=9) == Trace.of(
        0, 0, 5, "online", clients=1, horizon_us=9
    )


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"clients": 0}, "clients: expected a whole number of at least 1, found 0"),
        ({"horizon_us": 1.5}, "horizon_us: expected a whole number of at least 1, found 1.5"),
        ({"after_end": "repaet"}, "after_end: unknown 'repaet'; did you mean 'repeat'?"),
        ({"origin": "yesterday"}, "origin: expected an ISO date and time"),
        ({"clients": 2**20, "horizon_us": 2**44}, "exceeds 2^63; the longest horizon for so many clients is"),
        ({"clients": 2**31, "horizon_us": 100}, "clients: expected at most 2147483647, found 2147483648"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_known_besides_the_table_is_checked(facts, message):
    assert message in problems(ROWS, **facts)


FACTS = {"after_end": "repeat", "source": '{"scenario": "x"}', "origin": "2024-02-29T12:00:00+01:00"}


def test_what_is_written_is_read_back_equal(tmp_path):
    first = trace(**FACTS)
    first.write(tmp_path / "new" / "a.parquet")
    again = read_trace(tmp_path / "new" / "a.parquet")
    assert again == first
    assert again.digest() == first.digest()
    assert os.listdir(tmp_path / "new") == ["a.parquet"]


def test_a_digest_does_not_depend_on_the_layout_of_the_file(tmp_path):
    first = trace(**FACTS)
    first.write(tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    mixed = table.take(np.array([5, 0, 3, 1, 4, 2])).set_column(
        3, "kind", table["kind"].cast("string").take([5, 0, 3, 1, 4, 2])
    )
    pq.write_table(mixed, tmp_path / "b.parquet", row_group_size=2, compression="gzip", use_dictionary=False)
    again = read_trace(tmp_path / "b.parquet")
    assert again == first
    assert again.digest() == first.digest()


def test_a_digest_tells_worlds_apart_but_not_where_they_come_from():
    first = trace()
    others = [
        trace(ROWS[:-1]),
        trace([*ROWS[:-1], (0, 30, 32, "fault", 1.0)]),
        trace([*ROWS[:3], (0, 0, 100, "compute", 0.011), *ROWS[4:]]),
        replace(first, clients=4),
        replace(first, horizon_us=101),
        replace(first, after_end="stop"),
    ]
    assert len({first.digest(), *(t.digest() for t in others)}) == 1 + len(others)
    assert replace(first, source="elsewhere").digest() == first.digest()


def test_replacing_a_fact_checks_the_trace_again():
    with pytest.raises(TraceError, match="beyond the horizon 60"):
        replace(trace(), horizon_us=60)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    trace().write(path)
    before = path.read_bytes()

    def full_disk(table, file, **options):
        file.write_bytes(b"PAR1")
        raise OSError("no space left")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(RunError, match=r"a\.parquet: cannot be written: no space left"):
        trace([]).write(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_missing_truncated_and_foreign_files_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    with pytest.raises(TraceError, match=r"a\.parquet: there is no such file"):
        read_trace(path)
    trace().write(path)
    whole = path.read_bytes()
    for cut in (len(whole) // 2, len(whole) - 3, 0):
        path.write_bytes(whole[:cut])
        with pytest.raises(TraceError, match=r"a\.parquet: not a readable Parquet file"):
            read_trace(path)
    (tmp_path / "my visits.csv").write_text("client,start,end\n")
    with pytest.raises(
        TraceError, match=r"fedsim trace import '.*my visits\.csv' -o '.*my visits\.parquet'$"
    ):
        read_trace(tmp_path / "my visits.csv")
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(TraceError, match=r"a\.parquet: not a trace: the file holds no metadata"):
        read_trace(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fedsim.schema_version", "2", "'fedsim.schema_version': expected 1, found 2"),
        ("fedsim.clients", "many", "'fedsim.clients': expected an integer, found 'many'"),
        ("fedsim.horizon_us", None, "'fedsim.horizon_us': expected an integer, found None"),
        ("fedsim.after_end", "loop", "after_end: unknown 'loop'"),
        ("fedsim.clients", "1", "row 2 (client 1, online): expected a client from 0 to 0"),
    ],
)
def test_bad_metadata_is_told_with_its_key_and_file(tmp_path, key, value, message):
    path = tmp_path / "a.parquet"
    trace().write(path)
    table = pq.read_table(path)
    facts = {**table.schema.metadata, key.encode(): (value or "").encode()}
    facts = {k: v for k, v in facts.items() if value is not None or k != key.encode()}
    pq.write_table(table.replace_schema_metadata(facts), path)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_hundred_thousand_rows_are_checked_at_once():
    n, per = 2000, 50
    client, start = np.repeat(np.arange(n), per), np.tile(np.arange(per) * 10, n)
    rng = np.random.default_rng(0)
    order = rng.permutation(n * per)
    big = Trace.of(client[order], start[order], start[order] + 10, "online", clients=n, horizon_us=per * 10)
    assert len(big.spans("online").joined().client) == n
    assert big.nbytes > n * per * 29 - 1
    assert set(KINDS) == {"online", "compute", "downlink", "uplink", "fault", "unknown"}
