"""The numbers and the picture of a trace."""

import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.analysis.plots.availability import availability_picture
from fedsim.analysis.plots.class_hours import class_hours_picture, extremes
from fedsim.analysis.plots.world_spread import bandwidths, speeds, spell_lengths
from fedsim.analysis.worlds.facts import client_facts, world_facts
from fedsim.analysis.worlds.summary import (
    class_hours,
    gap_lengths_us,
    hours_online,
    online_raster,
    online_share,
    summarize_world,
)
from fedsim.worlds.trace import Trace


def online(rows, clients, horizon_us):
    columns = list(zip(*rows, strict=True)) if rows else [[]] * 3
    return Trace.of(*columns, "online", clients=clients, horizon_us=horizon_us)


@st.composite
def bits(draw):
    clients, horizon = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    line = st.lists(st.booleans(), min_size=horizon, max_size=horizon)
    return np.array([draw(line) for _ in range(clients)])


def trace_of(table):
    rows = [(int(c), int(t), int(t) + 1) for c, t in np.argwhere(table)]
    return online(rows, *table.shape)


@given(bits(), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_shares_are_means_over_clients_and_time(table, bins):
    fine = np.repeat(table, bins, axis=1).reshape(len(table), bins, -1).mean(axis=2)
    trace = trace_of(table)
    assert online_share(trace, bins) == pytest.approx(fine.mean(axis=0), abs=1e-9)
    order = np.argsort(-table.mean(axis=1), kind="stable")
    assert online_raster(trace, len(table), bins) == pytest.approx(fine[order], abs=1e-9)
    assert online_raster(trace, 1, bins)[0] == pytest.approx(fine.mean(axis=0), abs=1e-9)


@given(bits())
@settings(max_examples=40, deadline=None)
def test_the_summary_agrees_with_counting(table):
    told = summarize_world(trace_of(table))
    edges = np.diff(np.pad(table.astype(int), ((0, 0), (1, 1))), axis=1)
    lengths = np.argwhere(edges == -1)[:, 1] - np.argwhere(edges == 1)[:, 1]
    assert told.online_mean == pytest.approx(table.mean())
    assert told.never_online == (~table.any(axis=1)).sum()
    assert told.intervals["online"] == table.sum()
    if len(lengths):
        assert told.session_quartiles_us.tolist() == np.quantile(lengths, (0.25, 0.5, 0.75)).tolist()
    else:
        assert np.isnan(told.session_quartiles_us).all()


def test_gaps_are_between_sessions_of_the_same_client():
    told = summarize_world(online([(0, 0, 10), (0, 14, 20), (1, 50, 60), (1, 60, 70)], 2, 100))
    assert told.gap_quartiles_us.tolist() == [4, 4, 4]


def test_a_speed_that_changes_counts_with_its_time():
    rows = [(0, 0, 75, "uplink", 4.0), (0, 75, 100, "uplink", 8.0), (1, 0, 10, "uplink", 7.0)]
    told = summarize_world(Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=100))
    assert told.speed_quartiles["uplink"].tolist() == [5.5, 6.0, 6.5]
    assert set(told.speed_quartiles) == {"uplink"}


def test_faults_are_counted():
    rows = [(0, 0, 10, "fault", 1.0), (1, 5, 15, "fault", 1.0)]
    told = summarize_world(Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=100))
    assert (told.faults, told.fault_share) == (2, 0.1)


@pytest.mark.parametrize("rows", [[], [(0, 0, 1)], [(0, 0, 86_400_000_000), (1, 5, 6)]], ids=len)
def test_the_picture_can_be_drawn_and_is_told_in_words(rows):
    picture = availability_picture(online(rows, 3, 86_400_000_000 if len(rows) == 2 else 1), title="a < b")
    buffer = io.BytesIO()
    picture.figure.savefig(buffer, format="png")
    assert len(buffer.getvalue()) > 1000
    assert "of 3" in picture.alt


HOUR = 3_600_000_000


def test_laps_of_a_clients_own_count_up_to_the_horizon():
    loop = Trace.of(0, 2, 4, "online", clients=2, horizon_us=24, periods={"online": np.array([6, 0])})
    told = summarize_world(loop)
    assert told.online_mean == pytest.approx(8 / 48)
    assert told.session_quartiles_us.tolist() == [2, 2, 2]
    assert gap_lengths_us(loop).tolist() == [4, 4, 4]
    assert told.periods["online"][0] == 1
    assert told.periods["online"][1].tolist() == [6, 6, 6]
    assert told.intervals["online"] == 1
    assert (online_share(loop, 24) > 0).sum() == 8


def test_a_gap_of_which_something_is_unknown_is_no_gap():
    rows = [
        (0, 0, 1, "online"),
        (0, 5, 6, "online"),
        (0, 9, 10, "online"),
        (1, 0, 20, "unknown"),
        (0, 8, 9, "unknown"),
    ]
    trace = Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=20)
    assert gap_lengths_us(trace).tolist() == [4]
    found = summarize_world(trace)
    assert (found.unknown_share, found.unknown_clients, found.never_online) == (21 / 40, 1, 0)


@given(st.integers(0, 23), st.sets(st.integers(0, 47), max_size=30))
@settings(max_examples=50, deadline=None)
def test_hours_of_the_day_agree_with_counting(origin_h, hours):
    trace = Trace.of(
        [0] * len(hours),
        [h * HOUR for h in sorted(hours)],
        [(h + 1) * HOUR for h in sorted(hours)],
        "online",
        clients=2,
        horizon_us=48 * HOUR,
        origin=f"2024-01-01T{origin_h:02d}:00:00",
    )
    counted = np.bincount([(h + origin_h) % 24 for h in hours], minlength=24) / 2
    assert hours_online(trace) == pytest.approx(np.array([counted, np.zeros(24)]))


def test_a_class_is_online_where_its_samples_are():
    trace = online([(0, 0, 6 * HOUR), (1, 3 * HOUR, 12 * HOUR)], 3, 12 * HOUR)
    shares = class_hours(trace, np.array([[4, 1, 0], [0, 3, 0]]))
    assert shares[0, :12].tolist() == [1] * 6 + [0] * 6
    assert shares[1, :12].tolist() == [0.25] * 3 + [1] * 3 + [0.75] * 6
    assert np.isnan(shares[:, 12:]).all()
    assert np.isnan(shares[2]).all()
    assert extremes(shares).startswith("Class 1 is online most, 68.8 %")
    assert drawn(class_hours_picture(shares)) > 1000
    assert extremes(shares[2:]) == "No class has samples."


def drawn(picture):
    buffer = io.BytesIO()
    picture.figure.savefig(buffer, format="png")
    return len(buffer.getvalue())


@pytest.mark.parametrize("values", [(1.0, 1.0), (1e-4, 1e7), (0.5, 0.8)])
def test_distributions_can_be_drawn_of_any_values(values):
    rows = [(c, 0, 10, kind, v) for kind in ("compute", "uplink") for c, v in enumerate(values)]
    rows += [(0, 0, 10, "online", 1.0), (1, 0, 2, "online", 1.0), (1, 6, 7, "online", 1.0)]
    trace = Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=10)
    for picture in (spell_lengths(trace), speeds(trace), bandwidths(trace)):
        assert drawn(picture) > 1000
    assert "uplink: median" in bandwidths(trace).alt
    assert "downlink" not in bandwidths(trace).alt


def test_what_is_not_modelled_is_not_drawn():
    empty = online([], 2, 10)
    assert (speeds(empty), bandwidths(empty)) == (None, None)
    assert "there are none" in spell_lengths(empty).alt
    assert drawn(spell_lengths(empty)) > 1000


def test_facts_are_told_by_their_kind():
    about = pa.table(
        {
            "id": [f"c{i}" for i in range(9)],
            "region": ["x"] * 5 + ["y"] * 3 + [None],
            "many": list("aabbccdde"),
            "score": [float(i) for i in range(8)] + [None],
            "empty": pa.nulls(9),
        }
    )
    trace = Trace.of([], [], [], "online", clients=9, horizon_us=10, about=about, source="x" * 999)
    assert dict(client_facts(trace)) == {
        "id": "9 different, such as c0",
        "region": "x (5), y (3), 1 missing",
        "many": "a (2), b (2), c (2), d (2), e (1)",
        "score": "0 to 7, median 3.5, 1 missing",
        "empty": "nothing known",
    }
    rows = dict(world_facts(trace))
    assert rows["source"].endswith("... (999 letters; the file and its page have them all)")
    assert rows["fact empty"] == "nothing known"
