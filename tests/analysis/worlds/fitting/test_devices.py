"""Speeds and faults of a trace as options of the scenario `fitted`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.analysis.worlds.fitting.devices import device_options, duration_text
from fedsim.common.units import US, duration_us
from fedsim.scenarios.fitted import FittedDevices
from fedsim.worlds.trace import MODELLED, Trace


def with_speeds(rows: list[tuple[int, str, float]], clients: int) -> Trace:
    client, kinds, values = zip(*rows, strict=True)
    start, end = [0] * len(rows), [9] * len(rows)
    return Trace.of(client, start, end, kinds, values, clients=clients, horizon_us=9)


@given(st.integers(0, 10**6))
def test_speeds_of_three_clients_have_correlations_that_are_possible(seed):
    logs = np.random.default_rng(seed).normal(size=(3, 3))
    rows = [(c, kind, float(np.exp(logs[c, k]))) for c in range(3) for k, kind in enumerate(MODELLED)]
    found = device_options(with_speeds(rows, 3))
    FittedDevices(**found)
    assert found["compute_uplink"] == pytest.approx(np.corrcoef(logs[:, 0], logs[:, 2])[0, 1], abs=0.06)


def test_correlations_of_different_clients_are_made_possible():
    pairs = [("compute", "downlink", 1), ("compute", "uplink", 1), ("downlink", "uplink", -1)]
    rows = [
        (4 * i + c, kind, value)
        for i, (one, other, sign) in enumerate(pairs)
        for c in range(4)
        for kind, value in ((one, 2.0**c), (other, 2.0 ** (sign * c)))
    ]
    found = device_options(with_speeds(rows, 12))
    FittedDevices(**found)
    assert found["compute_downlink"] == found["compute_uplink"] == -found["downlink_uplink"] == 0.5


@given(st.floats(1e-3 / 3600, 1e4))
def test_durations_are_read_back_as_they_were_written(hours):
    assert duration_us(duration_text(hours)) == pytest.approx(hours * 3600 * US, rel=1e-4, abs=1)
