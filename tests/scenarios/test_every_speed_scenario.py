"""Scenarios about speed: heavy tails, and bandwidth that changes in time."""

import math

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.worlds.world import Work, World
from made_worlds import DAY, HOUR, NO_FAULTS, durations, made, online_share

STEADY = NO_FAULTS | {"downlink_sigma": 0.0, "uplink_sigma": 0.0, "compute_sigma": 0.0}


def slowdowns(n=2000, **options):
    trace = made("stragglers", options, clients=n, horizon_us=US)
    told = trace.about.column("slowdown").to_numpy()
    assert trace.spans("compute").value == pytest.approx(0.02 * told)
    return told


def test_pareto_slowdowns_have_their_tail():
    found = slowdowns(law="pareto", shape=1.5, most=1000)
    assert found.min() >= 1
    for s in (1.5, 3.0, 10.0):
        assert np.mean(found > s) == pytest.approx(s**-1.5, abs=4.5 * math.sqrt(s**-1.5 / 2000))


def test_zipf_slowdowns_are_whole_numbers_with_their_probabilities():
    found = slowdowns(law="zipf", shape=1.2, most=50)
    weights = np.arange(1, 51.0) ** -1.2
    for k in (1, 2, 5):
        p = weights[k - 1] / weights.sum()
        assert np.mean(found == k) == pytest.approx(p, abs=4.5 * math.sqrt(p / 2000))
    assert found.max() <= 50


def test_log_normal_slowdowns_lie_around_one():
    logs = np.log(slowdowns(law="lognormal", shape=0.8, most=1e6))
    assert logs.mean() == pytest.approx(0, abs=4.5 * 0.8 / math.sqrt(2000))
    assert logs.std() == pytest.approx(0.8, rel=0.07)


def test_half_normal_and_uniform_slowdowns_have_their_moments():
    half = slowdowns(law="half_normal", shape=2.0, most=1e6)
    assert half.min() >= 0.001
    assert half.mean() == pytest.approx(2 * math.sqrt(2 / math.pi), rel=0.07)
    assert np.mean(half**2) == pytest.approx(4, rel=0.15)
    even = slowdowns(law="uniform", most=5)
    assert 1 <= even.min() < even.max() <= 5
    assert even.mean() == pytest.approx(3, rel=0.05)
    assert even.std() == pytest.approx(4 / math.sqrt(12), rel=0.05)


def test_no_slowdown_exceeds_the_most():
    assert slowdowns(law="pareto", shape=0.2, most=7).max() == 7.0


def test_the_network_is_slower_too_where_that_is_asked_for():
    plain = made("stragglers", {"devices": STEADY}, horizon_us=US)
    slow = made("stragglers", {"devices": STEADY, "slow_network": True}, horizon_us=US)
    told = slow.about.column("slowdown").to_numpy()
    for kind in ("downlink", "uplink"):
        assert slow.spans(kind).value * told == pytest.approx(plain.spans(kind).value)


def test_stragglers_come_and_go_if_they_should():
    assert online_share(made("stragglers")) == 1.0
    assert online_share(made("stragglers", {"mean_off": "2h"}, clients=400)) == pytest.approx(0.5, abs=0.03)


def test_a_link_spends_its_share_of_time_on_each_level():
    options = {"levels": [1.0, 0.5, 0.1], "stay": ["20min", "10min", "10min"], "devices": STEADY}
    trace = made("flaky_network", options, clients=150)
    spans = trace.spans("uplink")
    for level, share in ((1.0, 0.5), (0.5, 0.25), (0.1, 0.25)):
        on = np.isclose(spans.value, level * 1e6)
        assert durations(trace, "uplink")[on].sum() / (150 * DAY) == pytest.approx(share, abs=0.02)
        first = np.isclose(spans.value[spans.start_us == 0], level * 1e6).mean()
        assert first == pytest.approx(share, abs=4.5 * math.sqrt(share / 150))
    inside = durations(trace, "uplink")[np.isclose(spans.value, 1e6) & (spans.end_us < DAY)]
    assert inside.mean() == pytest.approx(20 * 60 * US, rel=0.06)


def test_an_autoregressive_link_has_its_deviation_and_correlation():
    options = {"model": "ar1", "sigma": 0.7, "memory": "20min", "step": "5min", "devices": STEADY}
    trace = made("flaky_network", options, clients=200)
    spans = trace.spans("uplink")
    logs = [np.log(spans.value[spans.client == c] / 1e6) for c in range(200)]
    every = np.concatenate(logs)
    assert every.mean() == pytest.approx(0, abs=0.03)
    assert every.std() == pytest.approx(0.7, rel=0.04)
    for lag in (1, 4):
        products = np.concatenate([x[lag:] * x[:-lag] for x in logs])
        assert products.mean() / 0.49 == pytest.approx(math.exp(-lag / 4), abs=0.05)


def test_both_directions_change_together():
    trace = made("flaky_network", {"devices": STEADY})
    down, up = trace.spans("downlink"), trace.spans("uplink")
    assert down.start_us.tolist() == up.start_us.tolist()
    assert down.value / up.value == pytest.approx(4.0)


def test_a_transfer_is_the_integral_of_its_bandwidth():
    trace = made("flaky_network", {"devices": STEADY, "stay": ["3min", "2min", "1min"]}, clients=5)
    spans, n_bytes = trace.spans("uplink"), 2e9
    outcomes = World(trace).outcomes(range(5), HOUR, Work(np.float64(0), np.float64(0), np.float64(n_bytes)))
    assert outcomes.ok.all()
    for client, end in enumerate(outcomes.end_us.tolist()):
        mine = spans.client == client
        inside = np.minimum(spans.end_us[mine], end) - np.maximum(spans.start_us[mine], HOUR)
        moved = (np.maximum(inside, 0) * spans.value[mine]).sum() / US
        assert moved == pytest.approx(n_bytes, abs=10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("stragglers", {"shape": 0}, "'shape': expected a number from 0.1 to 10"),
        ("stragglers", {"most": 0.5}, "'most': expected a number from 1"),
        ("stragglers", {"law": "normal"}, "option 'law'"),
        ("flaky_network", {"levels": [1.0]}, "'levels' and 'stay': expected two or more levels"),
        ("flaky_network", {"stay": ["1h"]}, "found 3 and 1"),
        ("flaky_network", {"levels": [1.0, 0.0, 0.1]}, r"'levels\[1\]': expected a number from 1e-06"),
        ("flaky_network", {"model": "ar1", "step": "1ms"}, "'step': expected at least 1000000 us"),
        ("flaky_network", {"model": "ar1", "sigma": 9}, "'sigma': expected a number from 0 to 5"),
        ("flaky_network", {"model": "ar2"}, "option 'model'"),
    ],
)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(ConfigError, match=message):
        made(name, options)
