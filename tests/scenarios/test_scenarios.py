"""Scenarios against theory, and what all of them have in common."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from fedsim import plugins
from fedsim.config_errors import read_toml, validated
from fedsim.config_world import WorldFile, world_trace
from fedsim.errors import ConfigError
from fedsim.scenario import Scenario, make_trace
from fedsim.units import US
from fedsim.world import World
from scenarios._devices import Devices
from scenarios._simulate import simulate

ROOT = Path(__file__).parents[2]
HOUR, DAY = 3600 * US, 86400 * US
NAMES = plugins.names("scenario")


def made(name, options=None, clients=20, horizon_us=DAY, seed=1, **facts):
    return make_trace(name, options or {}, clients=clients, horizon_us=horizon_us, seed=seed, **facts)


def lives(trace, clients, until_us=None):
    """All that is known about the first clients, up to a time."""
    frame = trace.table.to_pandas()
    frame = frame[frame.client < clients]
    if until_us is not None:
        frame = frame[frame.start_us < until_us].assign(end_us=frame.end_us.clip(upper=until_us))
    return frame.astype({"kind": str}).to_dict("records")


def durations(trace, kind):
    spans = trace.spans(kind)
    return spans.end_us - spans.start_us


def test_the_scenarios_are_found():
    assert {"always_on", "churn", "diurnal"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_world_depends_on_its_seed_alone_and_not_on_how_much_of_it_is_asked_for(name):
    first = made(name)
    assert made(name) == first
    assert made(name, seed=2).digest() != first.digest()
    assert lives(made(name, clients=7), 7) == lives(first, 7)
    assert lives(made(name, horizon_us=DAY * 3), 20, until_us=DAY) == lives(first, 20)


@pytest.mark.parametrize("name", NAMES)
def test_one_client_for_one_microsecond_is_a_world(name):
    assert made(name, clients=1, horizon_us=1, after_end="repeat").clients == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_source_tells_how_to_make_it_again(name):
    assert f'"scenario": "{name}"' in made(name).source
    assert '"seed": 1' in made(name).source


@pytest.mark.parametrize("name", NAMES)
def test_devices_do_not_change_who_is_online(name):
    other = {"devices": {"fault_every": "1h", "seconds_per_sample": 1.0}}
    assert made(name, other).spans("online").start_us.tolist() == made(name).spans("online").start_us.tolist()


def test_always_on_is_always_on():
    world = World(made("always_on", after_end="repeat"))
    assert world.online(0).all()
    assert world.next_change(0) is None


def test_churn_is_online_for_its_share_of_time_at_every_instant():
    trace = made("churn", {"mean_on": "1h", "mean_off": "3h"}, clients=4000)
    world = World(trace)
    for t in (0, 1, HOUR, DAY // 2, DAY - 1):
        assert world.online(t).mean() == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 4000))
    assert durations(trace, "online").sum() / (4000 * DAY) == pytest.approx(0.25, abs=0.01)


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
    n = 4000
    world = World(
        made("diurnal", PLAIN_NIGHTS | {"mean_session": mean_session}, clients=n, horizon_us=2 * DAY)
    )
    for hour in range(0, 48, 3):
        expected = night_share(hour)
        error = 4.5 * math.sqrt(expected * (1 - expected) / n)
        assert world.online(hour * HOUR).mean() == pytest.approx(expected, abs=error + 0.003), hour


def test_diurnal_nights_lie_in_their_time_zones():
    options = PLAIN_NIGHTS | {"time_zones": 2, "zone_spread": "12h", "day_share": 0.01}
    world = World(made("diurnal", options, clients=2000))
    at_night_here, at_night_there = world.online(2 * HOUR), world.online(14 * HOUR)
    assert at_night_here.mean() == pytest.approx(0.305, abs=0.05)
    assert at_night_there.mean() == pytest.approx(0.305, abs=0.05)
    assert (at_night_here & at_night_there).mean() < 0.03


def test_diurnal_clients_differ_by_habit():
    def spread(sigma):
        trace = made("diurnal", PLAIN_NIGHTS | {"habit_sigma": sigma}, clients=300, horizon_us=7 * DAY)
        return np.bincount(trace.spans("online").client, durations(trace, "online"), minlength=300).std() / (
            7 * DAY
        )

    assert spread(1.0) > 2 * spread(0.0)


def test_speeds_are_log_normal_around_their_medians():
    trace = made("always_on", clients=4000, horizon_us=HOUR)
    for kind, median, sigma in (("compute", 0.02, 0.6), ("downlink", 4e6, 0.8), ("uplink", 1e6, 0.8)):
        logs = np.log(trace.spans(kind).value / median)
        assert logs.mean() == pytest.approx(0, abs=4 * sigma / math.sqrt(4000))
        assert logs.std() == pytest.approx(sigma, rel=0.05)


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


@pytest.mark.parametrize("file", sorted((ROOT / "scenarios").glob("*.toml")), ids=lambda p: p.stem)
def test_the_files_that_ship_can_be_run(file):
    world = validated(WorldFile, read_toml(file), file).world
    trace = world_trace(world.model_copy(update={"clients": 5}), clients=99, seed=0)
    assert (trace.clients, trace.after_end) == (5, "repeat")


def test_the_scenario_of_the_guide_works_from_its_file_and_is_short(tmp_path):
    guide = (ROOT / "docs" / "scenarios.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert code.count("\n") < 40
    file = tmp_path / "shifts.py"
    file.write_text(code)
    trace = make_trace(f"{file}:shifts", {"rest": "1h"}, clients=50, horizon_us=4 * DAY, seed=3)
    assert World(trace).unmodelled == ("downlink",)
    assert durations(trace, "online").sum() / (50 * 4 * DAY) == pytest.approx(0.9 / 8, abs=0.015)


def test_a_scenario_that_writes_fractions_of_microseconds_or_unknown_kinds_is_told_so():
    def careless(kind, start_us):
        def client(env, me):
            me.write(kind, start_us, 10)
            yield env.timeout(1)

        return Scenario(client)

    with pytest.raises(
        TypeError, match=r"client 0, online: start_us should be whole microseconds \(int\), found 0.5"
    ):
        simulate(careless("online", 0.5), clients=1, horizon_us=10, seed=0)
    with pytest.raises(ValueError, match="no kind 'onlin'; did you mean 'online'"):
        simulate(careless("onlin", 0), clients=1, horizon_us=10, seed=0)


def test_devices_are_checked_when_made_by_hand():
    with pytest.raises(ValueError, match="compute_sigma"):
        Devices(compute_sigma=-1)
    assert Devices(fault_every="90min").fault_every_us == 5400 * US
