"""The numbers and the picture of a trace."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.plots.availability import availability
from analysis.worlds import online_raster, online_share, summarize
from fedsim.trace import Trace


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
    told = summarize(trace_of(table))
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
    told = summarize(online([(0, 0, 10), (0, 14, 20), (1, 50, 60), (1, 60, 70)], 2, 100))
    assert told.gap_quartiles_us.tolist() == [4, 4, 4]


def test_a_speed_that_changes_counts_with_its_time():
    rows = [(0, 0, 75, "uplink", 4.0), (0, 75, 100, "uplink", 8.0), (1, 0, 10, "uplink", 7.0)]
    told = summarize(Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=100))
    assert told.speed_quartiles["uplink"].tolist() == [5.5, 6.0, 6.5]
    assert set(told.speed_quartiles) == {"uplink"}


def test_faults_are_counted():
    rows = [(0, 0, 10, "fault", 1.0), (1, 5, 15, "fault", 1.0)]
    told = summarize(Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=100))
    assert (told.faults, told.fault_share) == (2, 0.1)


@pytest.mark.parametrize("rows", [[], [(0, 0, 1)], [(0, 0, 86_400_000_000), (1, 5, 6)]], ids=len)
def test_the_picture_can_be_drawn_and_is_told_in_words(rows):
    picture = availability(online(rows, 3, 86_400_000_000 if len(rows) == 2 else 1), title="a < b")
    buffer = io.BytesIO()
    picture.figure.savefig(buffer, format="png")
    assert len(buffer.getvalue()) > 1000
    assert "of 3" in picture.alt
