"""The scenario `fitted` and its laws against theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.scenarios.processes.hazards import LAWS, Day, Hazard
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import Trace

HOUR, DAY = 3600 * US, 86400 * US

SHAPES = {"exponential": (1.0,), "weibull": (0.5, 2.0), "gamma": (0.4, 3.0), "lognormal": (0.3, 1.2)}
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]

EVERY_LAW = pytest.mark.parametrize(("name", "shape"), CASES)
HOURS = st.lists(st.floats(0.05, 5), min_size=24, max_size=24).map(tuple)


def made(options: dict[str, object], clients: int = 50, days: float = 2, seed: int = 1) -> Trace:
    return make_trace("fitted", options, clients=clients, horizon_us=round(days * DAY), seed=seed)


def lengths_h(trace: Trace) -> np.ndarray:
    spans = trace.spans("online")
    return (spans.end_us - spans.start_us) / HOUR


def online_share(trace: Trace) -> np.ndarray:
    spans = trace.spans("online")
    return np.bincount(spans.client, spans.end_us - spans.start_us, trace.clients) / trace.horizon_us


def test_every_law_is_tested() -> None:
    assert set(SHAPES) | {"constant"} == set(LAWS)


@EVERY_LAW
def test_the_inverse_undoes_the_hazard_from_tiny_to_huge(name: str, shape: float) -> None:
    law, hazard = Hazard(name, 2.5, shape), np.geomspace(1e-6, 100, 60)
    assert law.cumulative(law.inverse(hazard)) == pytest.approx(hazard, rel=1e-9)


@EVERY_LAW
def test_the_density_is_the_slope_of_the_survival(name: str, shape: float) -> None:
    law, step = Hazard(name, 2.5, shape), 1e-5
    length = law.inverse(np.geomspace(1e-3, 15, 40))
    longer = [np.exp(-law.cumulative(length * (1 + d))) for d in (-step, step)]
    slope = (longer[0] - longer[1]) / (2 * step * length)
    assert law.log_density(length) == pytest.approx(np.log(slope), abs=1e-6)


@EVERY_LAW
def test_lengths_and_remainders_have_their_moments(name: str, shape: float) -> None:
    law, rng = Hazard(name, 2.5, shape), np.random.default_rng(3)
    drawn = law.inverse(rng.exponential(size=200_000))
    assert drawn.mean() == pytest.approx(2.5, rel=0.03)
    rest = law.remainder()
    # The mean of what is left is E[L^2] / (2 E[L]): Cox, Renewal Theory, section 5.4.
    left = np.mean([rest.at(q) for q in (np.arange(4000) + 0.5) / 4000])
    assert rest.area_h[-1] == pytest.approx(2.5, rel=0.01)
    assert left == pytest.approx((drawn**2).mean() / (2 * drawn.mean()), rel=0.08)


def test_what_is_left_of_a_constant_length_is_uniform() -> None:
    rest = Hazard("constant", 3.0).remainder()
    assert [rest.at(q) for q in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0, 0.75, 1.5, 3.0], abs=1e-3)


@given(HOURS, st.integers(-3 * DAY, 3 * DAY), st.floats(0, 200))
@settings(max_examples=80, deadline=None)
def test_a_clock_reads_what_it_was_asked_to_wait_for(hours, now, wait):
    day = Day(hours)
    after = day.after(now, wait)
    told = day.told_h(np.array([now, after]))
    assert after > now
    assert told[1] - told[0] == pytest.approx(wait, abs=1e-8 + 10 / HOUR)


@given(HOURS)
@settings(max_examples=30, deadline=None)
def test_a_clock_goes_on_by_the_same_every_day(hours):
    day = Day(hours)
    times = np.array([-DAY, 0, DAY, 2 * DAY])
    assert np.diff(day.told_h(times)) == pytest.approx([sum(hours)] * 3)


@EVERY_LAW
def test_clients_are_online_for_their_share_at_every_instant(name: str, shape: float) -> None:
    law = {"law": name, "shape": shape}
    trace = made({"on": law | {"mean": "1h"}, "off": law | {"mean": "3h"}}, clients=700, days=0.5)
    spans = trace.spans("online")
    for t in (0, HOUR // 2, 3 * HOUR, 11 * HOUR):
        share = ((spans.start_us <= t) & (t < spans.end_us)).sum() / 700
        assert share == pytest.approx(0.25, abs=4.5 * math.sqrt(0.25 * 0.75 / 700)), t


def test_constant_lengths_are_constant() -> None:
    trace = made({"on": {"law": "constant", "mean": "2h"}, "off": {"law": "constant", "mean": "3h"}})
    spans = trace.spans("online")
    whole = (spans.start_us > 0) & (spans.end_us < trace.horizon_us)
    assert whole.sum() > 300
    assert set((spans.end_us - spans.start_us)[whole].tolist()) == {2 * HOUR}


def test_hours_move_the_wave_and_repeat_from_the_first_day_on() -> None:
    come = [4.0] * 6 + [0.2] * 18
    trace = made({"on": {"mean": "30min"}, "off": {"mean": "2h"}, "coming": come}, clients=600, days=3)
    spans = trace.spans("online")
    days = []
    for day in range(3):
        times = np.arange(24) * HOUR + HOUR // 2 + day * DAY
        days.append([((spans.start_us <= t) & (t < spans.end_us)).sum() / 600 for t in times])
    shares = np.array(days)
    assert shares[:, 2:6].min() > 4 * shares[:, 12:24].max()
    assert np.abs(shares[0] - shares[2]).max() < 0.09


def test_clients_with_a_spread_differ() -> None:
    same, differ = (
        online_share(made({"on": {"mean": "20min", "spread": s}, "off": {"mean": "40min"}}, clients=150))
        for s in (0.0, 1.0)
    )
    assert differ.std() > 3 * same.std()


def test_factors_correlate_as_asked() -> None:
    options = {"on": {"mean": "10min", "spread": 1.0}, "off": {"mean": "10min", "spread": 1.0}}
    alike, apart = (
        online_share(made(options | {"spread_correlation": c}, clients=150)).std() for c in (0.99, -0.99)
    )
    assert apart > 3 * alike  # long spells online go with long ones offline, or with short ones


def test_always_and_never_are_shares_of_clients() -> None:
    share = online_share(made({"always": 0.2, "never": 0.3, "on": {"mean": "10min"}}, clients=600))
    assert (share == 1).mean() == pytest.approx(0.2, abs=0.07)
    assert (share == 0).mean() == pytest.approx(0.3, abs=0.1)
    assert online_share(made({"always": 1.0})).min() == 1
    assert online_share(made({"never": 1.0})).max() == 0


def test_speeds_correlate_and_only_those_modelled_are_written() -> None:
    devices = {"compute_downlink": -0.6, "compute_uplink": -0.3, "downlink_uplink": 0.7}
    trace = made({"devices": devices}, clients=1000, days=0.01)
    logs = np.log([trace.spans(kind).value for kind in ("compute", "downlink", "uplink")])
    found = np.corrcoef(logs)
    assert [found[0, 1], found[0, 2], found[1, 2]] == pytest.approx([-0.6, -0.3, 0.7], abs=0.1)
    some = made({"devices": {"modelled": ["uplink"]}}, clients=3)
    assert [len(some.spans(kind).client) for kind in ("compute", "downlink", "uplink")] == [0, 0, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coming": [1.0] * 23}, "'coming': expected 24 numbers or none, found 23"),
        ({"leaving": [0.0] * 24}, "leaving.0"),
        ({"always": 0.6, "never": 0.6}, "'never'"),
        ({"on": {"law": "weibul"}}, "on.law"),
        ({"on": {"mean": "soon"}}, "'on.mean': expected a duration"),
        ({"on": {"spred": 1}}, "did you mean 'spread'?"),
        ({"off": {"law": "weibull", "shape": 0.001}}, "'off.shape': a weibull law of shape 0.001"),
        ({"on": {"law": "lognormal", "shape": 100}}, "'on.shape': a lognormal law of shape 100"),
        ({"spread_correlation": 2.0}, "'spread_correlation'"),
        (
            {"devices": {"compute_downlink": 0.9, "compute_uplink": 0.9, "downlink_uplink": -0.9}},
            "no three quantities",
        ),
        ({"devices": {"modelled": ["disk"]}}, "devices.modelled"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(options)
    assert message in str(caught.value)
