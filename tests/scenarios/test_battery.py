"""Batteries: conservation, and nights that can be worked out by hand."""

import math

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from fedsim.common.rng import Streams
from fedsim.common.units import US
from fedsim.scenarios.battery import Phone, Rates
from fedsim.worlds.scenario import Me
from fedsim.worlds.trace_writer import TraceWriter
from fedsim.worlds.world import World
from made_worlds import DAY, HOUR, NO_FAULTS, made

REGULAR = {"habit_shift": 0, "forget_share": 0.0, "use_every": "9000d", "devices": NO_FAULTS}
MINUTE = 60 * US


def sessions(trace, client=0):
    spans = trace.spans("online").joined()
    mine = spans.client == client
    return list(zip(spans.start_us[mine].tolist(), spans.end_us[mine].tolist(), strict=True))


def test_a_regular_phone_is_online_from_when_it_is_charged_until_it_is_unplugged():
    """Unplugged for 16 of 48 h it falls by a third; from 2/3 to 0.8 takes 2/15 of two hours, which is 16 minutes."""
    trace = made("battery", REGULAR, clients=3, horizon_us=4 * DAY)
    for day in (1, 2):
        (night,) = [s for s in sessions(trace) if day * DAY < s[0] < (day + 1) * DAY]
        assert night[0] == pytest.approx(day * DAY + 23 * HOUR + 16 * MINUTE, abs=5)
        assert night[1] == (day + 1) * DAY + 7 * HOUR


def test_a_phone_that_need_not_be_plugged_in_stays_until_its_charge_has_fallen():
    """From full at seven, a fifth of 48 h is 9 h 36 min."""
    trace = made("battery", REGULAR | {"plugged_only": False}, clients=2, horizon_us=4 * DAY)
    (night,) = [s for s in sessions(trace) if DAY < s[0] < 2 * DAY]
    assert night[1] == pytest.approx(2 * DAY + 16 * HOUR + 36 * MINUTE, abs=5)


def test_a_night_that_began_before_the_world_goes_on_in_it():
    trace = made("battery", REGULAR | {"online_from": 0.0}, clients=5, horizon_us=DAY)
    assert [sessions(trace, c) for c in range(5)] == [[(0, 7 * HOUR), (23 * HOUR, DAY)]] * 5


def test_a_night_from_0_to_24_is_the_whole_day_and_one_of_equal_hours_none():
    all_day = made(
        "battery", REGULAR | {"online_from": 0.0, "plug_h": 0.0, "unplug_h": 24.0}, horizon_us=3 * DAY
    )
    world = World(all_day)
    assert all(world.online(time).all() for time in range(0, 3 * DAY, HOUR))
    never = made(
        "battery", REGULAR | {"online_from": 0.0, "plug_h": 7.0, "unplug_h": 7.0}, horizon_us=3 * DAY
    )
    assert not len(never.spans("online").client)


def test_owners_forget_a_share_of_the_nights():
    options = REGULAR | {"forget_share": 0.3, "online_from": 0.0}
    trace = made("battery", options, clients=200, horizon_us=8 * DAY)
    world = World(trace)
    share = np.mean([world.online(day * DAY + 3 * HOUR).mean() for day in range(8)])
    assert share == pytest.approx(0.7, abs=4.5 * math.sqrt(0.21 / 1600))


def test_a_phone_that_is_never_plugged_in_ends_offline():
    trace = made(
        "battery", {"forget_share": 1.0, "plugged_only": False, "idle_life": "20h"}, horizon_us=3 * DAY
    )
    assert not World(trace).online(DAY).any()


def test_use_drains():
    busy = {
        "use_every": "30min",
        "use_length": "1h",
        "use_life": "3h",
        "plugged_only": False,
        "online_from": 0.3,
    }
    idle = busy | {"use_life": "48h"}
    assert World(made("battery", busy, clients=100)).online(15 * HOUR).sum() < (
        World(made("battery", idle, clients=100)).online(15 * HOUR).sum()
    )


Change = st.tuples(st.integers(1, 10 * HOUR), st.booleans(), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(Change, max_size=20), st.integers(0, 5), st.sampled_from([0.0, 0.35, 1.0]), st.booleans())
def test_the_charge_is_the_clamped_integral_and_decides_who_is_online(
    changes, seed, online_from, plugged_only
):
    env, rows = simpy.Environment(), TraceWriter(10**12)
    me = Me(0, Streams(seed), rows)
    gain, idle, use = 1 / (2 * HOUR), 1 / (30 * HOUR), 1 / (5 * HOUR)
    phone = Phone(env, me, Rates(gain, idle, use), online_from, plugged_only)
    level, seen = phone.charge.level, []

    def life():
        nonlocal level
        phone.change()
        for wait_us, plugged, used in changes:
            flow = gain if phone.plugged else -use if phone.used else -idle
            yield env.timeout(wait_us)
            level = min(1.0, max(0.0, level + flow * wait_us))
            phone.change(plugged=plugged, used=used)
            assert phone.charge.level == pytest.approx(level, abs=1e-9)
            assert 0 <= phone.charge.level <= 1
            if abs(level - online_from) > 1e-6:
                seen.append((env.now, level >= online_from and (plugged or not plugged_only)))

    env.process(life())
    env.run(until=sum(wait_us for wait_us, _, _ in changes) + 1)
    me.horizon_us = env.now
    me.finish()
    spans = list(zip(rows.start_us, rows.end_us, strict=True))
    for at, online in seen:
        assert any(start <= at < end for start, end in spans) == online


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"online_from": 1.5}, "'online_from': expected a number from 0 to 1, found 1.5"),
        ({"plug_h": 25}, "'plug_h': expected a number from 0 to 24"),
        ({"charge_time": 0}, "'charge_time': expected at least 1 us"),
        ({"forget_share": -0.1}, "'forget_share'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        made("battery", options)
