"""The first scenarios against theory, their options, and the guide."""

import math
import re
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.scenarios.diurnal import CELL_US, CELLS, EDGES_US, _next_us
from fedsim.scenarios.processes.devices import Devices
from fedsim.scenarios.processes.simulate import simulate
from fedsim.worlds.scenario import Scenario, make_trace
from fedsim.worlds.world import World
from made_worlds import DAY, HOUR, NAMES, durations, made

ROOT = Path(__file__).parents[2]


def test_the_scenarios_are_found():
    assert {"always_on", "churn", "diurnal", "flgo", "semi_markov"} <= set(NAMES)


def test_always_on_is_always_on():
    world = World(made("always_on", after_end="repeat"))
    assert world.online(0).all()
    assert world.next_change(0) is None


def test_churn_is_online_for_its_share_of_time_at_every_instant():
    trace = made("churn", {"mean_on": "1h", "mean_off": "3h"}, clients=2000)
    world = World(trace)
    for t in (0, 1, HOUR, DAY // 2, DAY - 1):
        assert world.online(t).mean() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 2000))
    assert durations(trace, "online").sum() / (2000 * DAY) == pytest.approx(0.25, abs=0.015)


def test_churn_sessions_are_exponential():
    inner = made("churn", {"mean_on": "10min", "mean_off": "10min"}, clients=300, horizon_us=3 * DAY)
    lengths = durations(inner, "online") / (600 * US)
    assert lengths.mean() == pytest.approx(1, abs=0.03)
    assert lengths.std() == pytest.approx(1, abs=0.05)
    assert np.mean(lengths > 2) == pytest.approx(math.exp(-2), abs=0.01)


PLAIN_NIGHTS = {"habit_sigma": 0.0, "habit_shift": "0h", "time_zones": 1, "devices": {"fault_every": "never"}}


def night_share(hour, night=0.6, day=0.08, centre=2.0, width=8.0):
    kappa = math.log(2) / (1 - math.cos(math.pi * width / 24))
    return day + (night - day) * math.exp(kappa * (math.cos(2 * math.pi * (hour - centre) / 24) - 1))


@pytest.mark.parametrize("mean_session", ["30min", "2h", "8h"])
def test_diurnal_follows_its_profile_hour_by_hour_for_any_length_of_session(mean_session):
    n = 2000
    world = World(
        made("diurnal", PLAIN_NIGHTS | {"mean_session": mean_session}, clients=n, horizon_us=2 * DAY)
    )
    for hour in range(0, 48, 3):
        expected = night_share(hour)
        error = 4.5 * math.sqrt(expected * (1 - expected) / n)
        assert world.online(hour * HOUR).mean() == pytest.approx(expected, abs=error + 0.003), hour


def test_diurnal_nights_lie_in_their_time_zones():
    options = PLAIN_NIGHTS | {"time_zones": 2, "zone_spread": "12h", "day_share": 0.01}
    trace = made("diurnal", options, clients=2000)
    world, zone = World(trace), trace.about.column("time_zone").to_numpy()
    at_night_here, at_night_there = world.online(2 * HOUR), world.online(14 * HOUR)
    assert at_night_here.mean() == pytest.approx(0.305, abs=0.05)
    assert at_night_there.mean() == pytest.approx(0.305, abs=0.05)
    assert (at_night_here & at_night_there).mean() < 0.03
    assert at_night_here[zone == 0].mean() > 10 * at_night_here[zone == 1].mean()


def next_by_numpy(hazard, now_us, wait):
    """The instant that `_next_us` finds, by NumPy's interpolation."""
    day, time_us = divmod(now_us, DAY)
    days, rest = divmod(float(np.interp(time_us, EDGES_US, hazard) + wait), float(hazard[-1]))
    return max((day + int(days)) * DAY + round(float(np.interp(rest, hazard, EDGES_US))), now_us + 1)


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 30)), min_size=CELLS, max_size=CELLS),
    now_us=st.one_of(st.integers(0, 30 * DAY), st.integers(0, 30 * CELLS).map(lambda i: i * CELL_US)),
    wait=st.one_of(st.floats(0, 20), st.floats(0, 1000), st.just(0.0)),
)
def test_diurnal_interpolates_to_the_bit_as_numpy_does(steps, now_us, wait):
    hazard = np.concatenate([[0.0], np.cumsum([*steps[:-1], steps[-1] + 1e-3])])
    found = _next_us(array("d", hazard.tolist()), now_us, wait)
    assert found == next_by_numpy(hazard, now_us, wait)


def test_diurnal_clients_differ_by_habit():
    def spread(sigma):
        trace = made("diurnal", PLAIN_NIGHTS | {"habit_sigma": sigma}, clients=300, horizon_us=7 * DAY)
        return np.bincount(trace.spans("online").client, durations(trace, "online"), minlength=300).std() / (
            7 * DAY
        )

    assert spread(1.0) > 2 * spread(0.0)


def test_speeds_are_log_normal_around_their_medians():
    trace = made("always_on", clients=2000, horizon_us=HOUR)
    for kind, median, sigma in (("compute", 0.02, 0.6), ("downlink", 4e6, 0.8), ("uplink", 1e6, 0.8)):
        logs = np.log(trace.spans(kind).value / median)
        assert logs.mean() == pytest.approx(0, abs=4 * sigma / math.sqrt(2000))
        assert logs.std() == pytest.approx(sigma, rel=0.07)


def test_faults_come_at_their_rate_and_last_their_time():
    devices = {"fault_every": "50min", "fault_length": "10min"}
    trace = made("always_on", {"devices": devices}, clients=500, horizon_us=2 * DAY)
    lengths = durations(trace, "fault")
    assert len(lengths) / (500 * 48) == pytest.approx(1.0, rel=0.03)
    assert lengths.mean() / (600 * US) == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("never", ["never", 0, "0s"])
def test_faults_may_be_left_out(never):
    assert len(made("always_on", {"devices": {"fault_every": never}}).spans("fault").client) == 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("churn", {"mean_on": "two hours"}, "'mean_on': expected a duration"),
        ("churn", {"mean_off": 0}, "'mean_off': expected at least 1 us, found 0"),
        ("churn", {"mean_onn": "1h"}, "has no option 'mean_onn'; did you mean 'mean_on'?"),
        (
            "diurnal",
            {"night_share": 1.0},
            "'night_share': expected a number strictly between 0 and 1, found 1.0",
        ),
        ("diurnal", {"time_zones": 0}, "'time_zones': expected a number from 1 to 48, found 0"),
        (
            "diurnal",
            {"night_width": "30h"},
            "'night_width (hours)': expected a number from 0.5 to 24, found 30",
        ),
        ("diurnal", {"mean_session": "1s"}, "'mean_session': expected at least 60000000 us"),
        ("diurnal", {"time_zones": "many"}, "option 'time_zones'"),
        ("always_on", {"devices": {"uplink_byte_per_s": 1}}, "did you mean 'uplink_bytes_per_s'?"),
        ("always_on", {"devices": {"uplink_bytes_per_s": 0}}, "devices.uplink_bytes_per_s"),
        ("always_on", {"devices": {"fault_every": "often"}}, "devices.fault_every"),
        ("always_onn", {}, "there is no scenario 'always_onn'; did you mean 'always_on'?"),
    ],
)
def test_bad_options_are_refused_by_name(name, options, message):
    with pytest.raises(ConfigError) as caught:
        made(name, options)
    assert message in str(caught.value)


def guide_code():
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "write_scenario.md").read_text(), re.DOTALL)


def test_the_scenario_of_the_guide_works_from_its_file_and_is_short(tmp_path):
    code, _ = guide_code()
    assert (ROOT / "examples" / "shifts.py").read_text().startswith(code)
    assert (ROOT / "examples" / "shifts.py").read_text().count("\n") < 40
    trace = make_trace(
        f"{ROOT / 'examples' / 'shifts.py'}:shifts", {"rest": "1h"}, clients=50, horizon_us=4 * DAY, seed=3
    )
    assert World(trace).unmodelled == ("downlink",)
    assert durations(trace, "online").sum() / (50 * 4 * DAY) == pytest.approx(0.9 / 8, abs=0.015)
    assert trace.about.column("crew").to_pylist()[:4] == ["early", "late", "night", "early"]


def test_the_cells_of_the_guide_take_turns(tmp_path):
    _, code = guide_code()
    file = tmp_path / "one_socket.py"
    file.write_text(code)
    assert code.count("\n") < 40
    trace = make_trace(f"{file}:one_socket", {}, clients=5, horizon_us=4 * DAY, seed=3)
    spans = trace.spans("online")
    for cell in ((0, 1, 2), (3, 4)):
        mine = np.isin(spans.client, cell)
        order = np.argsort(spans.start_us[mine])
        assert (spans.start_us[mine][order][1:] >= spans.end_us[mine][order][:-1]).all()


def test_a_scenario_that_writes_fractions_of_microseconds_or_unknown_kinds_is_told_so():
    def careless(kind, start_us):
        def client(env, me):
            me.write(kind, start_us, 10)
            yield env.timeout(1)

        return Scenario(client)

    with pytest.raises(
        ConfigError, match=r"client 0, online: start_us should be whole microseconds \(int\), found 0.5"
    ):
        simulate(careless("online", 0.5), clients=1, horizon_us=10, seed=0)
    with pytest.raises(ConfigError, match="no kind 'onlin'; did you mean 'online'"):
        simulate(careless("onlin", 0), clients=1, horizon_us=10, seed=0)


def test_devices_are_checked_when_made_by_hand():
    with pytest.raises(ValueError, match="compute_sigma"):
        Devices(compute_sigma=-1)
    assert Devices(fault_every="90min").fault_every_us == 5400 * US
