"""Regions that fail together."""

import numpy as np
import pytest

from fedsim.common.errors import ConfigError
from fedsim.worlds.world import World
from made_worlds import DAY, HOUR, NO_FAULTS, made, online_share

STEADY = {"mean_off": 0, "outage_every": "4h", "outage_length": "1h", "hit_share": 0.8, "devices": NO_FAULTS}
"""Clients that leave for nothing but outages: regions are down for a fifth of the time."""


def snapshots(options, clients, days=2):
    trace = made("correlated_outage", options, clients=clients, horizon_us=days * DAY)
    world, region = World(trace), trace.about.column("region").to_numpy()
    return np.array([world.online(t) for t in range(0, days * DAY, 4 * HOUR)]), region


def test_the_share_online_is_that_of_theory_from_the_start_on():
    online, _ = snapshots(STEADY | {"regions": 400}, 1200)
    assert online.mean() == pytest.approx(1 - 0.8 * 0.2, abs=0.02)
    assert online[0].mean() == pytest.approx(1 - 0.8 * 0.2, abs=0.07)


def test_clients_of_a_region_fail_together_and_those_of_others_do_not():
    online, region = snapshots(STEADY | {"regions": 300}, 900)
    first, second = np.triu_indices(900, 1)
    together = (online[:, first] & online[:, second]).mean(axis=0)
    same = region[first] == region[second]
    p = 1 - 0.8 * 0.2
    assert together[same].mean() == pytest.approx(0.8 + 0.2 * 0.2**2, abs=0.03)
    assert together[~same].mean() == pytest.approx(p * p, abs=0.02)


def test_an_outage_that_hits_all_empties_a_region():
    options = STEADY | {"regions": 1, "hit_share": 1.0}
    online, _ = snapshots(options, 30)
    assert set(online.mean(axis=1)) <= {0.0, 1.0}


def test_clients_that_come_back_during_an_outage_wait_for_its_end():
    options = {"regions": 1, "hit_share": 1.0, "mean_on": "1min", "mean_off": "1min", "devices": NO_FAULTS}
    trace = made("correlated_outage", options, clients=40)
    spans = trace.spans("online")
    there = np.zeros(DAY // (60 * 10**6), dtype=int)
    for start, end in zip(spans.start_us // (60 * 10**6), spans.end_us // (60 * 10**6), strict=True):
        there[start : end + 1] += 1
    longest_empty = max(len(run) for run in "".join("0" if n else "1" for n in there).split("0"))
    assert longest_empty >= 10


def test_without_hits_it_is_plain_churn():
    options = {"hit_share": 0.0, "mean_on": "1h", "mean_off": "3h"}
    assert online_share(made("correlated_outage", options, clients=600)) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regions": 0}, "'regions': expected a number from 1 to 10000, found 0"),
        ({"hit_share": 2}, "'hit_share': expected a number from 0 to 1"),
        ({"outage_every": 0}, "'outage_every': expected at least 1 us"),
        ({"outage_lenght": "1h"}, "did you mean 'outage_length'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        made("correlated_outage", options)
