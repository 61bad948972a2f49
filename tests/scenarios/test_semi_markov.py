"""Alternating renewal processes against renewal theory."""

import math

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.worlds.world import World
from made_worlds import DAY, HOUR, NO_FAULTS, durations, made, online_share


@pytest.mark.parametrize(
    ("on", "off"),
    [
        ({"law": "weibull", "mean": "1h", "shape": 0.6}, {"law": "lognormal", "mean": "3h", "shape": 1.0}),
        ({"law": "gamma", "mean": "2h", "shape": 3}, {"law": "constant", "mean": "1h"}),
        ({"law": "uniform", "mean": "30min"}, {"mean": "90min"}),
    ],
)
def test_a_client_is_online_with_the_same_probability_from_the_first_instant_on(on, off):
    n = 1500
    trace = made("semi_markov", {"on": on, "off": off, "devices": NO_FAULTS}, clients=n)
    hours = {"1h": 1, "2h": 2, "3h": 3, "30min": 0.5, "90min": 1.5}
    expected = hours[on["mean"]] / (hours[on["mean"]] + hours[off["mean"]])
    for t in (0, 1, HOUR // 2, 5 * HOUR, DAY - 1):
        error = 4.5 * math.sqrt(expected * (1 - expected) / n)
        assert World(trace).online(t).mean() == pytest.approx(expected, abs=error), t
    assert online_share(trace) == pytest.approx(expected, abs=0.02)


def test_sessions_have_the_law_that_was_asked_for():
    options = {"on": {"law": "gamma", "mean": "10min", "shape": 4}, "off": {"mean": "10min"}}
    trace = made("semi_markov", options, clients=150)
    lengths = durations(trace, "online")[trace.spans("online").end_us < DAY] / (HOUR / 6)
    assert lengths.mean() == pytest.approx(1, abs=0.03)
    assert lengths.std() == pytest.approx(0.5, abs=0.03)


def test_constant_times_are_periodic():
    options = {"on": {"law": "constant", "mean": "1h"}, "off": {"law": "constant", "mean": "2h"}}
    starts = made("semi_markov", options, clients=1).spans("online").start_us
    assert set(np.diff(starts[1:]).tolist()) == {3 * HOUR}


def test_a_bad_law_names_the_option():
    with pytest.raises(
        ConfigError, match=r"option 'on': expected a shape from 0.1 to 10 with the law 'gamma'"
    ):
        made("semi_markov", {"on": {"law": "gamma", "mean": "1h"}})
    with pytest.raises(ConfigError, match=r"option 'off.mean': expected a duration"):
        made("semi_markov", {"off": {"mean": "soon"}})
