"""FLGo's modes against their formulas, worked out here once more."""

import math

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.runs.build import prepare
from fedsim.worlds.client_statistics import time_us
from fedsim.worlds.world import World
from made_worlds import HOUR, durations, made
from small import small

FACTS = {
    "n_samples": [5, 50, 500, 20],
    "min_label": [0, 3, 7, 9],
    "max_label": [9, 4, 8, 9],
    "n_labels": [10, 2, 2, 1],
    "labels": [10, 10, 10, 10],
}
MINUTE = 60 * US
ROUNDS = 480
N = np.array(FACTS["n_samples"], dtype=float)


def shares(options, facts=FACTS, seed=1):
    """Return [rounds, clients] who is online, in rounds of a minute."""
    n = len(facts["n_samples"]) if facts else 4
    trace = made(
        "flgo", {"round": "1min"} | options, clients=n, horizon_us=ROUNDS * MINUTE, facts=facts, seed=seed
    )
    world = World(trace)
    return np.array([world.online(r * MINUTE) for r in range(ROUNDS)])


def assert_probabilities(found, expected):
    error = 4.5 * np.sqrt(np.maximum(expected * (1 - expected), 1e-4) / len(found))
    assert (np.abs(found.mean(axis=0) - expected) < error).all(), (found.mean(axis=0), expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"availability": "HOMO"}, np.full(4, 0.8)),
        ({"availability": "YMF"}, 0.1 * np.array([0, 3, 7, 9]) / 9 + 0.9),
        ({"availability": "YMF", "beta": 1.0}, np.array([0, 3, 7, 9]) / 9),
        ({"availability": "YFF", "beta": 0.9}, 0.9 * np.array([1, 0.2, 0.2, 0.1]) + 0.1),
        ({"availability": "MDF", "beta": 0.5}, np.sqrt(N / 500)),
        ({"availability": "LDF"}, np.sqrt(5 / N)),
        (
            {"availability": "MDF", "beta": 0.99, "formula": "docstring"},
            np.tanh(-N * math.log(0.99)) / np.tanh(-500 * math.log(0.99)),
        ),
        ({"availability": "LDF", "beta": 0.003, "formula": "docstring"}, (1 - 0.003) ** (500 - N)),
        ({"availability": "MDF"}, (N / 500) ** 1e-4),
    ],
)
def test_probabilities_are_those_of_the_formulas(options, expected):
    assert_probabilities(shares(options), expected)


def test_label_cycles_follow_the_round():
    found = shares({"availability": "YC", "beta": 1.0})
    for r in range(48):
        turn = (1 + r % 24) / 24 * 9
        expected = [
            low <= turn <= high for low, high in zip(FACTS["min_label"], FACTS["max_label"], strict=True)
        ]
        assert found[r].tolist() == expected


def test_log_normal_probabilities_are_relative_to_the_greatest():
    n, sigma = 300, -math.log(1 - 0.3 - 1e-6)
    facts = {"n_samples": np.ones(n)}
    found = shares({"availability": "LN", "beta": 0.3}, facts).mean(axis=0)
    assert found.max() == 1.0
    logs = np.log(found[found > 0])
    assert logs.std() == pytest.approx(sigma, rel=0.2)


def test_the_sine_goes_through_its_24_points():
    n = 400
    options = {"availability": "SLN", "beta": 0.0, "federation": n}
    facts = {"n_samples": np.ones(n)}
    by_phase = shares(options, facts).reshape(-1, 24, n).mean(axis=(0, 2))
    assert by_phase == pytest.approx(0.4 * np.sin(np.linspace(0, 2 * np.pi, 24)) + 0.5, abs=0.03)


def test_everybody_is_always_there_in_the_ideal_world():
    trace = made("flgo", {}, clients=3)
    assert len(trace.table) == 3
    assert World(trace).unmodelled == ("compute", "downlink", "uplink")
    assert World(trace).online(5 * HOUR).all()


def test_availability_changes_with_rounds_or_with_units():
    options = {"availability": "HOMO", "beta": 0.5, "round": "1h", "unit": "1min"}
    fixed, free = (made("flgo", options | {"roundwise": yes}, horizon_us=10 * HOUR) for yes in (True, False))
    assert (fixed.spans("online").start_us % HOUR == 0).all()
    assert durations(free, "online").mean() == pytest.approx(2 * MINUTE, rel=0.1)


def test_log_normal_latencies_have_their_mean_and_variance():
    options = {"responsiveness": "LN", "latency_var": 400.0, "job_samples": 50, "unit": "1s"}
    units = made("flgo", options, clients=3000, horizon_us=US).spans("compute").value * 50
    assert units == pytest.approx(np.round(units))
    assert units.mean() == pytest.approx(99.5, abs=2)
    assert units.std() == pytest.approx(20, rel=0.07)


def test_uniform_latencies_leave_out_their_upper_end():
    options = {"responsiveness": "UNI", "latency_max": 3, "job_samples": 1, "unit": "1s"}
    found = made("flgo", options, clients=300, horizon_us=US).spans("compute").value
    assert set(np.round(found, 6).tolist()) == {0.0, 1.0, 2.0}


def test_an_epoch_over_its_own_data_takes_a_client_its_latency():
    options = {"responsiveness": "LN", "latency_var": 0.0, "unit": "1s"}
    trace = made("flgo", options, clients=4, horizon_us=HOUR, facts=FACTS)
    assert trace.spans("compute").value * N == pytest.approx(np.full(4, 100.0), abs=1.01)


@pytest.mark.parametrize("mode", ["YMF", "YFF", "YC", "MDF", "LDF"])
def test_modes_that_need_data_say_so(mode):
    with pytest.raises(
        ConfigError, match=r"needs the fact '\w+' about each client's data: use it in a run's"
    ):
        made("flgo", {"availability": mode})


def test_labels_are_those_of_training_and_validation():
    """As in FLGo's code; sizes are those of training alone. The world asks for the facts of 20 clients of a run."""
    config = small(
        task={"name": "digits", "clients": 20},
        partition={"name": "dirichlet", "alpha": 0.1},
        world={
            "scenario": "flgo",
            "options": {"availability": "YFF", "beta": 0.9, "round": "1min"},
            "horizon": "200h",
        },
    )
    built = prepare(config)
    y = built.data.y
    labels = [
        len({*y[built.data.training_rows(k)].tolist(), *y[built.data.valid.rows(k)].tolist()})
        for k in range(20)
    ]
    online = time_us(built.trace.spans("online"), 20) / built.trace.horizon_us
    np.testing.assert_allclose(online, 0.9 * np.array(labels) / 10 + 0.1, atol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"availability": "LN"}, "'federation': expected the number of clients over which the maximum"),
        ({"availability": "LN", "federation": 4}, "'federation': expected at least 5, the number of clients"),
        ({"availability": "LN", "beta": 1.0}, "'beta': expected a number from 0 to 0.999"),
        ({"availability": "HOMO", "beta": 2}, "'beta': expected a number from 0 to 1, found 2"),
        ({"availability": "HOM"}, "option 'availability'"),
        ({"responsiveness": "UNI", "latency_max": 0}, "'latency_max': expected a number from 1"),
        ({"responsiveness": "LN", "job_samples": 0}, "'job_samples'"),
        ({"responsiveness": "LN", "job_samples": 9, "devices": {}}, "both say how fast clients are"),
        ({"availability": "HOMO", "round": "0s"}, "'round': expected at least 1 us"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        made("flgo", options)
