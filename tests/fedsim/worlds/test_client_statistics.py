"""What sets the clients of a world apart."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from fedsim.common.units import HOUR_US
from fedsim.worlds.client_statistics import bandwidth, night_share, trait
from fedsim.worlds.trace import Trace

H = HOUR_US


def world(rows, clients=2, horizon_us=100, **facts):
    return Trace.of(*zip(*rows, strict=True), clients=clients, horizon_us=horizon_us, **facts)


def test_shares_and_speeds_by_hand():
    rows = [
        (0, 0, 30, "online", 1.0),
        (1, 0, 5, "online", 1.0),
        (0, 0, 100, "compute", 0.5),
        (1, 0, 50, "compute", 0.1),
        (1, 50, 100, "compute", 0.3),
        (0, 0, 100, "downlink", 8.0),
        (1, 0, 10, "downlink", 2.0),
        (0, 0, 100, "uplink", 2.0),
        (1, 0, 10, "uplink", 0.5),
        (1, 90, 100, "fault", 1.0),
    ]
    found = world(rows, periods={"online": np.array([0, 10])}, about=pa.table({"tier": [3, None]}))
    assert trait(found, "availability").tolist() == [0.3, 0.5]
    assert trait(found, "compute") == pytest.approx([2, (10 + 10 / 3) / 2])
    assert trait(found, "downlink").tolist() == [8, 2]
    assert trait(found, "faults").tolist() == [0, 0.1]
    assert bandwidth(found) == pytest.approx([4, 1])
    assert trait(found, "tier")[0] == 3
    assert np.isnan(trait(found, "tier")[1])


@given(
    st.lists(st.integers(0, 72), min_size=2, max_size=8, unique=True),
    st.integers(0, 23),
    st.integers(0, 23),
    st.integers(0, 23),
)
@settings(max_examples=80, deadline=None)
def test_the_share_of_nights_agrees_with_counting_hours(cuts, start, end, origin_h):
    cuts = sorted(cuts)[: len(cuts) // 2 * 2]
    sessions = list(zip(cuts[::2], cuts[1::2], strict=True))
    rows = [(0, a * H, b * H, "online", 1.0) for a, b in sessions]
    found = world(rows, horizon_us=72 * H, origin=f"2024-03-01T{origin_h:02d}:00:00")
    hours = [(t + origin_h) % 24 for a, b in sessions for t in range(a, b)]
    length = (end - start) % 24 or 24
    share = np.mean([(h - start) % 24 < length for h in hours])
    assert night_share(found, (start, end))[0] == pytest.approx(share)
    assert np.isnan(night_share(found, (start, end))[1])


def test_nights_of_a_client_with_a_lap_of_its_own():
    found = world([(0, 0, 3 * H, "online", 1.0)], horizon_us=24 * H, periods={"online": np.array([6 * H, 0])})
    assert night_share(found, (0, 6))[0] == pytest.approx(0.25)
    assert night_share(found, (22, 2))[0] == pytest.approx(2 / 12)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("compute", "does not model 'compute'"),
        ("availabilty", "no property 'availabilty' of the world's clients; did you mean 'availability'"),
        ("tear", "did you mean 'tier'"),
        ("region", "column 'region' of its facts is not numeric"),
    ],
)
def test_unknown_properties_are_refused(name, message):
    about = pa.table({"tier": [1, 2], "region": ["a", "b"]})
    with pytest.raises(ConfigError, match=message):
        trait(world([(0, 0, 5, "online", 1.0)], about=about), name)
