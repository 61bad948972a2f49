"""Cells with background traffic against the theory of queues."""

import math

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.scenarios.shared_uplink import stationary_users
from made_worlds import DAY, HOUR, NO_FAULTS, durations, made, online_share

CAPACITY = 6e6
FAST = NO_FAULTS | {"uplink_bytes_per_s": 1e15, "uplink_sigma": 0.0}
"""Clients that are slowed down by nothing but their cell."""


def cells(**options):
    given = {"cell_clients": 1, "cell_bytes_per_s": CAPACITY, "mean_transfer": "1min", "devices": FAST}
    return given | options


def probabilities(load, channels, most=400):
    """P(N = n) of the M/M/c queue by its balance equations."""
    p = np.ones(most)
    for n in range(1, most):
        p[n] = p[n - 1] * load * channels / min(n, channels)
    return p / p.sum()


def mean_users(trace):
    """Time average of the number that the rates tell of, for one channel."""
    users = CAPACITY / trace.spans("uplink").value - 1
    return float((users * durations(trace, "uplink")).sum() / durations(trace, "uplink").sum())


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_the_mean_number_of_transfers_is_that_of_the_single_server_queue(load):
    trace = made("shared_uplink", cells(load=load), clients=80, horizon_us=6 * HOUR)
    spread = math.sqrt(2 * load * (1 + load) / (1 - load) ** 4 / (80 * 360))
    assert mean_users(trace) == pytest.approx(load / (1 - load), abs=4.5 * spread)


@pytest.mark.parametrize(("load", "channels"), [(0.5, 1), (0.8, 1), (0.6, 3), (0.9, 20)])
def test_a_cell_starts_in_the_stationary_law(load, channels):
    rng = np.random.default_rng(1)
    drawn = np.array([stationary_users(rng, load, channels) for _ in range(20_000)])
    p = probabilities(load, channels)
    for n in (0, 1, channels - 1, channels, channels + 2):
        assert np.mean(drawn == n) == pytest.approx(p[n], abs=5 * math.sqrt(p[n] / 20_000) + 1e-9)
    assert drawn.mean() == pytest.approx((p * np.arange(len(p))).sum(), rel=0.05)


@pytest.mark.parametrize("channels", [1, 3])
def test_rates_are_shared_as_by_that_many_servers(channels):
    trace = made("shared_uplink", cells(load=0.6, channels=channels), clients=50, horizon_us=6 * HOUR)
    spans, p = trace.spans("uplink"), probabilities(0.6, channels)
    shares = CAPACITY / np.maximum(np.arange(len(p)) + 1, channels)
    for rate in np.unique(shares)[-3:]:
        expected = p[shares == rate].sum()
        found = durations(trace, "uplink")[np.isclose(spans.value, rate)].sum() / (50 * 6 * HOUR)
        assert found == pytest.approx(expected, abs=0.045), rate


def test_clients_of_a_cell_have_the_same_share_and_those_of_others_their_own():
    trace = made("shared_uplink", cells(cell_clients=3, load=0.7), clients=6, horizon_us=DAY)
    spans = trace.spans("uplink")
    series = [
        list(zip(*(column[spans.client == c] for column in (spans.start_us, spans.value)), strict=True))
        for c in range(6)
    ]
    assert series[0] == series[1] == series[2] != series[3]
    assert series[3] == series[4] == series[5]
    assert trace.about.column("cell").to_pylist() == [0, 0, 0, 1, 1, 1]


def test_nobody_is_faster_than_its_own_link():
    devices = {"uplink_bytes_per_s": 1e6, "uplink_sigma": 0.5}
    trace = made("shared_uplink", {"devices": devices}, clients=30)
    plain = made("always_on", {"devices": devices}, clients=30).spans("uplink").value
    spans = trace.spans("uplink")
    assert (spans.value <= plain[spans.client]).all()
    assert (durations(trace, "uplink").sum()) == 30 * DAY


def test_without_load_a_cell_changes_nothing():
    assert (made("shared_uplink", cells(load=0.0)).spans("uplink").value == CAPACITY).all()
    assert online_share(made("shared_uplink")) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load": 1.0}, "'load': expected a number from 0 to 0.999"),
        ({"channels": 0}, "'channels': expected a number from 1 to 1000"),
        ({"cell_clients": 0}, "'cell_clients': expected a number from 1"),
        ({"cell_bytes_per_s": -1}, "'cell_bytes_per_s'"),
        ({"mean_transfer": "0s"}, "'mean_transfer': expected at least 1 us"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        made("shared_uplink", options)
