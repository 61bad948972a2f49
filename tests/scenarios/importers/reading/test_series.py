"""Importers of bandwidth over time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inputs
from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import Problems
from fedsim.worlds.importer import import_trace
from fedsim.worlds.trace import Trace
from trace_files import DAY_S, imported, notes, speeds


def test_of_a_file_with_many_problems_the_first_is_told_with_their_number() -> None:
    problems = Problems()
    for name in ("a", "b"):
        with problems.caught():
            raise TraceError(f"98 problems:\n  {name}.txt, line 1: no speed\n  {name}.txt, line 2: no speed")
    with pytest.raises(TraceError) as caught:
        problems.check()
    assert str(caught.value).splitlines() == [
        "2 problems:",
        "  a.txt, line 1: no speed (and more in this file: 98 problems)",
        "  b.txt, line 1: no speed (and more in this file: 98 problems)",
    ]


def moved(trace: Trace, kind: str) -> float:
    """Return the bytes that move in one lap of each client."""
    return sum((b - a) * v for _, a, b, v in speeds(trace, kind))


# Oboe

SESSION = "1000 800\n2000 800\n4000 1600\n5000 1600\n"


@pytest.mark.parametrize(
    ("between", "wanted"),
    [
        (
            "interpolate",
            [(0.0, 1.0, 1e5), (1.0, 2.0, 1e5), (2.0, 3.0, 1.25e5), (3.0, 4.0, 1.75e5), (4.0, 5.0, 2e5)],
        ),
        ("hold", [(0.0, 1.0, 1e5), (1.0, 2.0, 1e5), (2.0, 4.0, 1e5), (4.0, 5.0, 2e5)]),
        ("gap", [(1.0, 2.0, 1e5), (4.0, 5.0, 2e5)]),
    ],
)
def test_oboe_says_what_holds_between_downloads(
    tmp_path: Path, between: str, wanted: list[tuple[float, float, float]]
) -> None:
    trace = imported(tmp_path, {"trace_0.txt": SESSION}, "oboe", between=between)
    assert speeds(trace, "downlink") == [(0, *row) for row in wanted]
    assert trace.periods["downlink"].tolist() == [5 * US]
    assert speeds(trace, "unknown") == [(0, 0.0, DAY_S, 1.0)]
    assert (trace.after_end, trace.about.to_pylist()) == ("repeat", [{"id": "trace_0.txt"}])


def test_a_long_time_between_downloads_takes_few_pieces_that_move_as_much_as_the_ramp(tmp_path: Path) -> None:
    trace = imported(tmp_path, {"t": "0 800\n0 800\n3200000 1600\n3200000 1600\n"}, "oboe")
    assert len(speeds(trace, "downlink")) == 64
    assert moved(trace, "downlink") == pytest.approx(3200 * 1.5e5)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1 8\n2 8\n3 8\n", "t, line 3: expected pairs of lines, found a start without an end"),
        ("1 8\n2 9\n", "line 2: expected the bandwidth of line 1, 8.0, as both are one download, found 9.0"),
        ("5 8\n2 8\n", "line 2: expected a time of at least 5.0 ms, that of line 1, found 2.0"),
        ("1 0\n2 0\n", "expected a downlink that moves something, found only 0"),
        ("1 8\n2 -8\n", "line 2, speed: expected a number from 0 to .*, found '-8'"),
        ("1 8\n2 8 9\n", "line 2: expected a time and a speed, found 3 columns"),
        ("1 8\n2 nan\n", "line 2, speed: expected a number"),
        ("", "expected at least 2 lines"),
    ],
)
def test_wrong_sessions_are_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        imported(tmp_path, {"t": text}, "oboe")


# HSDPA and FCC


def test_rides_are_steps_in_order_of_time_and_the_last_holds_for_the_median_step(tmp_path: Path) -> None:
    trace = imported(tmp_path, {"bus": "0.0\t8\n1.5\t0\n1.0\t16\n4.5\t24\n4.5\t8\n"}, "hsdpa")
    assert speeds(trace, "downlink") == [(0, 0.0, 1.0, 1e6), (0, 1.0, 1.5, 2e6), (0, 4.5, 5.5, 2e6)]
    assert trace.periods["downlink"].tolist() == [round(5.5 * US)]
    told = notes(trace)
    assert (told["times_that_decrease"], told["times_that_repeat"]) == (1, 1)
    assert told["intervals_in_which_nothing_moves"] == 1


def test_a_short_ride_is_recognised_although_its_last_line_is_blank(tmp_path: Path) -> None:
    ride = "0.0\t1.0\n2.0\t2.0\n3.0\t0.5\n"
    whole, blank = (
        imported(tmp_path / name, {"ride": text}, None) for name, text in (("a", ride), ("b", ride + "\n"))
    )
    assert blank.digest() == whole.digest()


def test_home_lines_are_steps_of_five_seconds(tmp_path: Path) -> None:
    trace = imported(tmp_path, {"line": "0.0\t8\n5.0\t0\n10.0\t0.8\n"}, None)
    assert notes(trace)["importer"] == "fcc"
    assert speeds(trace, "downlink") == [(0, 0.0, 5.0, 1e6), (0, 10.0, 15.0, 1e5)]
    assert trace.periods["downlink"].tolist() == [15 * US]
    with pytest.raises(TraceError, match=r"line 2: expected the time 5.0 s.*found 6.0; .* 'hsdpa'"):
        imported(tmp_path, {"line": "0.0\t8\n6.0\t8\n"}, "fcc")


def test_equal_names_are_told_apart_by_their_folders_and_no_file_comes_twice(tmp_path: Path) -> None:
    text = "0.0\t8\n1.0\t8\n"
    trace = imported(tmp_path, {"a/bus": text, "b/bus": text, "tram": text}, "hsdpa")
    assert trace.about["id"].to_pylist() == ["a/bus", "b/bus", "tram"]
    with pytest.raises(TraceError, match="expected each file once"):
        import_trace([tmp_path / "tram", tmp_path / "tram"], "hsdpa")


# Mahimahi


def test_packets_are_counted_in_bins_and_both_ways_are_one_client(tmp_path: Path) -> None:
    files = {"car.down": "0\n0\n999\n2000\n2500\n2500\n", "car.up": "500\n1000\n"}
    trace = imported(tmp_path, files, "mahimahi")
    assert speeds(trace, "downlink") == [(0, 0.0, 1.0, 4500.0), (0, 2.0, 2.5, 9000.0)]
    assert speeds(trace, "uplink") == [(0, 0.0, 1.0, 3000.0)]
    assert {k: p.tolist() for k, p in trace.periods.items()} == {
        "downlink": [2_500_000],
        "uplink": [1_000_000],
    }
    assert trace.about.to_pylist() == [{"id": "car"}]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60), st.integers(1, 3000))
def test_all_packets_move_whatever_the_bin(
    tmp_path_factory: pytest.TempPathFactory, ms: list[int], bin_ms: int
) -> None:
    ms.append(max(ms) + 1)
    text = "\n".join(map(str, ms))
    trace = imported(tmp_path_factory.mktemp("m"), {"x.up": text}, "mahimahi", bin=f"{bin_ms}ms")
    assert moved(trace, "uplink") == pytest.approx(1500 * len(ms))


@pytest.mark.parametrize(
    ("file", "text", "options", "what"),
    [
        ("x.down", "0\n0\n", {}, "expected a last packet after 0"),
        ("x.down", "5\n-1\n", {}, "line 2, time in ms: expected a number from 0"),
        ("x.down", "5\n1.5\n", {}, "line 2, time in ms: expected a whole number"),
        ("x.down", f"5\n{'9' * 5000}\n", {}, "line 2, time in ms: expected a number"),
        ("x.txt", "5\n6\n", {}, "expected a name that ends in .down or .up, found '.txt'"),
    ],
)
def test_wrong_packets_are_refused(
    tmp_path: Path, file: str, text: str, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(TraceError, match=what):
        imported(tmp_path, {file: text}, "mahimahi", **options)


def test_bins_and_directions_are_options(tmp_path: Path) -> None:
    assert speeds(imported(tmp_path, {"x": "1\n2\n"}, "mahimahi", direction="up"), "uplink")
    for wrong in ("0s", "a day", "1 fortnight"):
        with pytest.raises(ConfigError, match="option 'bin': expected"):
            imported(tmp_path, {"x.up": "1\n2\n"}, "mahimahi", bin=wrong)


# 5G in Ireland

HEADER = "Timestamp,Speed,NetworkMode,DL_bitrate,UL_bitrate,State,PINGAVG"


def phone(*rows: str) -> dict[str, str]:
    lines = [f"2019.11.26_13.20.{row}" for row in rows]
    return {"B_1.csv": "\n".join([HEADER, *lines]) + "\n"}


RIDE = phone(
    "40,3,5G,8,80,D,-", "41,3,5G,16,8,D,20", "41,5,LTE,32,8,D,40", "43,3,5G,0,0,I,-", "44,3,5G,-,8,D,-"
)


@pytest.mark.parametrize(
    ("idle", "down", "up", "period_s"),
    [
        (
            "hold",
            [(0.0, 1.0, 1e3), (1.0, 3.0, 3e3), (3.0, 5.0, 3e3)],
            [(0.0, 1.0, 1e4), (1.0, 3.0, 1e3), (3.0, 4.0, 1e3), (4.0, 5.0, 1e3)],
            5,
        ),
        (
            "zero",
            [(0.0, 1.0, 1e3), (1.0, 3.0, 3e3)],
            [(0.0, 1.0, 1e4), (1.0, 3.0, 1e3), (4.0, 5.0, 1e3)],
            5,
        ),
        (
            "cut",
            [(0.0, 1.0, 1e3), (1.0, 3.0, 3e3)],
            [(0.0, 1.0, 1e4), (1.0, 3.0, 1e3), (3.0, 4.0, 1e3)],
            None,
        ),
    ],
)
def test_idle_seconds_of_a_phone_say_nothing_of_its_link(
    tmp_path: Path,
    idle: str,
    down: list[tuple[float, float, float]],
    up: list[tuple[float, float, float]],
    period_s: int | None,
) -> None:
    trace = imported(tmp_path, RIDE, "irish_5g", idle=idle)
    assert speeds(trace, "downlink") == [(0, *row) for row in down]
    assert speeds(trace, "uplink") == [(0, *row) for row in up]
    laps = {kind: p.tolist() for kind, p in trace.periods.items()}
    wanted = (3, 4) if period_s is None else (period_s, period_s)
    assert laps == {"downlink": [wanted[0] * US], "uplink": [wanted[1] * US]}


@pytest.mark.parametrize(("idle", "loading"), [("hold", 4e3), ("cut", 4e3), ("zero", 2e3)])
def test_an_idle_line_does_not_halve_what_another_line_of_its_second_saw(
    tmp_path: Path, idle: str, loading: float
) -> None:
    ride = phone(
        "40,3,5G,8,8,D,-", "41,3,5G,32,8,D,-", "41,3,5G,0,0,I,-", "42,3,5G,0,0,I,-", "43,3,5G,8,8,D,-"
    )
    down = speeds(imported(tmp_path, ride, "irish_5g", idle=idle), "downlink")
    held = {"hold": [(0, 2.0, 3.0, 4e3), (0, 3.0, 4.0, 1e3)], "cut": [(0, 2.0, 3.0, 1e3)]}
    assert down == [(0, 0.0, 1.0, 1e3), (0, 1.0, 2.0, loading), *held.get(idle, [(0, 3.0, 4.0, 1e3)])]


def test_a_phone_session_keeps_what_else_it_tells(tmp_path: Path) -> None:
    trace = imported(tmp_path, RIDE, None, uplink=False)
    assert "uplink" not in trace.periods
    assert trace.about.to_pylist() == [
        {
            "id": "B_1.csv",
            "start": "2019-11-26T13:20:40",
            "share_5g": 0.8,
            "share_idle": 0.2,
            "mean_speed_km_per_h": 3.4,
            "mean_ping_ms": 30.0,
        }
    ]
    told = notes(trace)
    assert (told["times_that_repeat"], told["times_that_skip_seconds"], told["missing_bitrates"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (phone("40,3,5G,8,8,I,-"), "expected seconds that are not idle with a DL_bitrate above 0"),
        (phone("61,3,5G,8,8,D,-"), "line 2, Timestamp: expected a time like"),
        (phone("40,3,5G,x,8,D,-"), "line 2, DL_bitrate: expected a number"),
        (phone("40,3,5G,-,8,D,-"), "expected a DL_bitrate in some line, found none"),
        (phone("40,3"), "line 2: expected 7 columns, found 2"),
        ({"B.csv": "Timestamp,DL_bitrate\n"}, "expected a column 'UL_bitrate'"),
    ],
)
def test_wrong_sessions_of_phones_are_refused(tmp_path: Path, files: dict[str, str], what: str) -> None:
    with pytest.raises(TraceError, match=what):
        imported(tmp_path, files, "irish_5g")


# The published files


@pytest.mark.parametrize(
    ("folder", "name", "clients", "rows"),
    [
        ("bandwidth-oboe", "oboe", 385, {"downlink": 37_730}),
        ("bandwidth-hsdpa-3g", "hsdpa", 119, {"downlink": 64_494}),
        ("bandwidth-fcc", "fcc", 47, {"downlink": 13_254}),
        ("cellular-5g-irish", "irish_5g", 22, {"downlink": 23_355, "uplink": 23_868}),
    ],
)
def test_the_published_files_are_recognised_and_read(
    folder: str, name: str, clients: int, rows: dict[str, int]
) -> None:
    trace = import_trace([inputs.trace(folder)])
    assert (notes(trace)["importer"], trace.clients) == (name, clients)
    assert {kind: len(trace.spans(kind).client) for kind in rows} == rows
    assert len(trace.spans("unknown").client) == clients


def test_the_traps_of_the_published_5g_files_are_counted() -> None:
    told = notes(import_trace([inputs.trace("cellular-5g-irish")]))
    assert (told["times_that_repeat"], told["times_that_skip_seconds"]) == (959, 2557)


def test_the_published_links_are_as_fast_as_stated() -> None:
    trace = import_trace([inputs.trace("bandwidth-mahimahi")])
    assert trace.about["id"].to_pylist()[:2] == ["ATT-LTE-driving-2016", "TMobile-UMTS-driving"]
    for kind, stated in (("downlink", [4.56, 2.02, 0.52, 5.03]), ("uplink", [1.91, 0.94, 0.84, 5.95])):
        spans = trace.spans(kind)
        bits = 8 * np.bincount(spans.client, weights=spans.value * (spans.end_us - spans.start_us))
        np.testing.assert_allclose(bits / trace.periods[kind] / 1e6, stated, atol=0.006)


def test_oboe_session_means_are_in_the_stated_range() -> None:
    trace = import_trace([inputs.trace("bandwidth-oboe")], options={"between": "gap"})
    spans = trace.spans("downlink")
    length = spans.end_us - spans.start_us
    mean = np.bincount(spans.client, weights=spans.value * length) / np.bincount(spans.client, weights=length)
    assert 350 < mean.min() / 125 < 400
    assert 5_700 < mean.max() / 125 < 5_950
