"""Crowds, leaving for ever, and coming late: who is there at a time."""

import math

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.worlds.world import World
from made_worlds import DAY, HOUR, NO_FAULTS, made

ALONE = {"mean_on": "1s", "mean_off": "9000d", "devices": NO_FAULTS}
"""Nobody there but for the crowd."""


def near(share, n, sigmas=4.5):
    return pytest.approx(share, abs=sigmas * math.sqrt(share * (1 - share) / n) + 1e-3)


@pytest.mark.parametrize(("delay_h", "stay_h"), [(0.25, 1.0), (1.0, 1.0), (2.0, 0.5)])
def test_a_crowd_grows_and_decays_as_theory_says(delay_h, stay_h):
    n, share = 3000, 0.8
    options = ALONE | {
        "times": ["6h"], "share": share, "mean_delay": f"{delay_h}h", "mean_stay": f"{stay_h}h"
    }  # fmt: skip
    world = World(made("flash_crowd", options, clients=n))
    assert not world.online(6 * HOUR - 1).any()
    for s in (0.2, 0.5, 1.0, 3.0, 8.0):
        if delay_h == stay_h:
            expected = share * s / delay_h * math.exp(-s / delay_h)
        else:
            decay = math.exp(-s / delay_h) - math.exp(-s / stay_h)
            expected = share * stay_h / (delay_h - stay_h) * decay
        assert world.online(round((6 + s) * HOUR)).mean() == near(expected, n), s


def test_crowds_come_at_every_time_beside_ordinary_visits():
    options = {"times": ["3h", "9h"], "share": 1.0, "mean_stay": "4h", "mean_on": "1h", "mean_off": "1h"}
    world = World(made("flash_crowd", options, clients=1000))
    assert world.online(2 * HOUR).mean() == near(0.5, 1000)
    assert world.online(4 * HOUR).mean() > 0.8
    assert world.online(10 * HOUR).mean() > 0.8


@pytest.mark.parametrize(
    ("life", "survival"),
    [
        ({"mean": "12h"}, lambda h: math.exp(-h / 12)),
        (
            {"law": "weibull", "mean": "12h", "shape": 2},
            lambda h: math.exp(-((math.gamma(1.5) * h / 12) ** 2)),
        ),
    ],
)
def test_those_who_are_left_follow_the_survival_curve(life, survival):
    n, loyal = 3000, 0.2
    options = {"life": life, "loyal_share": loyal, "mean_off": 0, "devices": NO_FAULTS}
    trace = made("permanent_dropout", options, clients=n, horizon_us=2 * DAY)
    world = World(trace)
    for hour in (0, 3, 12, 30, 47):
        assert world.online(hour * HOUR).mean() == near(loyal + (1 - loyal) * survival(hour), n), hour
    stays = trace.about.column("loyal").to_numpy(zero_copy_only=False)
    assert stays.mean() == near(loyal, n)
    assert world.online(2 * DAY - 1)[stays].all()


def test_who_has_left_never_comes_back():
    trace = made(
        "permanent_dropout", {"life": {"mean": "6h"}, "loyal_share": 0.0}, clients=100, horizon_us=DAY
    )
    calm = made(
        "permanent_dropout", {"life": {"mean": "9000d"}, "loyal_share": 0.0}, clients=100, horizon_us=DAY
    )
    spans, free = trace.spans("online"), calm.spans("online")
    assert 0 < len(spans.client) < 0.6 * len(free.client), "most have left"
    for client in range(100):
        starts = spans.start_us[spans.client == client]
        assert starts.tolist() == free.start_us[free.client == client][: len(starts)].tolist()


@pytest.mark.parametrize(
    ("joining", "appeared"),
    [
        ({"law": "uniform", "mean": "10h"}, lambda h: min(h / 20, 1)),
        ({"mean": "10h"}, lambda h: min(h / 20, 1)),  # the default's law
        ({"law": "exponential", "mean": "5h"}, lambda h: 1 - math.exp(-h / 5)),
    ],
)
def test_those_who_have_appeared_follow_the_law_of_joining(joining, appeared):
    n, q = 3000, 0.25
    options = {"joining": joining, "present_share": q, "mean_off": 0, "devices": NO_FAULTS}
    trace = made("late_joiners", options, clients=n)
    for hour in (0, 4, 10, 23):
        expected = q + (1 - q) * appeared(hour)
        assert World(trace).online(hour * HOUR).mean() == near(expected, n), hour
    assert np.mean(trace.about.column("late").to_numpy(zero_copy_only=False)) == near(1 - q, n)


def test_late_clients_come_and_go_once_they_are_there():
    options = {"joining": {"law": "constant", "mean": "5h"}, "present_share": 0.0, "mean_off": "2h"}
    world = World(made("late_joiners", options, clients=1000))
    assert not world.online(5 * HOUR - 1).any()
    assert world.online(5 * HOUR).all()
    assert world.online(23 * HOUR).mean() == near(0.5, 1000)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("flash_crowd", {"times": []}, "'times': expected at least one time, found none"),
        ("flash_crowd", {"times": ["noon"]}, r"'times\[0\]': expected a duration"),
        ("flash_crowd", {"share": 1.2}, "'share': expected a number from 0 to 1"),
        ("permanent_dropout", {"loyal_share": -1}, "'loyal_share': expected a number from 0 to 1"),
        ("permanent_dropout", {"life": {"mean": "3d", "shape": 1}}, "option 'life': expected no shape"),
        ("permanent_dropout", {"mean_on": 0}, "'mean_on': expected at least 1 us"),
        ("late_joiners", {"present_share": 7}, "'present_share'"),
        ("late_joiners", {"joining": "1d"}, "option 'joining'"),
    ],
)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        made(name, options)
