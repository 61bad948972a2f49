"""Plain tables of intervals, as text and as Parquet."""

import io
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim import Task
from fedsim.common.errors import ConfigError
from fedsim.worlds.importer import Source, build_importer
from fedsim.worlds.trace import Trace
from published import imported, refused, values, windows

S = 1_000_000
TABLE = "client,start_s,end_s,kind,value\nb,0,10,online,\na,2.5,4,online,-\nb,0,20,compute,0.5\na,0,20,compute,0.25\n"


def as_parquet(tmp_path, **columns) -> dict[str, bytes]:
    path = tmp_path / "t.parquet"
    pd.DataFrame(columns).to_parquet(path)
    return {"t.parquet": path.read_bytes()}


def test_clients_are_numbered_as_they_appear():
    trace = imported("csv", {"t.csv": TABLE}).trace
    assert trace.about.column("id").to_pylist() == ["b", "a"]
    assert windows(trace, "online") == [(0, 0, 10 * S), (1, 2_500_000, 4 * S)]
    assert values(trace, "compute") == [0.5, 0.25]
    assert (trace.horizon_us, trace.after_end) == (20 * S, "repeat")
    assert windows(trace, "unknown") == []


@pytest.mark.parametrize("names", [("ben", "ada", "cy"), ("10", "9", "100"), ("7", "07", "x"), ("7", "07")])
@pytest.mark.parametrize("of_numbers", [False, True])
def test_clients_in_the_order_of_their_names_are_those_of_a_task(
    names: tuple[str, ...], of_numbers: bool
) -> None:
    """Client i of the data has i + 1 samples of its own."""
    if of_numbers and len({int(name) for name in names if name.isdecimal()}) < len(names):
        return
    log = "client,start_h,end_h\n" + "".join(f"{name},{i},{i + 1}\n" for i, name in enumerate(names))
    found = imported("csv", {"t.csv": log}, order="name")
    owners = [name for i, name in enumerate(names) for _ in range(10 * (i + 1))]
    x, client = np.zeros((len(owners), 1)), [int(o) for o in owners] if of_numbers else owners
    task = Task.from_arrays(x, np.zeros(len(owners), int), np.array(client))
    sizes = {name: 10 * (i + 1) for i, name in enumerate(names)}
    ids = found.trace.about.column("id").to_pylist()
    assert task.natural is not None
    assert [sizes[name] for name in ids] == list(map(len, task.natural))
    assert "order" not in found.notes
    assert (
        imported("csv", {"t.csv": log}).notes["order"].startswith("by first row; for data of these clients")
    )


def test_a_client_that_is_never_online_has_a_row_of_its_own() -> None:
    text = "client,start_h,end_h,kind\na,0,3,online\nb,0,24,offline\na,5,6,online\nc,2,9,unknown\n"
    for outside in ("offline", "unknown"):
        found = imported("csv", {"t.csv": text}, outside=outside)
        assert found.notes["clients_of_unknown_presence"] == 0
        assert {client for client, *_ in windows(found.trace, "online")} == {0}
        assert 1 not in {client for client, *_ in windows(found.trace, "unknown")}
        assert (found.trace.clients, found.trace.horizon_us) == (3, 24 * 3600 * S)


def test_intervals_that_overlap_are_joined_if_asked() -> None:
    rows = ["a,0,3", "b,1,2", "a,2,5", "a,5,6", "a,3,4", "b,4,5", "a,8,9"]
    text = "client,start_s,end_s\n" + "\n".join(rows)
    trace = imported("csv", {"t.csv": text}, merge=True).trace
    assert windows(trace, "online") == [
        (0, 0, 6 * S),
        (0, 8 * S, 9 * S),
        (1, 1 * S, 2 * S),
        (1, 4 * S, 5 * S),
    ]
    told = refused("csv", {"t.csv": text})
    assert (
        "line 4, client 'a': online from 2.000 s to 5.000 s overlaps t.csv, line 2, from 0.000 s to 3.000 s"
        in told
    )
    assert "--option merge=true joins such intervals" in told
    speeds = "client,start_s,end_s,kind,value\na,0,3,compute,1\na,2,4,compute,2\n"
    assert "merge" not in refused("csv", {"t.csv": speeds}, merge=True)
    both = "client,start_s,end_s,kind\na,0,3,online\na,2,4,offline\n"
    assert "offline from 2.000 s to 4.000 s overlaps t.csv, line 2, online from" in refused(
        "csv", {"t.csv": both}
    )
    dates = "client,start,end\na,2024-03-01 06:00,2024-03-01 09:00\na,2024-03-01 08:00,2024-03-01 10:00\n"
    assert "online from 2024-03-01 08:00:00 to 2024-03-01 10:00:00 overlaps" in refused(
        "csv", {"t.csv": dates}
    )


def test_names_of_columns_say_units_and_options_do_where_they_do_not():
    text = "end_ms,client,start_us\n5,x,7\n"
    assert windows(imported("csv", {"t.csv": text}).trace, "online") == [(0, 7, 5000)]
    bare = {"t.csv": "client,start,end\r\nx,1,2\r\n"}
    assert windows(imported("csv", bare, unit="h").trace, "online") == [(0, 3600 * S, 7200 * S)]


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_dates_count_from_the_midnight_before_the_first(zone: str):
    text = (
        f"client,start,end\nx,2024-03-02 06:30{zone},2024-03-02T07:00:00.25{zone}\n"
        f"y,2024-03-01 18:00{zone},2024-03-03 00:00{zone}\n"
    )
    trace = imported("csv", {"t.csv": text}, horizon="3d").trace
    day, hour = 86_400 * S, 3600 * S
    assert windows(trace, "online") == [
        (0, day + 13 * hour // 2, day + 7 * hour + S // 4),
        (1, 18 * hour, 2 * day),
    ]
    assert (trace.origin, trace.horizon_us) == ("2024-03-01T00:00:00", 3 * day)


def test_dates_have_no_unit_and_no_numbers_beside_them():
    dates = "client,start,end\nx,2024-03-01,2024-03-02\n"
    with pytest.raises(ConfigError, match=r"'unit': no effect, as t\.csv has dates"):
        build_importer("csv", {"unit": "h"}).read([Source(Path("t.csv"), dates.encode())])
    files = {"a.csv": "client,start,end\nx,1,2\n", "b.csv": dates}
    assert "b.csv: expected numbers, as in the files before it" in refused("csv", files)


def test_what_lies_outside_is_offline_unless_it_is_unknown():
    files = {"t.csv": "client,start,end,kind,value\nx,1,2,online,\nx,0,4,uplink,8\ny,0,4,uplink,9\n"}
    plain = imported("csv", files, horizon="10s")
    assert windows(plain.trace, "unknown") == [(1, 0, 10 * S)]
    assert plain.notes["clients_of_unknown_presence"] == 1
    careful = imported("csv", files, horizon="10s", outside="unknown").trace
    assert windows(careful, "unknown") == [(0, 0, S), (0, 2 * S, 10 * S), (1, 0, 10 * S)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a line with the names of columns, found an empty file"),
        ("client,start,end\n", "expected rows, found none"),
        ("client,start_s,start,end\nx,0,1,2", "expected one column of start"),
        ("start,end\n1,2", "expected a column 'client'"),
        ("client,start,end,valu\nx,1,2,3", "unknown column 'valu'; did you mean 'value'?"),
        ("client,start,end\nx,1", "line 2: expected 3 columns, found 2"),
        (
            "client,start,end\na,0,5,10,5\nb,1,2\n",
            "t.csv, line 2: expected 3 cells, found 5: put a cell that holds ',' in quotes, and write decimals with a",
        ),
        ("client,start,end\nx,2,1", "line 2, client 'x': expected an end after the start"),
        ("client,start,end\nx,1,1", "expected an end after the start"),
        (
            "client,start,end\nx,0,1e-7",
            "line 2, client 'x': expected an end after the start, found 1e-7 s after 0 s",
        ),
        ("client,start_h,end_min\nx,3,60", "expected an end after the start, found 60 min after 3 h"),
        (
            "client,start_h,end\nx,2024-01-01,2024-01-02\n",
            "t.csv: expected numbers in column 'start_h', found dates: name it 'start'",
        ),
        (
            "client,start,end\nx,0,01.02.2024 10:00",
            "t.csv, line 2, 'start': expected a date such as 2024-03-01 06:30:00, found '0'",
        ),
        ("client,start,end\nx,2024-01-01,01.02.2024", "line 2, 'end': expected a date such as"),
        (
            "client,start,end\nx,2024-01-01 06:00Z,2024-01-02 07:00Z\nx,2024-01-02 08:00,2024-01-02 09:00Z",
            "line 3, 'start': expected the time zone of the dates before it, found '2024-01-02 08:00'",
        ),
        (
            "client,start,end\nx,2024-01-01 06:00,2024-01-01",
            "expected an end after the start, found 2024-01-01 after 2024-01-01 06:00",
        ),
        (
            "client,start,end\nx,1924-01-01,1924-01-02",
            "expected dates from 1970 to 2070, found 1924-01-01 to 1924-01-02",
        ),
        ("client,start,end\nx,a,1", "line 2, 'start': expected a number, found 'a'"),
        ("client,start,end\nx,0,1e300", "expected times from 0 to 100 years, found 0 s to 1e300 s"),
        ("client,start,end\n,0,1", "line 2: expected a client, found none"),
        ("client,start,end,kind\nx,0,1,onlin", "there is no kind 'onlin'; did you mean 'online'?"),
        (
            "client,start,end,kind,value\nx,0,1,compute,0",
            "expected a finite value above 0 for 'compute', found 0",
        ),
        ("client,start,end,kind,value\nx,0,1,compute,nan", "expected a finite value above 0 for 'compute'"),
        (
            "client,start,end\nx,0,5\nx,4,6",
            "t.csv, line 3, client 'x': online from 4.000 s to 6.000 s overlaps t.csv, line 2, from 0.000 s to 5.000 s",
        ),
        ("client,start,end\n" + "x,2,1\n" * 30, "... and 10 more"),
        (
            "client,start,end,kind,value\n1,0,5,online,\n7,0,5,online,\n1,0,5,compute,2",
            "t.csv: client '7' is online at times but has no 'compute' interval, while '1' has one",
        ),
    ],
)
def test_wrong_tables_are_refused_with_the_line(text, said):
    assert said in refused("csv", {"t.csv": text})


def test_empty_cells_at_the_ends_of_rows_are_no_cells():
    trace = imported("csv", {"t.csv": "client,start,end\nx,1,2,\ny,3,4,,\n"}).trace
    assert windows(trace, "online") == [(0, S, 2 * S), (1, 3 * S, 4 * S)]


@pytest.mark.parametrize("separator", [";", "\t", "|", " "])
def test_another_separator_is_told_with_the_command_that_reads_it(separator):
    text = TABLE.replace(",", separator)
    message = refused("csv", {"t.csv": text})
    assert (
        f"t.csv: expected columns separated by ',', found {text.splitlines()[0]!r}: name the separator"
        in message
    )
    *command, option, out, file = shlex.split(message.partition("separator, ")[2])
    assert command == ["fedsim", "trace", "import", "csv", "t.csv", "--option"]
    assert (out, file) == ("-o", "OUT.parquet")
    options = tomllib.loads(option)
    assert options == {"separator": separator}
    if separator != " ":  # which does not hold empty cells apart
        trace = build_importer("csv", options).read([Source(Path("t.csv"), text.encode())]).trace
        assert trace.digest() == imported("csv", {"t.csv": TABLE}).trace.digest()


FACTS = "client,start,end,region,beds,ward\nb,0,1,north,61,07\na,1,4,south,33,1\nb,5,7,,61,07\nc,5,7,,40.5,\n"


def test_facts_about_clients_are_kept(tmp_path: Path) -> None:
    about = imported("csv", {"t.csv": FACTS}, facts="region, beds,ward", order="name").trace.about.to_pydict()
    assert about == {
        "id": ["a", "b", "c"],
        "region": ["south", "north", None],
        "beds": [33, 61, 40.5],
        "ward": ["1", "07", None],
    }
    columns = pd.read_csv(io.StringIO(FACTS), dtype={"ward": str}).to_dict("list")
    of_parquet = imported(
        "parquet", as_parquet(tmp_path, **columns), facts="region,beds,ward", order="name"
    ).trace
    assert of_parquet.about.to_pydict() == about


def test_facts_stay_with_their_clients_where_intervals_are_joined() -> None:
    table = "client,start,end,region\nx,0,2,north\nx,1,3,\ny,0,1,south\n"
    trace = imported("csv", {"t.csv": table}, facts="region", merge=True).trace
    assert trace.about["region"].to_pylist() == ["north", "south"]
    assert windows(trace, "online") == [(0, 0, 3 * S), (1, 0, S)]


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        (
            FACTS,
            {},
            "t.csv: unknown column 'region'; known: client, end, kind, start, value; --option facts=region",
        ),
        (
            FACTS,
            {"facts": "regio,beds,ward"},
            "t.csv: there is no column 'regio' of facts; did you mean 'region'?",
        ),
        (
            FACTS.replace("b,5,7,,", "b,5,7,nroth,"),
            {"facts": "region,beds,ward"},
            "t.csv, line 4, client 'b': expected the region of the rows before, 'north', found 'nroth'",
        ),
    ],
)
def test_wrong_facts_are_named(table: str, options: dict[str, str], said: str) -> None:
    assert said in refused("csv", {"t.csv": table}, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"facts": "start_s"},
        {"facts": "id"},
        {"facts": "region,region"},
        {"horizon": "long"},
        {"horizon": 0},
        {"kind": "onlin"},
        {"unit": "days"},
        {"separator": ";;"},
        {"separator": ""},
    ],
)
def test_options_are_checked(options):
    with pytest.raises(ConfigError, match=f"'{next(iter(options))}'"):
        build_importer("csv", options)


def test_an_end_beyond_the_horizon_is_refused():
    assert (
        "t.csv, line 3, client 'y': expected intervals up to the horizon of 1.000 s, found an end after 5.000 s"
        in refused("csv", {"t.csv": "client,start,end\nx,0,1\ny,0,5"}, horizon="1s")
    )


def test_a_parquet_table_reads_as_the_text_does(tmp_path):
    columns = pd.read_csv(io.StringIO(TABLE), na_values="-").to_dict("list")
    trace = imported("parquet", as_parquet(tmp_path, **columns)).trace
    assert trace.digest() == imported("csv", {"t.csv": TABLE}).trace.digest()


def test_dates_in_parquet_read_as_those_in_text_do(tmp_path):
    text = "client,start,end\nx,2024-03-01 06:30:00.5,2024-03-02\n"
    expected = imported("csv", {"t.csv": text}).trace
    start, end = (
        pd.Series(pd.to_datetime(["2024-03-01 06:30:00.5"])),
        pd.Series(pd.to_datetime(["2024-03-02"])),
    )
    for table in (
        as_parquet(tmp_path, client=["x"], start=start, end=end),
        as_parquet(tmp_path, client=["x"], start=start.dt.tz_localize("UTC"), end=end.dt.tz_localize("UTC")),
        as_parquet(tmp_path, client=["x"], start=start, end=end.dt.date),
    ):
        trace = imported("parquet", table).trace
        assert (trace.digest(), trace.origin) == (expected.digest(), expected.origin)
    berlin = as_parquet(tmp_path, client=["x"], start=start.dt.tz_localize("Europe/Berlin"), end=end)
    assert "column 'start', found those of Europe/Berlin: with pandas, " in refused("parquet", berlin)
    numbers = as_parquet(tmp_path, client=["x"], start=start, end=[5])
    assert "expected dates in column 'end', as in the other, found int64" in refused("parquet", numbers)
    missing = as_parquet(tmp_path, client=["x"], start=start, end=pd.Series([pd.NaT]))
    assert "row 0 (client 'x'): expected an end after the start, found NaT after" in refused(
        "parquet", missing
    )


def test_a_trace_is_taken_as_it_is(tmp_path):
    trace = Trace.of(0, 0, 5, "online", clients=2, horizon_us=9, after_end="stop", source="by hand")
    trace.write(tmp_path / "w.parquet")
    found = imported("parquet", {"w.parquet": (tmp_path / "w.parquet").read_bytes()})
    assert found.trace.digest() == trace.digest()
    assert found.notes == {"source": "by hand"}


def test_wrong_parquet_is_refused(tmp_path):
    assert "x: not a readable Parquet file" in refused("parquet", {"x": b"PAR1 and no more"})
    table = as_parquet(tmp_path, client=[1, 1], start=[0, 5], end=[4, 5])
    assert "row 1 (client '1'): expected an end after the start, found 5.0 s after 5.0 s" in refused(
        "parquet", table
    )
    assert "expected numbers in column 'start'" in refused(
        "parquet", as_parquet(tmp_path, client=[1], start=["x"], end=[4])
    )
    assert "row 1: expected a client, found null" in refused(
        "parquet", as_parquet(tmp_path, client=["a", None], start=[0, 1], end=[4, 5])
    )
    unknown = {"client": np.array([1.0, np.nan]), "start": [0, 1], "end": [4, 5]}
    pq.write_table(pa.table(unknown), tmp_path / "nan.parquet")  # pandas would write null
    assert "row 1: expected a client, found nan" in refused(
        "parquet", {"x": (tmp_path / "nan.parquet").read_bytes()}
    )
    table = as_parquet(tmp_path, client=["b", "a", "a"], start=[0, 5, 0], end=[4, 9, 6])
    assert "row 1, client 'a': online from 5.000 s to 9.000 s overlaps" in refused("parquet", table)
    assert "expected one Parquet file, found 2" in refused("parquet", {"a": b"PAR1", "b": b"PAR1"})
