"""FLASH's files: states of phones, networks, device tables, measured layers, totals."""

import json
from datetime import date, datetime

import pytest

import inputs
from fedsim.common.errors import ConfigError, TraceError
from fedsim.worlds.importer import build_importer, import_trace
from fedsim.worlds.world import World
from published import imported, refused, values, windows

S = 1_000_000
DAY = 86_400 * S


def phone(*events, guid="g", model="m"):
    """A device whose events are (seconds after 21:00, name)."""
    clock = [f"2020-01-28 21:{s // 60:02d}:{s % 60:02d}\t{name}" for s, name in events]
    return {"guid": guid, "model": model, "messages": "\n".join(clock) + "\n"}


READY = [(0, "screen_lock"), (10, "wifi"), (20, "battery_charged_on")]
ONE = phone(*READY, (50, "4G"), (60, "85.0%"))


def states(*devices, **options):
    return imported("flash_states", {"state_traces.json": json.dumps(dict(enumerate(devices)))}, **options)


def test_ready_is_locked_and_wifi_and_charging_and_both_ends_count():
    found = states(ONE)
    assert windows(found.trace, "online") == [(0, 20 * S, 50 * S + 1)]
    assert found.trace.period_us("online").tolist() == [60 * S]
    assert found.trace.origin == "2020-01-28T21:00:00"
    assert found.trace.about.to_pylist() == [
        {"id": "0", "guid": "g", "model": "m", "first_line": "2020-01-28T21:00:00"}
    ]
    assert found.notes["lines"] == 5


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("flash", [(30, 40)]),
        ("charging", [(5, 50)]),
        ("charging_wifi", [(10, 45)]),
        ("idle_charging_wifi", [(20, 45)]),
    ],
)
def test_rules_differ_in_the_flags_they_need(rule, expected):
    events = [
        (0, "screen_on"),
        (5, "battery_charged_on"),
        (10, "WIFI"),
        (20, "screen_off"),
        (30, "screen_lock"),
        (40, "screen_unlock"),
        (45, "unknown"),
        (50, "battery_charged_off"),
        (60, "5g"),
    ]
    found = windows(states(phone(*events), ready=rule).trace, "online")
    assert found == [(0, a * S, b * S + 1) for a, b in expected]


def test_a_window_open_at_the_end_is_dropped_unless_kept():
    device = phone(*READY, (30, "2g"), (40, "wifi"), (90, "50%"))
    dropped, kept = states(device), states(device, open_end="keep")
    assert windows(dropped.trace, "online") == [(0, 20 * S, 30 * S + 1)]
    assert windows(kept.trace, "online") == [(0, 20 * S, 30 * S + 1), (0, 40 * S, 90 * S)]
    assert dropped.notes["windows_open_at_the_end"] == 1


def test_phones_without_a_window_or_a_length_are_left_out_and_counted():
    never, instant = phone((0, "wifi"), (9, "2g")), phone((0, "wifi"))
    found = states(never, instant, ONE)
    assert found.trace.about.column("id").to_pylist() == ["2"]
    assert found.notes["left_out"] == {"malformed": 0, "all_at_one_time": 1, "no_window": 1}
    kept = states(never, ONE, no_window="keep")
    assert kept.trace.clients == 2
    assert "none of 1 devices is ever ready" in refused("flash_states", {"s": json.dumps({"0": never})})


def test_windows_touching_and_of_no_length_stay():
    events = [
        *READY,
        (25, "screen_unlock"),
        (25, "screen_lock"),
        (30, "screen_unlock"),
        (40, "screen_lock"),
        (40, "2g"),
    ]
    found = windows(states(phone(*events, (60, "3g"))).trace, "online")
    assert found == [(0, 20 * S, 25 * S), (0, 25 * S, 30 * S + 1), (0, 40 * S, 40 * S + 1)]


def test_lines_out_of_order_are_sorted_and_counted():
    shuffled = phone(READY[1], READY[0], READY[2], (50, "4g"), (60, "85.0%"))
    found = states(shuffled)
    assert found.notes["lines_out_of_order_sorted"] == 1
    assert windows(found.trace, "online") == windows(states(ONE).trace, "online")


def test_phones_keep_their_clock_times_in_a_common_world():
    late = phone(*[(s + 100, name) for s, name in READY], (150, "4g"), (160, "1%"))
    trace = states(ONE, late).trace
    assert trace.period_us("online").tolist() == [60 * S, 60 * S]
    world = World(trace)
    # 120 to 150 s after the first line of the first phone; modulo its loop of 60 s that is 0 to 30 s.
    assert world.online(119 * S).tolist()[1] is False
    assert world.online(120 * S).tolist()[1] is True
    assert world.online(150 * S).tolist()[1] is True
    assert world.online(150 * S + 1).tolist()[1] is False


def test_a_window_across_the_end_of_the_loop_becomes_two():
    trace = states(ONE, origin="2020-01-28 20:59:25").trace  # 35 s before the first line
    assert windows(trace, "online") == [(0, 0, 25 * S + 1), (0, 55 * S, 60 * S)]


def test_lines_that_do_not_split_refuse_the_file_or_drop_the_phone():
    broken = {"guid": "g", "model": "m", "messages": "2020-01-28 21:00:00 wifi"}
    text = json.dumps({"a": broken, "b": ONE})
    message = refused("flash_states", {"s": text})
    assert "device 'a', line 1: expected a time, a tab and an event" in message
    assert "malformed='drop'" in message
    found = imported("flash_states", {"s": text}, malformed="drop")
    assert found.notes["left_out"]["malformed"] == 1
    assert found.trace.clients == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "2020-01-28 21:00:00\tscreen_lok",
            "line 1: there is no event 'screen_lok'; did you mean 'screen_lock'?",
        ),
        ("2020-01-28 21:00:00\t1e9%", "there is no event"),
        (
            "2020-13-28 21:00:00\twifi",
            "expected a time such as 2020-01-28 21:30:05, found '2020-13-28 21:00:00'",
        ),
        ("28.01.2020 21:00\twifi", "expected a time such as"),
        ("", "expected lines with a time and an event, found none"),
    ],
)
def test_unknown_events_and_times_are_refused_with_device_and_line(line, said):
    message = refused("flash_states", {"s": json.dumps({"a": {"guid": "g", "model": "m", "messages": line}})})
    assert "s, device 'a'" in message
    assert said in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1}', "device 'a': expected dict, found 1"),
        ('{"a": {"guid": "g", "model": "m"}}', "expected a key 'messages'"),
        ('{"a": 1, "a": 2}', "key 'a' stands twice"),
        ("[]", "expected dict, found []"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_json_that_is_no_state_trace_is_refused(text, said):
    assert said in refused("flash_states", {"s": text})


def test_the_origin_is_checked():
    with pytest.raises(ConfigError, match="'origin': expected 'first' or a time"):
        build_importer("flash_states", {"origin": "yesterday"})


@pytest.mark.parametrize("origin", [20200128, 3.5, True])
def test_the_origin_is_no_number(origin):
    with pytest.raises(ConfigError, match="option 'origin': Input should be a valid string, found"):
        build_importer("flash_states", {"origin": origin})


@pytest.mark.parametrize(
    "origin", [date(2020, 1, 28), datetime(2020, 1, 28), "2020-01-28", "2020-01-28 00:00:00"]
)
def test_the_origin_may_be_a_date_of_toml(origin):
    """Which is what an unquoted one on the command line is."""
    assert build_importer("flash_states", {"origin": origin}).read.keywords["options"].origin == datetime(
        2020, 1, 28
    )


LAW = {"down_u": 400.0, "down_sigma": 100.0, "up_u": 80.0, "up_sigma": 20.0}


def test_networks_are_in_kilobytes_unless_told_otherwise():
    files = {"speed_distri.json": json.dumps({"a": LAW})}
    trace = imported("flash_network", files).trace
    assert (values(trace, "downlink"), values(trace, "uplink")) == ([400_000.0], [80_000.0])
    assert trace.about.to_pylist() == [{"id": "a", "downlink_cv": 0.25, "uplink_cv": 0.25}]
    assert values(imported("flash_network", files, unit="kbit/s").trace, "uplink") == [10_000.0]


@pytest.mark.parametrize(
    ("key", "wrong"), [("up_u", 0), ("down_u", -1), ("up_sigma", -1), ("down_sigma", "x")]
)
def test_wrong_networks_are_refused_with_client_and_key(key, wrong):
    assert f"'a', '{key}': expected a number" in refused(
        "flash_network", {"s": json.dumps({"a": {**LAW, key: wrong}})}
    )


SCORES = json.dumps(
    {"Google Nexus S": 400, "Xiaomi Redmi Note 7 Pro": 6700, "Google Pixel 4": 33000, "Asus 6": 30000}
)
REAL = json.dumps({"SM-1": "asus 6", "SM-2": "unknown", "SM-3": "Google Nexus S"})


def test_phones_train_like_the_supported_one_with_the_nearest_score():
    trace = imported("flash_devices", {"benchmark2score.json": SCORES}).trace
    assert values(trace, "compute") == pytest.approx([0.1642, 0.0588, 0.0179, 0.0179])
    assert trace.about.column("class").to_pylist() == ["slow", "middle", "fast", "fast"]
    assert trace.about.column("compute_cv").to_pylist()[0] == pytest.approx(99.5 / 1642)


def test_the_task_and_the_batch_decide_the_time_of_a_sample():
    files = {"supported_devices.json": '["A", "B", "C"]'}
    text = imported("flash_devices", files, task="shakespeare").trace
    assert values(text, "compute") == pytest.approx([0.28621, 0.13579, 0.10681])
    assert values(imported("flash_devices", files, batch_size=1).trace, "compute")[2] == pytest.approx(0.179)
    with pytest.raises(ConfigError, match="'batch_size': expected at least 1"):
        build_importer("flash_devices", {"batch_size": 0})


def test_android_models_are_looked_up_and_unknown_ones_drawn():
    files = {"benchmark2score.json": SCORES, "real2benchmark.json": REAL}
    found = imported("flash_devices", files)
    assert found.trace.about.column("id").to_pylist() == ["SM-1", "SM-2", "SM-3"]
    classes = found.trace.about.column("class").to_pylist()
    assert (classes[0], classes[2]) == ("fast", "slow")
    assert found.notes["without_a_score_draw"] == 1
    assert imported("flash_devices", files).trace.digest() == found.trace.digest()
    dropped = imported("flash_devices", files, unknown="drop")
    assert dropped.trace.about.column("id").to_pylist() == ["SM-1", "SM-3"]


def test_classes_are_drawn_with_the_weights_of_flash():
    names = json.dumps({f"model {i}": "unknown" for i in range(3000)})
    found = imported("flash_devices", {"b.json": SCORES, "r.json": names})
    assert found.notes["classes"]["slow"] == pytest.approx(3000 * 18820 / 35407, abs=110)
    assert found.notes["classes"]["fast"] <= 40


def test_names_without_scores_are_refused():
    assert "names without scores; give benchmark2score.json" in refused(
        "flash_devices", {"real2benchmark.json": REAL}
    )


def test_the_raw_list_holds_texts_and_sometimes_two_numbers():
    entries = [
        {"Model": "A", "CPU": "c", "RAM": "8GB", "AI_Score": " 76206 1,6"},
        {"Model": "Google Pixel 4", "CPU": "c", "RAM": "8GB", "AI_Score": " 33289 1"},
        {"Model": "Xiaomi Redmi Note 7 Pro", "AI_Score": "6702"},
        {"Model": "Google Nexus S", "AI_Score": "383"},
    ]
    trace = imported("flash_devices", {"raw.json": json.dumps(entries)}).trace
    assert trace.about.column("score").to_pylist() == [76206.0, 33289.0, 6702.0, 383.0]
    assert trace.about.column("ram").to_pylist() == ["8GB", "8GB", None, None]
    entries[0]["AI_Score"] = "fast"
    assert "entry 0, 'AI_Score': expected a number" in refused(
        "flash_devices", {"raw.json": json.dumps(entries)}
    )


def test_a_phone_in_both_files_of_scores_is_one_client():
    entries = [{"Model": "asus 6", "RAM": ram, "AI_Score": "30000"} for ram in ("6GB", "8GB")]
    files = {"benchmark2score.json": SCORES, "raw.json": json.dumps(entries)}
    for given in (files, dict(reversed(files.items()))):
        about = imported("flash_devices", given).trace.about
        assert about.column("id").to_pylist()[2:] == [name for name in json.loads(SCORES) if name != "Asus 6"]
        assert about.column("ram").to_pylist() == ["6GB", "8GB", None, None, None]


GRID = {"X": [[0.5, 0.5, 0.2, 1.0], [1.0, 1.0, 0.2, 0.2]], "Y": [[1.5], [3.0]]}


def test_files_are_read_once_and_hidden_ones_not_at_all(tmp_path):
    """Jupyter and git keep copies in hidden folders."""
    for place in ("a", "b", ".ipynb_checkpoints", "a/.git"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "lstm.json").write_text(json.dumps(GRID))
    assert import_trace([tmp_path]).about.column("id").to_pylist() == ["a", "b"]
    file = tmp_path / "a" / "lstm.json"
    for paths in ([file, file], [tmp_path, file], [file, tmp_path / "b" / ".." / "a" / "lstm.json"]):
        with pytest.raises(TraceError, match=rf"{file}: expected each file once, found it 2 times"):
            import_trace(paths)
    hidden = tmp_path / "a" / ".git"
    assert import_trace([hidden]).clients == 1  # a folder that is named is read


def test_a_measured_layer_is_a_client_named_by_its_folder():
    files = {"nexus6/lstm.json": json.dumps(GRID)}
    trace = imported("flash_lstm", files).trace
    assert trace.about.to_pylist() == [
        {"id": "nexus6", "model": "nexus6", "batch_s": 1.5, "median_batch_s": 2.25}
    ]
    assert values(trace, "compute") == [0.15]
    other = imported("flash_lstm", files, in_size=1000, out_size=1000, seq_len=2).trace
    assert values(other, "compute") == [0.3]
    message = refused("flash_lstm", files, in_size=7)
    assert "expected one measurement at in_size=7" in message
    assert "the nearest point is 500, 500, 10, 10" in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"Y": [[1.5]]}, "found [2, 4] and [1, 1]"),
        ({"X": [[1, 2], [1]]}, "'X': expected rows of finite numbers"),
        ({"Y": [["a"], [1]]}, "'Y': expected rows of finite numbers"),
        ({"Y": [[1.0], [0.0]]}, "'Y'[1]: expected seconds above 0, found 0"),
        ({"Y": 5}, "expected list, found 5"),
    ],
)
def test_measurements_of_another_shape_are_refused(change, said):
    assert said in refused("flash_lstm", {"d/lstm.json": json.dumps(GRID | change)})


TOTAL = {
    "guid": "1",
    "model": "m",
    "screen_on_duration": 10.0,
    "battery_charged_on_duration": 302_400.0,
    "screen_unlock_duration": 700_000.0,
}


def test_totals_say_nothing_about_when():
    found = imported("flash_durations", {"aggregated.json": json.dumps([TOTAL])})
    assert windows(found.trace, "unknown") == [(0, 0, DAY)]
    assert windows(found.trace, "online") == []
    assert found.trace.about.to_pylist()[0]["charging_share"] == 0.5
    assert "entry 1, 'guid': expected each client once" in refused(
        "flash_durations", {"a": json.dumps([TOTAL, TOTAL])}
    )


def test_published_files_have_the_counts_that_are_known():
    device = inputs.trace("flash-device")
    assert import_trace([inputs.trace("flash-durations")]).clients == 800
    assert import_trace([inputs.trace("flash-network")]).clients == 15
    assert import_trace([device / "regression"]).clients == 3
    together = import_trace(sorted(device.glob("*.json")))
    assert together.clients == 772
    assert together.about.column("benchmark_name").to_pylist().count("unknown") == 610
    assert import_trace([device / "raw_ai_benchmark_list.json"]).clients == 333
