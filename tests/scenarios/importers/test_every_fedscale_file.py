"""FedScale's files, Propius' table, and reading pickles without running them."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inputs
from fedsim.common.errors import ConfigError, TraceError
from fedsim.scenarios.importers.reading.pickles import plain_pickle
from fedsim.worlds.importer import build_importer, import_trace
from published import imported, refused, sources, values, windows

S = 1_000_000
DAY = 86_400 * S


def behaviour(active, inactive, finish=172800, **more):
    return {"active": active, "inactive": inactive, "finish_time": finish, "model": "Phone 1", **more}


def traced(clients, **options):
    return imported("fedscale_availability", {"behave": pickle.dumps(clients)}, **options)


def test_windows_are_closed_and_zero_lengths_stay():
    found = traced({1: behaviour([5, 20, 30], [5, 30, 40], duration=20), 2: behaviour([0], [9], 86400)})
    assert windows(found.trace, "online") == [
        (0, 5 * S, 5 * S + 1),
        (0, 20 * S, 30 * S),  # touches the next one, which keeps its start
        (0, 30 * S, 40 * S + 1),
        (1, 0, 9 * S + 1),
    ]
    assert windows(found.trace, "unknown") == []
    assert found.trace.periods["online"].tolist() == [2 * DAY, DAY]
    assert (found.trace.horizon_us, found.trace.after_end) == (2 * DAY, "repeat")
    assert found.trace.about.column("id").to_pylist() == ["1", "2"]
    assert found.notes["zero_length_windows"] == 1
    assert found.notes["durations_that_differ"] == 0


def test_a_window_ends_where_the_windows_begin_again():
    found = traced({7: behaviour([10, 190], [100, 200], finish=100)})
    assert windows(found.trace, "online") == [(0, 10 * S, 100 * S)]
    assert found.notes["windows_beyond_finish_time_cut"] == 1


def test_equal_windows_are_one_and_told_durations_are_compared():
    found = traced({7: behaviour([10, 10], [10, 10], duration=3)})
    assert windows(found.trace, "online") == [(0, 10 * S, 10 * S + 1)]
    assert found.notes["equal_windows_left_out"] == 1
    assert found.notes["durations_that_differ"] == 1


def test_a_client_without_windows_is_never_online():
    found = traced({7: behaviour([], []), 8: behaviour([1], [2])})
    assert windows(found.trace, "online") == [(1, 1 * S, 2 * S + 1)]
    assert found.trace.clients == 2


EXCERPT = (
    "(3, {'duration': 1, 'inactive': [8, 15], 'finish_time': 86400, 'active': [8, 14], 'model': 'a'}), \n"
    "(4, {'duration': 1, 'inactive': [9], 'finish_time': 172800, 'active': [8], 'model': 'b'})\n"
)


def test_the_excerpt_of_tuples_reads_as_the_pickle_does():
    entries = {
        3: behaviour([8, 14], [8, 15], 86400, duration=1) | {"model": "a"},
        4: behaviour([8], [9], duration=1) | {"model": "b"},
    }
    text = imported("fedscale_availability", {"excerpt.txt": EXCERPT})
    assert text.trace.digest() == traced(entries).trace.digest()


def test_three_lines_are_one_client_of_which_nothing_is_known_after_its_last_window():
    files = {"client_12.excerpt.txt": "[64, 357]\n[93, 360]\n107749\n"}
    found = imported("fedscale_availability", files).trace
    assert windows(found, "online") == [(0, 64 * S, 93 * S + 1), (0, 357 * S, 360 * S + 1)]
    assert windows(found, "unknown") == [(0, 360 * S + 1, DAY)]
    assert found.about.column("id").to_pylist() == ["12"]
    looped = imported("fedscale_availability", files, period="10min").trace
    assert windows(looped, "unknown") == []
    assert looped.period_us("online").tolist() == [600 * S]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (behaviour([1, 2], [3]), "client 5: expected as many ends as starts, found 2 and 1"),
        (behaviour([9], [3]), "client 5, window 0: it ends at 3 s, before its start 9 s"),
        (behaviour([1, 5], [9, 9]), "window 1: it starts at 5 s, before the last one ends at 9 s"),
        (behaviour([-1], [9]), "active[0]: expected a number from 0 to 3.2e+09, found -1"),
        (behaviour([float("nan")], [9]), "active[0]: expected a number"),
        (behaviour(["x"], [9]), "active[0]: expected a number from 0 to 3.2e+09, found 'x'"),
        (behaviour([10**400], [10**401]), "active[0]: expected a number"),
        (behaviour([1], [2], 0), "'finish_time': expected a number"),
        (behaviour([1], [2]) | {"model": 3}, "'model': expected str, found 3"),
        ({"active": [1]}, "expected a key 'inactive', found ['active']"),
        ([1, 2], "client 5: expected dict, found [1, 2]"),
    ],
)
def test_wrong_behaviour_is_refused_with_the_place(entry, said):
    assert said in refused("fedscale_availability", {"b": pickle.dumps({5: entry})})


def test_all_wrong_clients_are_told_at_once():
    message = refused(
        "fedscale_availability", {"b": pickle.dumps({i: behaviour([9], [3]) for i in range(30)})}
    )
    assert message.startswith("30 problems:")
    assert "... and 10 more" in message


def test_clients_of_two_files_must_differ():
    assert "each client once, found '3' twice" in refused(
        "fedscale_availability", {"a": EXCERPT, "b": EXCERPT}
    )


def test_text_that_is_no_tuple_is_refused_with_its_line():
    assert "line 2: expected a Python tuple" in refused("fedscale_availability", {"a": EXCERPT[:130]})
    assert "line 1: expected a Python tuple" in refused(
        "fedscale_availability", {"a": "__import__('os').getcwd()"}
    )
    assert "found ((((((" in refused("fedscale_availability", {"a": "(" * 5000}).replace("'", "")


@pytest.mark.parametrize("period", ["soon", 0, -1])
def test_the_period_is_checked(period):
    with pytest.raises(ConfigError, match="'period'"):
        build_importer("fedscale_availability", {"period": period})


def capacity(n=2, **more):
    return {i: {"computation": np.float64(40.0 + i), "communication": 1600.0, **more} for i in range(n)}


def test_capacity_is_in_seconds_of_training_and_bytes():
    found = imported("fedscale_capacity", {"c": pickle.dumps(capacity())}).trace
    assert values(found, "compute") == pytest.approx([0.12, 0.123])
    assert values(found, "downlink") == values(found, "uplink") == [200_000.0] * 2
    assert windows(found, "unknown") == [(0, 0, DAY), (1, 0, DAY)]
    assert found.about.column("computation_ms").to_pylist() == [40.0, 41.0]


def test_the_variant_with_two_directions_and_the_options():
    files = {"c": pickle.dumps(capacity(dl_kbps=8000.0, ul_kbps=80.0))}
    pair = imported("fedscale_capacity", files).trace
    assert (values(pair, "downlink")[0], values(pair, "uplink")[0]) == (1e6, 1e4)
    one = imported("fedscale_capacity", files, network="communication", bits_per_kbit=1024).trace
    assert values(one, "uplink") == [204_800.0] * 2
    assert "needs 'dl_kbps'" in refused("fedscale_capacity", {"c": pickle.dumps(capacity())}, network="dl_ul")
    faster = imported("fedscale_capacity", files, training_factor=1).trace
    assert values(faster, "compute")[0] == 0.04


@pytest.mark.parametrize("wrong", [0, -3.0, float("nan"), float("inf"), "fast", None, True, 1e300])
def test_wrong_speeds_are_refused_with_client_and_field(wrong):
    message = refused(
        "fedscale_capacity", {"c": pickle.dumps(capacity() | {9: {**capacity()[0], "computation": wrong}})}
    )
    assert "client 9, 'computation': expected a number" in message


def test_phones_of_propius_keep_the_order_of_the_file():
    phone = {"device": "A", "cpu_f": 1.0, "ram": 2.0, "fp16_mem": 100.0, "android_os": 5.0, "speed": 50.0}
    found = imported(
        "device_spec", {"s": pickle.dumps({9: phone, 3: {**phone, "device": "B", "speed": 10.0}})}
    ).trace
    assert values(found, "compute") == pytest.approx([0.15, 0.03])
    assert found.about.column("id").to_pylist() == ["9", "3"]
    assert found.about.column("ram_gb").to_pylist() == [2.0, 2.0]
    assert "'speed': expected a number above 0" in refused(
        "device_spec", {"s": pickle.dumps({9: {**phone, "speed": 0}})}
    )


class Hostile:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_a_program_is_refused_and_nothing_runs(tmp_path, protocol):
    proof = tmp_path / "it ran"
    data = pickle.dumps({1: Hostile(os.system, f"touch '{proof}'")}, protocol)
    with pytest.raises(TraceError, match=r"byte \d+: refused: it asks for (posix|nt)\.system"):
        plain_pickle(sources({"x": data})[0])
    for name in ("fedscale_availability", "fedscale_capacity", "device_spec"):
        refused(name, {"x": data})
    assert not proof.exists()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.integers() | st.text(max_size=8), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(PLAIN, st.sampled_from([0, 1, 2, 3, 4, 5]))
@settings(max_examples=100, deadline=None)
def test_plain_values_come_back_from_every_protocol(value, protocol):
    assert plain_pickle(sources({"x": pickle.dumps(value, protocol)})[0]) == value


@pytest.mark.parametrize("number", [np.float64(2.5), np.float32(0.5), np.int64(-3), np.int32(7)])
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_scalars_of_numpy_become_numbers(number, protocol):
    found = plain_pickle(sources({"x": pickle.dumps([number, number], protocol)})[0])
    assert found == [number, number]
    assert type(found[0]) in (int, float)


def test_old_and_new_names_of_numpy_are_known():
    data = pickle.dumps(np.float64(2.5), 4)
    old = data.replace(b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray")
    new = data.replace(b"\x8c\x15numpy.core.multiarray", b"\x8c\x16numpy._core.multiarray")
    for stream in (old, new):
        assert plain_pickle(sources({"x": stream[:2] + stream[11:]})[0]) == 2.5


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        b"\x80\x04.",
        b"\x80\x04]\x94h\x05.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",  # announces 2^63 bytes
        b"\x80\x04K\x01K\x02.",
        b"\x80\x04]]s.",
        b"\x80\x04}]K\x01s.",  # a list as a key
        b"I" + b"9" * 5000 + b"\n.",
        b"(" * 100_000,
        pickle.dumps(np.zeros(3)),
        pickle.dumps(np.complex128(1)),
        pickle.dumps({1, 2}),
        pickle.dumps(Hostile(np.dtype, "O")),
        pickle.dumps(Hostile(np.dtype, [("a", "O")])),
    ],
)
def test_broken_and_strange_pickles_are_refused(data):
    with pytest.raises(TraceError, match="x, byte"):
        plain_pickle(sources({"x": data})[0])


def test_a_huge_memo_index_costs_nothing():
    assert plain_pickle(sources({"x": b"\x80\x04Nr\xff\xff\xff\xff."})[0]) is None


def test_published_files_have_the_counts_that_are_known():
    five = import_trace([inputs.trace("fedscale-published")])
    assert (five.clients, len(windows(five, "online"))) == (5, 23)
    table = import_trace([inputs.trace("fedscale-capacity-ul-dl")])
    assert table.clients == 9242
    assert np.median(values(table, "compute")) == pytest.approx(3 * 0.041)
    assert np.median(values(table, "uplink")) == pytest.approx(18_423 * 125, rel=1e-3)
    assert import_trace([inputs.trace("device-spec-speed")]).clients == 761
