"""Importers of who is there: sensors, pings, hours a day, spot machines."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inputs
from fedsim.common.errors import ConfigError, TraceError
from fedsim.scenarios.importers import studentlife as studentlife_module
from fedsim.worlds.importer import import_trace
from trace_files import DAY_S, imported, notes, seconds

# StudentLife


def test_students_are_ready_while_all_sensors_say_yes_and_unknown_where_one_is_silent(tmp_path: Path) -> None:
    trace = imported(
        tmp_path,
        {
            "phonecharge/phonecharge_u00.csv": "start,end\n100,110\n120,140\n200,200\n",
            "phonelock/phonelock_u00.csv": "start,end\n105,125\n140,205\n",
        },
        "studentlife",
    )
    end = 1e-6  # both ends of a window count
    assert seconds(trace, "online") == [
        (0, 5.0, 10.0 + end),
        (0, 20.0, 25.0 + end),
        (0, 40.0, 40.0 + end),
        (0, 100.0, 100.0 + end),
    ]
    assert seconds(trace, "unknown") == [(0, 0.0, 5.0), (0, 100.0 + end, 105.0 + end)]
    assert (trace.origin, trace.about.to_pylist()) == ("1970-01-01T00:01:40+00:00", [{"id": "u00"}])
    assert notes(trace)["ready"] == ["phonecharge", "phonelock"]


def test_a_single_sensor_is_ready_by_itself_and_windows_that_touch_stay_two(tmp_path: Path) -> None:
    trace = imported(tmp_path, {"dark_u7.csv": "start,end\n20,30\n10,20\n20,30\n"}, "studentlife")
    assert seconds(trace, "online") == [(0, 0.0, 10.0), (0, 10.0, 20.000001)]
    assert (notes(trace)["times_that_decrease"], notes(trace)["lines_that_repeat"]) == (1, 1)


def test_a_student_without_one_of_the_sensors_is_unknown(tmp_path: Path) -> None:
    files = {f"{s}_u1.csv": "start,end\n0,5\n" for s in ("phonecharge", "phonelock")}
    trace = imported(tmp_path, files | {"phonelock_u2.csv": "start,end\n0,9\n"}, "studentlife")
    assert seconds(trace, "online") == [(0, 0.0, 5.000001)]
    assert seconds(trace, "unknown") == [(0, 5.000001, 9.000001), (1, 0.0, 9.000001)]
    assert notes(trace)["users_that_lack_a_sensor"] == 1


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        (
            "dark_u1.csv",
            "start,end\n10,5\n",
            "dark_u1.csv, line 2: expected an end of at least start 10, found 5",
        ),
        ("dark_u1.csv", "start,end\n1,9\n5,12\n", r"line 3: \[5, 12\] overlaps line 2, \[1, 9\]"),
        ("dark_u1.csv", "start,stop\n1,9\n", "expected a column 'end', found"),
        ("dark_u1.csv", "start,end\n1,x\n", "line 2, end: expected a number from 0 to .*, found 'x'"),
        ("dark_u1.csv", "start,end\n", "expected lines of start and end, found none"),
        ("dark.csv", "start,end\n1,2\n", "expected a name like phonecharge_u00.csv"),
    ],
)
def test_wrong_sensor_files_are_refused(tmp_path: Path, file: str, text: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        imported(tmp_path, {file: text}, "studentlife")


def test_a_sensor_that_no_file_holds_is_refused_with_the_closest(tmp_path: Path) -> None:
    text = "start,end\n1,2\n"
    with pytest.raises(TraceError, match="'phonelock', found dark, phonecharge"):
        imported(tmp_path, {"dark_u1.csv": text, "phonecharge_u1.csv": text}, "studentlife")
    with pytest.raises(TraceError, match="did you mean 'phonecharge'"):
        imported(tmp_path, {"phonecharge_u1.csv": text}, "studentlife", ready="phonecharg")
    with pytest.raises(ConfigError, match="expected different sensors"):
        imported(tmp_path, {"dark_u1.csv": text}, "studentlife", ready="dark,dark")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 30), unique=True, min_size=2, max_size=12).map(sorted), min_size=1, max_size=3
    )
)
def test_the_intersection_agrees_with_asking_each_instant(edges: list[list[int]]) -> None:
    sets = [np.array(e[: len(e) // 2 * 2]).reshape(-1, 2).T for e in edges]
    start, end = studentlife_module._intersection([(s, e) for s, e in sets])
    for t in range(31):
        wanted = all(bool(((s <= t) & (t < e)).any()) for s, e in sets)
        assert bool(((start <= t) & (t < end)).any()) == wanted


# FLGo


def test_pings_are_steps_of_15_s_and_unknown_outside_a_clients_own(tmp_path: Path) -> None:
    text = "id,timestamp,,,A remark.\n7,1000,,,\n9,1015,,,\n7,1045,,,\n7,1000,,,\n7,1055,,,\n"
    trace = imported(tmp_path, {"pings.csv": text}, "flgo_pings")
    assert seconds(trace, "online") == [(0, 0.0, 15.0), (0, 45.0, 55.0), (0, 55.0, 70.0), (1, 15.0, 30.0)]
    assert seconds(trace, "unknown") == [(1, 0.0, 15.0), (1, 30.0, 70.0)]
    assert (trace.about["id"].to_pylist(), notes(trace)["pings_that_repeat"]) == (["7", "9"], 1)
    merged = imported(tmp_path, {"pings.csv": text}, "flgo_pings", merge=True)
    assert seconds(merged, "online") == [(0, 0.0, 15.0), (0, 45.0, 70.0), (1, 15.0, 30.0)]


USAGE = "id,date,online_hours\r\n5,23/06/17,6\r\n5,22/06/17,0\r\n8,22/06/17,2\r\n8,22/06/17,4\r\n"


def test_hours_a_day_are_facts_and_when_in_the_day_is_unknown(tmp_path: Path) -> None:
    trace = imported(tmp_path, {"test.csv": USAGE}, "flgo_usage")
    assert seconds(trace, "unknown") == [(0, 0.0, 2 * DAY_S), (1, 0.0, 2 * DAY_S)]
    assert trace.about.to_pylist() == [
        {"id": "5", "hours_2017_06_22": 0.0, "hours_2017_06_23": 6.0},
        {"id": "8", "hours_2017_06_22": 3.0, "hours_2017_06_23": None},
    ]
    assert trace.origin == "2017-06-22"
    told = notes(trace)
    assert (told["id_and_date_repeated"], told["of_these_with_different_hours"]) == (1, 1)


def test_hours_can_be_placed_in_the_evening_or_at_random(tmp_path: Path) -> None:
    trace = imported(tmp_path, {"test.csv": USAGE}, "flgo_usage", place="evening", repeated="max")
    assert seconds(trace, "online") == [
        (0, DAY_S + 17 * 3600.0, DAY_S + 23 * 3600.0),
        (1, 18 * 3600.0, 22 * 3600.0),
    ]
    assert seconds(trace, "unknown") == [(1, DAY_S, 2 * DAY_S)]
    first, again, other = (
        imported(tmp_path, {"test.csv": USAGE}, "flgo_usage", place="random", seed=seed) for seed in (1, 1, 2)
    )
    assert first.digest() == again.digest() != other.digest()
    assert [round((b - a) / 3600, 6) for _, a, b in seconds(first, "online")] == [6.0, 3.0]


def test_where_hours_are_placed_at_random_depends_on_nobody_else_and_on_no_order(tmp_path: Path) -> None:
    head, *lines = USAGE.splitlines()

    def start_of_user_8(chosen: list[str]) -> float:
        trace = imported(
            tmp_path, {"test.csv": "\n".join([head, *chosen]) + "\n"}, "flgo_usage", place="random"
        )
        number = trace.about.column("id").to_pylist().index("8")
        return next(a for client, a, _ in seconds(trace, "online") if client == number)

    starts = {
        start_of_user_8(chosen) for chosen in (lines, lines[::-1], [x for x in lines if x.startswith("8")])
    }
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("5,31/06/17,6", "line 2, date: expected a date DD/MM/YY, found '31/06/17'"),
        ("5,2017-06-22,6", "line 2, date: expected a date DD/MM/YY"),
        ("5,22/06/17,25", "line 2, online_hours: expected a number from 0 to 24, found '25'"),
        (",22/06/17,2", "line 2, id: expected a client id"),
        ("5,22/06/17,1\n5,22/06/19,1", "expected dates within 366 days, found 2017-06-22 to 2019-06-22"),
    ],
)
def test_wrong_hours_are_refused(tmp_path: Path, line: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        imported(tmp_path, {"test.csv": f"id,date,online_hours\n{line}\n"}, "flgo_usage")


# SkyPilot

ZONE = {"metadata": {"gap_seconds": 30}, "data": [0, 2, 1, 0, 3], "prices": [1.5, 1.5, 2, 2, 2]}


def test_a_zone_is_one_client_or_as_many_as_it_has_machines(tmp_path: Path) -> None:
    files = {
        "a/z_v100_1.json": json.dumps(ZONE),
        "b/z_v100_1.json": '{"metadata":{"gap_seconds":10},"data":[1]}',
    }
    trace = imported(tmp_path, files, "skypilot")
    assert seconds(trace, "online") == [(0, 30.0, 90.0), (0, 120.0, 150.0), (1, 0.0, 10.0)]
    assert seconds(trace, "unknown") == [(1, 10.0, 150.0)]
    assert trace.about["id"].to_pylist() == ["a/z_v100_1.json", "b/z_v100_1.json"]
    assert (trace.about["region"].to_pylist(), trace.about["model"].to_pylist()) == (
        ["z"] * 2,
        ["v100_1"] * 2,
    )
    assert notes(trace)["prices_usd_per_h"] == {"a/z_v100_1.json": [[0.0, 1.5], [60.0, 2.0]]}
    each = imported(tmp_path, {"a/z_v100_1.json": json.dumps(ZONE)}, "skypilot", machines="each")
    assert seconds(each, "online") == [
        (0, 30.0, 90.0),
        (0, 120.0, 150.0),
        (1, 30.0, 60.0),
        (1, 120.0, 150.0),
        (2, 120.0, 150.0),
    ]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"metadata": {}}, "metadata: expected a key 'gap_seconds'"),
        ({"metadata": {"gap_seconds": 0}}, "gap_seconds: expected a number from 0.001"),
        ({"data": [1, -1]}, r"data\[1\]: expected a number from 0 to 1000, found -1"),
        ({"data": [1, True]}, r"data\[1\]: expected a number"),
        ({"data": []}, "data: expected 1 sample or more"),
        ({"prices": [1]}, "prices: expected 5, as many as data, found 1"),
    ],
)
def test_wrong_zones_are_refused(tmp_path: Path, change: dict[str, object], what: str) -> None:
    with pytest.raises(TraceError, match=what):
        imported(tmp_path, {"z.json": json.dumps(ZONE | change)}, "skypilot")


# Bamboo


def test_machines_are_there_from_add_to_remove(tmp_path: Path) -> None:
    text = "0,add,a\n1000,add,b\n3000,remove,a\n2000,add,c\n2000,remove,c\n4000,add,a\n"
    trace = imported(tmp_path, {"p3.csv": text}, "bamboo")
    assert seconds(trace, "online") == [(0, 0.0, 3.0), (0, 4.0, 4.001), (1, 1.0, 4.001), (2, 2.0, 2.000001)]
    assert seconds(trace, "unknown") == []
    assert trace.about["id"].to_pylist() == ["a", "b", "c"]
    assert (notes(trace)["times_that_decrease"], notes(trace)["machines_that_stay"]) == (1, 2)


def test_a_machine_may_be_there_again_in_the_millisecond_in_which_it_came_and_left(tmp_path: Path) -> None:
    trace = imported(tmp_path, {"p3.csv": "1,add,a\n1,remove,a\n1,add,a\n4,remove,a\n4,add,a\n"}, "bamboo")
    assert seconds(trace, "online") == [(0, 0.001, 0.001001), (0, 0.001001, 0.004), (0, 0.004, 0.005)]


def test_a_later_count_replaces_what_earlier_ones_say_from_its_time_on(tmp_path: Path) -> None:
    lines = ["13:00:00, 3", "13:01:00, 3", "13:02:00, 3", "13:01:00, 1", "13:03:00, 1"]
    text = "".join(f"2021-12-10, {line}\n" for line in lines)
    trace = imported(tmp_path, {"zone.txt": text}, "bamboo")
    assert seconds(trace, "online") == [(0, 0.0, 181.0), (1, 0.0, 60.0), (2, 0.0, 60.0)]
    told = notes(trace)
    assert (told["times_that_decrease"], told["times_that_repeat"]) == (1, 1)
    assert told["lines_replaced_by_later_ones"] == 2
    assert trace.origin == "2021-12-10T13:00:00"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0,add,a\n5,add,a\n", "line 2: add of machine 'a', which is there already"),
        ("0,remove,a\n", "line 1: remove of machine 'a', which is not there"),
        ("0,join,a\n", "line 1: expected ms, add or remove, machine; found '0,join,a'"),
        ("2021-12-10, 13:00:00, 3\n2021-13-10, 13:00:00, 3\n", "line 2: expected a date and time"),
        ("2021-12-10, 13:00:00, -3\n", "line 1, machines: expected a number from 0 to 1000, found '-3'"),
        ("", "expected lines of ms, add or remove, machine; found none"),
    ],
)
def test_wrong_machine_files_are_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        imported(tmp_path, {"x.csv": text}, "bamboo")


# The published files


@pytest.mark.parametrize(
    ("folder", "name", "clients", "online"),
    [
        ("studentlife-sample", "studentlife", 2, 5),
        ("mobile-usage-daily/test.csv", "flgo_usage", 1978, 0),
        ("mobile-usage-daily/pings_first10.csv", "flgo_pings", 8, 9),
        ("spot-skypilot", "skypilot", 26, 3171),
        ("spot-bamboo/p3-trace.csv", "bamboo", 177, 177),
        ("spot-bamboo/gcloud", "bamboo", 80, 598),
    ],
)
def test_the_published_files_are_recognised_and_read(
    folder: str, name: str, clients: int, online: int
) -> None:
    trace = import_trace([inputs.trace(folder)])
    assert notes(trace)["importer"] == name
    assert (trace.clients, len(trace.spans("online").client)) == (clients, online)


def test_the_traps_of_the_published_files_are_counted() -> None:
    usage = notes(import_trace([inputs.trace("mobile-usage-daily/test.csv")]))
    assert (usage["id_and_date_repeated"], usage["of_these_with_different_hours"]) == (7, 5)
    gcloud = notes(import_trace([inputs.trace("spot-bamboo/gcloud")]))
    assert (gcloud["times_that_decrease"], gcloud["times_that_repeat"]) == (15, 16)
    assert notes(import_trace([inputs.trace("spot-bamboo/p3-trace.csv")]))["machines_that_stay"] == 10


def test_a_spot_zone_is_up_for_the_share_of_samples_that_say_so() -> None:
    folder = inputs.trace("spot-skypilot/availability/1-node/aws-02-15-2023")
    trace = import_trace([folder])
    spans = trace.spans("online")
    up = np.bincount(spans.client, weights=spans.end_us - spans.start_us) / trace.horizon_us
    wanted = [np.mean(json.loads(f.read_text())["data"]) for f in sorted(folder.glob("*.json"))]
    np.testing.assert_allclose(up, wanted, rtol=1e-12)
