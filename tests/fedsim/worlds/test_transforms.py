"""Reshaped worlds against a table of every client at every instant."""

import json
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import TraceError
from fedsim.common.rng import rng
from fedsim.worlds import interval_arithmetic as spans
from fedsim.worlds.trace import KINDS, Trace
from fedsim.worlds.transforms import crop, ending, kept_online, resample, scale, select, shift, tile
from fedsim.worlds.world import World
from worlds_by_hand import behaviour, worlds

quick = settings(max_examples=50, deadline=None)
repeating = worlds(after_end="repeat")


@given(worlds(), st.data())
@quick
def test_a_crop_does_what_the_world_did_from_its_start_on(world, data):
    start = data.draw(st.integers(0, world.horizon_us - 1))
    end = data.draw(st.integers(start + 1, world.horizon_us))
    part = crop(world, start, end)
    assert part.horizon_us == end - start
    assert (behaviour(part, end - start) == behaviour(world, end)[:, :, start:]).all()


@given(repeating, st.data())
@quick
def test_laps_of_their_own_go_on_after_a_crop(world, data):
    start = data.draw(st.integers(0, world.horizon_us - 1))
    part = crop(world, start, world.horizon_us)
    kept = [(k, c) for k in world.periods for c in np.flatnonzero(part.period_us(k)).tolist()]
    before, after = behaviour(world, 90 + start)[:, :, start:], behaviour(part, 90)
    for kind, client in kept:
        k = ("online", "compute", "downlink", "uplink", "fault").index(kind)
        assert part.period_us(kind)[client] == world.period_us(kind)[client]
        assert (before[k, client] == after[k, client]).all()


@given(repeating, st.integers(-50, 50))
@quick
def test_a_shift_moves_everything_round_the_lap(world, by):
    moved, far = shift(world, by), 60
    late, early = (moved, world) if by >= 0 else (world, moved)
    assert (behaviour(late, far + abs(by))[:, :, abs(by) :] == behaviour(early, far)).all()
    back = shift(moved, -by)
    assert (behaviour(back, far) == behaviour(world, far)).all()


@given(repeating, st.integers(1, 30), st.integers(0, 5))
@quick
def test_a_random_shift_is_one_shift_for_each_client(world, spread, seed):
    moved, far = shift(world, 0, spread, seed), 50
    after = behaviour(moved, far + spread)
    for client in range(world.clients):
        before = behaviour(select(world, [client]), far)[:, 0]
        assert any((after[:, client, d : d + far] == before).all() for d in range(spread))
    assert moved.table == shift(world, 0, spread, seed).table


def test_a_shift_and_a_spread_may_be_as_long_as_durations_are():
    world = Trace.of(range(9), [0] * 9, [1] * 9, "online", clients=9, horizon_us=1000, after_end="repeat")
    most = 9 * 10**18
    own = rng(4, "shift").integers(0, most, 9).tolist()
    moved = shift(world, most, most, seed=4)
    assert moved.spans("online").start_us.tolist() == [(most + draw) % 1000 for draw in own]


@given(repeating, st.integers(1, 3))
@quick
def test_a_tiled_world_is_the_same_without_periods(world, laps):
    written = tile(world, laps)
    assert written.horizon_us == laps * world.horizon_us
    assert not written.periods
    assert (behaviour(written, written.horizon_us) == behaviour(world, written.horizon_us)).all()


@given(worlds(after_end="stop"))
@quick
def test_a_world_that_stops_is_tiled_once(world):
    assert (behaviour(tile(world), 40) == behaviour(world, 40)).all()


@given(worlds(), st.integers(1, 4))
@quick
def test_stretching_time_by_a_whole_number_repeats_every_instant(world, factor):
    slow = scale(world, time=factor)
    far = 2 * world.horizon_us
    assert (behaviour(slow, factor * far) == np.repeat(behaviour(world, far), factor, axis=2)).all()
    assert scale(slow, time=Fraction(1, factor)).table == world.table


@given(worlds(), st.fractions(1, 7, max_denominator=9))
@quick
def test_any_stretch_gives_a_sound_world_with_rounded_times(world, factor):
    slow = scale(world, time=factor)
    for kind in ("online", "uplink"):
        exact = {(int(c), round_half_up(int(t) * factor)) for c, t in starts(world, kind)}
        assert set(starts(slow, kind)) <= exact


@given(worlds(), st.data())
@quick
def test_clients_are_kept_online_until_the_horizon_and_nothing_else_changes(world, data):
    longest = (3 if world.after_end == "repeat" else 1) * world.horizon_us
    start, until = data.draw(st.integers(0, longest)), data.draw(st.integers(0, 2 * longest))
    ids = data.draw(st.lists(st.integers(0, world.clients - 1), min_size=1, unique=True))
    kept = kept_online(world, ids, start, until)
    end = kept.horizon_us
    assert end == world.horizon_us if world.after_end != "repeat" else end >= max(start + 1, until)
    expected = behaviour(world, end)
    for kind, value in (("online", 1), ("fault", 0), ("unknown", 0)):
        expected[KINDS.index(kind), ids, start:] = value
    assert (behaviour(kept, end) == expected).all()


def starts(world, kind):
    found = world.spans(kind)
    return list(zip(found.client.tolist(), found.start_us.tolist(), strict=True))


def round_half_up(x):
    return (2 * x.numerator + x.denominator) // (2 * x.denominator)


@given(st.integers(0, 10**15), st.fractions(Fraction(1, 10**6), 1000, max_denominator=10**6))
@quick
def test_times_are_multiplied_exactly(time, factor):
    assert spans.times(np.array([time]), factor).tolist() == [round_half_up(time * factor)]


@given(st.integers(0, 10**10), st.fractions(10**6, 10**8, max_denominator=10**6))
@quick
def test_times_are_multiplied_exactly_by_huge_factors(time, factor):
    assert spans.times(np.array([time]), factor).tolist() == [round_half_up(time * factor)]


@given(worlds(), st.floats(0.1, 10))
@quick
def test_scaling_values_leaves_time_alone(world, factor):
    k, far = 3, world.horizon_us
    faster = scale(world, uplink=factor)
    before, after = behaviour(world, far), behaviour(faster, far)
    assert after[k] == pytest.approx(factor * before[k])
    assert (np.delete(after, k, axis=0) == np.delete(before, k, axis=0)).all()


@given(worlds(), st.data())
@quick
def test_selected_clients_keep_their_lives_and_facts(world, data):
    ids = data.draw(st.lists(st.integers(0, world.clients - 1), min_size=1, max_size=6))
    chosen = select(world, ids)
    assert (behaviour(chosen, 40) == behaviour(world, 40)[:, ids]).all()
    assert chosen.about.column("id").to_pylist() == [f"c{i}" for i in ids]


@given(worlds(), st.integers(1, 9), st.integers(0, 3))
@quick
def test_resampling_draws_with_replacement_only_where_it_must(world, n, seed):
    drawn = resample(world, n, seed=seed).about.column("id").to_pylist()
    assert drawn == sorted(drawn)
    assert len(drawn) == n
    assert len(set(drawn)) == n or n > world.clients
    assert drawn == resample(world, n, seed=seed).about.column("id").to_pylist()


def test_resampling_is_uniform():
    world = Trace.of([], [], [], "online", clients=4, horizon_us=9, about=pa.table({"id": list("abcd")}))
    counts = np.unique(resample(world, 8000, seed=1).about.column("id").to_pylist(), return_counts=True)[1]
    assert counts == pytest.approx(2000, abs=4 * np.sqrt(8000 * 3 / 16))


def test_a_session_over_the_seam_stays_one_when_it_is_moved():
    world = Trace.of([0, 0], [0, 80], [10, 100], "online", clients=1, horizon_us=100, after_end="repeat")
    moved = shift(world, 30)
    assert starts(moved, "online") == [(0, 10)]
    assert World(moved).online(10).tolist() == [True]
    assert World(moved).next_change(10) == 40


def test_a_date_moves_with_the_start_of_a_crop():
    world = Trace.of(0, 0, 9, "online", clients=1, horizon_us=7_200_000_000, origin="2024-02-28T23:30:00")
    assert crop(world, 3_600_000_000, 7_200_000_000).origin == "2024-02-29T00:30:00"


def test_the_source_lists_the_steps_and_the_world_they_began_with():
    world = Trace.of(0, 0, 9, "online", clients=1, horizon_us=9, source="by hand")
    source = json.loads(scale(crop(ending(world, "repeat"), 1, 8), time=2).source)
    steps = [next(iter(step)) for step in source["edits"]]
    assert steps == ["after_end", "crop", "scale"]
    assert source["of"]["digest"] == world.digest()
    assert source["of"]["source"] == "by hand"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: crop(w, 5, 5), "crop: expected a part of"),
        (lambda w: crop(w, 0, 10), "crop: expected a part of"),
        (lambda w: shift(w, 3), "expected a world that repeats, found after_end 'stop'"),
        (lambda w: shift(ending(w, "repeat"), 0, -1), "a spread of at least 0"),
        (lambda w: tile(w, 2), "1 unless the world repeats"),
        (lambda w: tile(w, 0), "expected 1 lap or more"),
        (lambda w: tile(ending(w, "repeat"), 10**18), "tile: clients x horizon_us: 2 x 9"),
        (lambda w: scale(w, time=0), "factor for time of at least 1e-06, found 0"),
        (lambda w: scale(w, time="1/0"), "factor for time of at least 1e-06, found 1/0"),
        (lambda w: scale(w, time=float("inf")), "factor for time of at least 1e-06, found inf"),
        (lambda w: scale(w, time=1e-9), "factor for time of at least 1e-06"),
        (lambda w: select(w, [0, 2]), "expected clients from 0 to 1, found client 2"),
        (lambda w: select(w, []), "expected clients from 0 to 1, found none"),
        (lambda w: resample(w, 3, replace=False), "at most 2 clients without replacement, found 3"),
        (lambda w: resample(w, 0), "at least 1 client, found 0"),
        (lambda w: resample(w, 10**8), "at most 50,000,000 clients and intervals, found 100,000,000 clients"),
    ],
)
def test_what_cannot_be_done_is_refused(change, message):
    world = Trace.of([0, 1], [0, 0], [9, 9], "online", clients=2, horizon_us=9, after_end="stop")
    with pytest.raises(TraceError, match=message):
        change(world)


def test_a_client_left_online_without_a_speed_is_named():
    rows = [(0, 0, 9, "online"), (1, 0, 9, "online"), (0, 0, 9, "uplink"), (1, 0, 4, "uplink")]
    world = Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=9)
    with pytest.raises(TraceError, match="client 1 is online at times but has no 'uplink' interval"):
        crop(world, 5, 9)


def test_writing_out_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(spans, "MOST_ROWS", 10)
    world = Trace.of(0, 0, 1, "online", clients=1, horizon_us=99, periods={"online": np.array([2])})
    with pytest.raises(TraceError, match="at most 10 intervals after writing loop periods out, found 50"):
        tile(world)
