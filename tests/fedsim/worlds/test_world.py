"""The world against oracles that step through every microsecond."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import US
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import LEAVES, Work, World

FAST = settings(max_examples=60, deadline=None)
S = US  # a second


@dataclass(frozen=True)
class Tiny:
    """A world written out microsecond by microsecond; `cells[kind][client][time]` is None where there is nothing."""

    clients: int
    horizon: int
    after_end: str
    cells: dict[str, list[list[int | None]]]
    cuts: frozenset[int]
    """Instants at which intervals are cut in two, so that they touch."""
    periods: dict[str, list[int]]
    """Own loop periods by kind and client; 0 for the world's."""

    def period(self, kind: str, client: int) -> int:
        return self.periods.get(kind, [0] * self.clients)[client] or self.horizon

    def cell(self, kind: str, client: int, t: int) -> int | None:
        if self.after_end == "stop" and t >= self.horizon:
            return None
        return self.cells[kind][client][t % self.period(kind, client)]

    def online(self, t: int) -> list[bool]:
        return [self.cell("online", c, t) is not None for c in range(self.clients)]

    def trace(self) -> Trace:
        rows = [
            (client, start, end, kind, seconds(kind, line[start]))
            for kind, lines in self.cells.items()
            for client, line in enumerate(lines)
            for start, end in runs(line[: self.period(kind, client)], self.cuts)
        ]
        columns = list(zip(*rows, strict=True)) if rows else [[]] * 5
        periods = {kind: np.array(each) for kind, each in self.periods.items()}
        return Trace.of(
            *columns, clients=self.clients, horizon_us=self.horizon, after_end=self.after_end, periods=periods
        )


def seconds(kind: str, cell: int) -> float:
    """Cells hold bytes per microsecond for links and microseconds per sample for compute."""
    return {"compute": cell / US, "downlink": cell * US, "uplink": cell * US}.get(kind, 1.0)


def runs(line: list[int | None], cuts: frozenset[int]) -> list[tuple[int, int]]:
    edges = [0, *(t for t in range(1, len(line)) if line[t] != line[t - 1] or t in cuts), len(line)]
    return [(a, b) for a, b in pairwise(edges) if line[a] is not None]


def lines(draw, clients, horizon, values):
    """Runs of equal cells, with gaps."""
    piece = st.tuples(st.one_of(st.none(), values), st.integers(1, horizon))
    result = []
    for _ in range(clients):
        pieces = draw(st.lists(piece, min_size=1, max_size=5))
        line = [value for value, length in pieces for _ in range(length)]
        result.append((line * horizon)[:horizon])
    return result


@st.composite
def tiny_worlds(draw, after_ends=("error", "repeat", "stop")):
    clients, horizon = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    cells = {"online": lines(draw, clients, horizon, st.just(1))}
    cells["fault"] = (
        lines(draw, clients, horizon, st.just(1)) if draw(st.booleans()) else [[None] * horizon] * clients
    )
    for kind in ("compute", "downlink", "uplink"):
        if draw(st.booleans()):
            series = lines(draw, clients, horizon, st.integers(1, 3))
            cells[kind] = [[1] * horizon if set(line) == {None} else line for line in series]
    periods = {}
    for kind in cells:
        if draw(st.integers(0, 3)) == 0:
            periods[kind] = draw(st.lists(st.integers(0, horizon), min_size=clients, max_size=clients))
            if kind in ("compute", "downlink", "uplink"):
                for line in cells[kind]:
                    line[0] = line[0] or 1
    cuts = frozenset(draw(st.lists(st.integers(1, horizon), max_size=3)))
    return Tiny(clients, horizon, draw(st.sampled_from(after_ends)), cells, cuts, periods)


@given(tiny_worlds(), st.lists(st.integers(0, 70), min_size=1, max_size=12))
@FAST
def test_online_agrees_with_every_cell_in_any_order_of_asking(tiny, times):
    world = World(tiny.trace())
    for t in times:
        if tiny.after_end == "error" and t >= tiny.horizon:
            with pytest.raises(TraceError, match="the trace ends at"):
                world.online(t)
        else:
            assert world.online(t).tolist() == tiny.online(t)


@given(tiny_worlds())
@FAST
def test_most_online_is_exact_with_one_loop_and_a_bound_with_several(tiny):
    online = [tiny.online(t) for t in range(tiny.horizon)]
    together, ever = max(map(sum, online)), sum(map(any, zip(*online, strict=True)))
    loops = [tiny.horizon if tiny.after_end == "repeat" else 0] * tiny.clients
    own = tiny.periods.get("online", loops)
    differ = len({period or loop for period, loop in zip(own, loops, strict=True)}) > 1
    assert World(tiny.trace()).most_online() == (ever if differ else together)


@pytest.mark.parametrize("after_end", ["error", "stop", "repeat"])
def test_most_online_bounds_worlds_whose_clients_loop_differently(after_end):
    """Client 0 is online in the first second of every three, client 1 in the second of two: together in a later lap."""
    columns = [[0, 1], [0, S], [S, 2 * S], ["online"] * 2, [1.0] * 2]
    for periods, expected in (([3 * S, 2 * S], 2), ([0, 0], 1), ([3 * S, 3 * S], 1)):
        trace = Trace.of(
            *columns,
            clients=2,
            horizon_us=3 * S,
            after_end=after_end,
            periods={"online": np.array(periods)},
        )
        assert World(trace).most_online() == expected


@given(tiny_worlds(after_ends=("repeat", "stop")), st.integers(0, 70))
@FAST
def test_next_change_is_the_first_instant_at_which_anything_differs(tiny, t):
    later = range(t + 1, t + 1 + 2 * tiny.horizon + 400)
    expected = next((u for u in later if tiny.online(u) != tiny.online(u - 1)), None)
    assert World(tiny.trace()).next_change(t) == expected


@given(tiny_worlds(after_ends=("error",)), st.data())
@FAST
def test_next_change_in_a_world_that_ends_with_an_error_ends_with_the_horizon(tiny, data):
    assume("online" not in tiny.periods)
    t = data.draw(st.integers(0, tiny.horizon - 1))
    later = [u for u in range(1, tiny.horizon) if tiny.online(u) != tiny.online(u - 1)]
    expected = next((u for u in later if u > t), tiny.horizon if later else None)
    assert World(tiny.trace()).next_change(t) == expected


def naive_outcome(tiny, client, t, amounts, until=None, leave="abort"):
    """Step a job through every microsecond. Returns the fields of Outcome, or None if the trace ends before the job."""
    kinds, ends, moved, phase = ("downlink", "compute", "uplink"), [], [Fraction(0)] * 3, 0
    dispatched = t
    while True:
        while phase < 3 and (moved[phase] >= amounts[phase] or kinds[phase] not in tiny.cells):
            moved[phase] = Fraction(amounts[phase])
            ends.append(t)
            phase += 1
        online = tiny.cell("online", client, t) is not None
        ended = t == until or (leave == "abort" and not online) or tiny.cell("fault", client, t) is not None
        ended = ended or (tiny.after_end == "stop" and t >= tiny.horizon)
        if phase < 3 and not ended and tiny.after_end == "error" and t >= tiny.horizon:
            return None
        if phase == 3 or ended:
            reached = [*ends, -1, -1, -1][:2] if phase < 3 else ends[:2]
            name = ("download", "compute", "upload", "")[phase]
            ok = phase == 3
            described = tiny.after_end != "error" or t < tiny.horizon
            if ok and leave == "end_instant" and not (online and described):
                ok = t > dispatched and tiny.cell("online", client, t - 1) is not None
            return (ok, t, *reached, name if ok or phase < 3 else "upload", int(moved[0]), int(moved[2]))
        speed = tiny.cell(kinds[phase], client, t)
        if speed is not None and (online or leave != "pause_resume"):
            moved[phase] += Fraction(1, speed) if phase == 1 else speed
        t += 1
        assume(t < dispatched + 3000)


class ErrorAware(Tiny):
    """Beyond the end of a world that ends with an error, cells are not to be looked at."""

    def cell(self, kind, client, t):
        if self.after_end == "error" and t >= self.horizon:
            return 1 if kind == "online" else None
        return super().cell(kind, client, t)


AMOUNTS = st.tuples(st.integers(0, 30), st.integers(0, 15), st.integers(0, 30))


@pytest.mark.parametrize("leave", LEAVES)
@given(tiny_worlds(), st.integers(0, 50), AMOUNTS, st.one_of(st.none(), st.integers(0, 60)))
@settings(max_examples=60, deadline=None)
def test_outcomes_agree_with_stepping_through_every_microsecond(leave, tiny, t, amounts, wait):
    tiny = ErrorAware(*(getattr(tiny, f.name) for f in fields(tiny)))
    if tiny.after_end == "error":
        t %= tiny.horizon
    world, until = World(tiny.trace(), leave=leave), None if wait is None else t + wait
    who = np.flatnonzero(world.online(t))
    if not len(who):
        return
    expected = [naive_outcome(tiny, int(c), t, amounts, until, leave) for c in who]
    if None in expected:
        with pytest.raises(TraceError, match="would still be running"):
            world.outcomes(who, t, Work(*amounts), until)
        return
    found = world.outcomes(who, t, Work(*amounts), until)
    names = ("", "download", "compute", "upload")
    columns = [getattr(found, f.name).tolist() for f in fields(found)]
    columns[4] = [names[p] for p in columns[4]]
    assert list(zip(*columns, strict=True)) == expected


@pytest.mark.parametrize("leave", LEAVES)
@given(
    tiny_worlds(after_ends=("repeat", "stop")), AMOUNTS, st.lists(st.integers(0, 60), min_size=1, max_size=8)
)
@FAST
def test_jobs_that_start_at_times_of_their_own_end_as_alone(leave, tiny, amounts, times):
    world = World(tiny.trace(), leave=leave)
    jobs = [(c, t) for t in times for c in np.flatnonzero(world.online(t)).tolist()]
    if not jobs:
        return
    who, when = np.array(jobs).T
    assert world.online_at(who, when).all()
    until = when + 7
    for limit in (None, until):
        try:
            found = world.outcomes(who, when, Work(*amounts), limit)
        except TraceError:  # somebody's sessions never meet a time at which the job can go on
            with pytest.raises(TraceError, match="got no further"):
                _ = [world.outcomes([client], t, Work(*amounts)) for client, t in jobs]
            return
        for i, (client, t) in enumerate(jobs):
            one = world.outcomes([client], t, Work(*amounts), None if limit is None else t + 7)
            for f in fields(found):
                assert getattr(found, f.name)[i] == getattr(one, f.name)[0]
    if leave == "abort":
        ends = world.outcomes(who, when, Work(*amounts)).end_us
        assert (ends <= np.minimum(world.leaves_us(who, when), world.fault_us(who, when))).all()


def test_a_job_of_many_for_an_offline_client_is_named():
    world = World(Trace.of([0, 1], [0, 5], [9, 9], "online", clients=2, horizon_us=9, after_end="stop"))
    with pytest.raises(ValueError, match="client 1 is offline at 3 us"):
        world.outcomes([0, 1], np.array([4, 3]), Work(0, 0, 0))


@given(tiny_worlds(after_ends=("repeat",)), st.integers(0, 40), AMOUNTS, st.randoms(use_true_random=False))
@FAST
def test_an_outcome_depends_on_neither_company_nor_order(tiny, t, amounts, random):
    world = World(tiny.trace())
    who = np.flatnonzero(world.online(t)).tolist()
    if who:
        together = world.outcomes(who, t, Work(*amounts))
        shuffled = random.sample(who, len(who))
        world.online(random.randrange(100))
        for client in shuffled:
            alone = world.outcome(client, t, Work(*amounts))
            assert alone.end_us == together.end_us[who.index(client)]
            assert alone.ok == together.ok[who.index(client)]


def on(n=1, horizon=100 * S, after_end="error", extra=(), leave="abort"):
    """Clients that are online all the time, with further rows."""
    rows = [(c, 0, horizon, "online", 1.0) for c in range(n)] + list(extra)
    trace = Trace.of(*zip(*rows, strict=True), clients=n, horizon_us=horizon, after_end=after_end)
    return World(trace, leave=leave)


def test_a_job_goes_through_download_compute_and_upload():
    world = on(
        extra=[
            (0, 0, 100 * S, "downlink", 1e6),
            (0, 0, 100 * S, "compute", 0.07),
            (0, 0, 100 * S, "uplink", 5e5),
        ]
    )
    outcome = world.outcome(0, 10 * S, Work(2_000_000, 3, 1_000_000))
    assert (outcome.ok, outcome.phase) == (True, "")
    assert (outcome.download_us, outcome.compute_us, outcome.end_us) == (12 * S, 12_210_000, 14_210_000)
    assert (outcome.downloaded_bytes, outcome.uploaded_bytes) == (2_000_000, 1_000_000)


def test_work_may_differ_by_job_and_the_end_is_rounded_up():
    world = on(n=3, extra=[(c, 0, 100 * S, "downlink", 3e6) for c in range(3)])
    found = world.outcomes([2, 0, 1], 0, Work(np.array([1, 3, 4]), 0, 0))
    assert found.end_us.tolist() == [1, 1, 2]


def test_changing_bandwidth_and_gaps_are_integrated():
    world = on(
        extra=[
            (0, 0, 2 * S, "downlink", 100.0),
            (0, 3 * S, 4 * S, "downlink", 50.0),
            (0, 4 * S, 9 * S, "downlink", 10.0),
        ]
    )
    assert world.outcome(0, S, Work(100, 0, 0)).end_us == 2 * S
    assert world.outcome(0, S, Work(101, 0, 0)).end_us == 3 * S + S // 50
    assert world.outcome(0, S, Work(160, 0, 0)).end_us == 5 * S


def test_arriving_at_the_very_instant_of_leaving_is_arriving():
    rows = [(0, 0, 10, "online", 1.0), (0, 0, 100, "downlink", 1e6)]
    world = World(Trace.of(*zip(*rows, strict=True), clients=1, horizon_us=100))
    assert world.outcome(0, 0, Work(10, 0, 0)).ok
    lost = world.outcome(0, 0, Work(11, 0, 0))
    assert (lost.ok, lost.end_us, lost.phase, lost.downloaded_bytes) == (False, 10, "download", 10)


def test_a_fault_loses_the_job_at_its_start_or_at_once():
    world = on(horizon=100, extra=[(0, 20, 30, "fault", 1.0), (0, 0, 100, "compute", 1e-6)])
    lost = world.outcome(0, 15, Work(0, 10, 0))
    assert (lost.ok, lost.end_us, lost.phase, lost.download_us) == (False, 20, "compute", 15)
    assert world.outcome(0, 25, Work(0, 10, 0)).end_us == 25
    assert world.outcome(0, 30, Work(0, 10, 0)).ok


def test_kinds_that_no_client_has_take_no_time():
    world = on()
    assert world.unmodelled == ("compute", "downlink", "uplink")
    assert world.outcome(0, 7, Work(10**9, 10**9, 10**9)).end_us == 7


def test_jobs_cross_laps_and_many_laps_at_once():
    horizon = 10
    rows = [(0, 0, horizon, "online", 1.0), (0, 4, 6, "compute", 1e-6)]
    world = World(Trace.of(*zip(*rows, strict=True), clients=1, horizon_us=horizon, after_end="repeat"))
    assert world.outcome(0, 5, Work(0, 2, 0)).end_us == 15
    assert world.outcome(0, 5, Work(0, 2 * 10**9 + 1, 0)).end_us == 10 * 10**9 + 6


def test_work_of_exactly_one_lap_ends_with_the_lap():
    rows = [(0, 0, 9, "online", 1.0), *((0, a, b, "compute", 3e-6) for a, b in ((0, 3), (3, 7), (7, 9)))]
    world = World(Trace.of(*zip(*rows, strict=True), clients=1, horizon_us=9, after_end="repeat"))
    assert [world.outcome(0, 0, Work(0, n, 0)).end_us for n in (3, 6, 3000)] == [9, 18, 9000]


def test_a_session_over_the_seam_is_one():
    rows = [(0, 0, 2, "online", 1.0), (0, 8, 10, "online", 1.0), (0, 0, 10, "compute", 1e-6)]
    trace = Trace.of(*zip(*rows, strict=True), clients=1, horizon_us=10, after_end="repeat")
    assert World(trace).outcome(0, 9, Work(0, 3, 0)).ok
    assert World(trace).outcome(0, 9, Work(0, 4, 0)).end_us == 12
    assert World(replace(trace, after_end="stop")).outcome(0, 9, Work(0, 3, 0)).end_us == 10
    with pytest.raises(
        TraceError, match=r"ends at 0.000 s \(10 us\), a job of client 0 would still be running.*repeat"
    ):
        World(replace(trace, after_end="error")).outcome(0, 9, Work(0, 3, 0))


def test_after_a_stop_everybody_is_offline_for_ever():
    world = on(n=2, horizon=50, after_end="stop")
    assert world.online(49).all()
    assert not world.online(50).any()
    assert not world.online(10**12).any()
    assert (world.next_change(0), world.next_change(50)) == (50, None)


def test_a_job_that_would_never_end_is_an_error():
    world = on(horizon=100, after_end="repeat", extra=[(0, 0, 1, "uplink", 1e-300)])
    with pytest.raises(TraceError, match="client 0 would not end"):
        world.outcome(0, 0, Work(0, 0, 10**9))


def test_questions_that_make_no_sense_are_refused():
    world = World(Trace.of(0, 5, 10, "online", clients=2, horizon_us=20))
    with pytest.raises(ValueError, match="client 1 is offline at 7 us"):
        world.outcomes([0, 1], 7, Work(1, 1, 1))
    with pytest.raises(ValueError, match="expected clients from 0 to 1, found 2"):
        world.outcomes([2], 7, Work(1, 1, 1))
    with pytest.raises(ValueError, match="at least 0 us, found -1"):
        world.online(-1)
    with pytest.raises(ValueError, match="samples of at least 0, found nan"):
        world.outcomes([0], 7, Work(1, float("nan"), 1))
    with pytest.raises(TraceError, match=r"asked about 0.000 s \(20 us\)"):
        world.online(20)


def test_a_world_uses_the_first_clients_of_a_larger_trace():
    trace = Trace.of([0, 1, 2], [0, 5, 0], [10, 10, 10], "online", clients=3, horizon_us=10)
    assert World(trace, 2).online(0).tolist() == [True, False]
    assert World(trace, 2).next_change(0) == 5
    with pytest.raises(TraceError, match="has 3 clients, but 4 are wanted"):
        World(trace, 4)


def test_answers_cannot_be_scribbled_on():
    world = on()
    with pytest.raises(ValueError, match="read-only"):
        world.online(0)[0] = False


def looped(leave="abort", unknown="error", after_end="repeat", extra=()):
    """Client 0 is online for 4 of 10, client 1 for 3 of 7 microseconds; a unit of work takes one."""
    rows = [(0, 0, 4, "online", 1.0), (1, 0, 3, "online", 1.0)]
    rows += [(c, 0, 5, "compute", 1e-6) for c in (0, 1)] + list(extra)
    periods = {"online": np.array([10, 7]), "compute": np.array([5, 5])}
    trace = Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=70, after_end=after_end, periods=periods)
    return World(trace, leave=leave, unknown=unknown)


def test_clients_loop_after_times_of_their_own():
    world = looped()
    assert world.online(14 * 10**6).tolist() == [True, True]
    assert [world.online(t).tolist() for t in (6, 7, 9, 10, 71)] == [
        [False, False],
        [False, True],
        [False, True],
        [True, False],
        [True, True],
    ]
    assert [world.next_change(t) for t in (0, 3, 4, 7, 9, 70)] == [3, 4, 7, 10, 10, 73]
    stops = looped(after_end="stop")
    assert (stops.next_change(69), stops.next_change(70)) == (None, None)
    assert stops.online(63).tolist() == [True, True]
    assert not stops.online(70).any()


def test_a_paused_job_goes_on_in_the_next_session():
    world = looped("pause_resume")
    assert world.outcomes([0, 1], 0, Work(0, 9, 0)).end_us.tolist() == [21, 17]
    assert looped("pause_resume", after_end="stop").outcome(1, 0, Work(0, 90, 0)).end_us == 70


@pytest.mark.parametrize(("share", "end"), [(0.3, 2), (0.6, 5), (1.0, 21)])
def test_chance_loses_a_paused_job_when_it_would_lose_one_that_goes_on(share, end):
    """The job of 9 us takes until 21 us, as its client pauses after 4 us; a share of 1 does not lose it."""
    outcome = looped("pause_resume").outcome(0, 0, Work(0, 9, 0, lost_at=share))
    assert (outcome.end_us, outcome.ok) == (end, share == 1)


def test_a_paused_job_that_can_never_go_on_is_an_error():
    rows = [(0, 0, 4, "online", 1.0), (0, 6, 8, "compute", 1e-6)]
    trace = Trace.of(*zip(*rows, strict=True), clients=1, horizon_us=10, after_end="repeat")
    with pytest.raises(TraceError, match="client 0 got no further in 1000 of its sessions"):
        World(trace, leave="pause_resume").outcome(0, 0, Work(0, 1, 0))


def test_only_the_last_instant_counts_at_the_end_instant():
    world = looped("end_instant")
    assert world.outcome(0, 0, Work(0, 4, 0)).ok
    assert world.outcome(0, 0, Work(0, 12, 0)).ok
    lost = world.outcome(0, 0, Work(0, 6, 0))
    assert (lost.ok, lost.end_us, lost.phase, lost.compute_us) == (False, 6, "upload", 6)


@pytest.mark.parametrize(
    ("lost_in", "share", "end", "phase", "uploaded"),
    [
        (0, 0.0, 0, "download", 0),
        (0, 0.5, 15, "compute", 0),
        (1, 0.5, 5, "download", 0),
        (2, 0.9, 19, "compute", 0),
        (3, 0.25, 22, "upload", 20),
        (0, 1.0, 30, "", 100),
    ],
)
def test_chance_loses_a_job_part_of_the_way(lost_in, share, end, phase, uploaded):
    extra = [(0, 0, 100, "downlink", 1e7), (0, 0, 100, "compute", 1e-6), (0, 0, 100, "uplink", 1e7)]
    outcome = on(horizon=100, extra=extra).outcome(0, 0, Work(100, 10, 100, lost_at=share, lost_in=lost_in))
    assert (outcome.end_us, outcome.phase, outcome.uploaded_bytes) == (end, phase, uploaded)
    assert outcome.ok is (share == 1.0)


@pytest.mark.parametrize(("share", "lost_us"), [(0.1, 70), (0.9, 230)])
def test_chance_does_not_lose_a_job_that_outlasts_the_world_before_its_end(share, lost_us):
    """A job of 200 us from 50 on, in a world of 100 us."""
    extra, work = [(0, 0, 100, "compute", 1e-6)], Work(0, 200, 0, lost_at=share)
    repeating, stopping, ending = (
        on(horizon=100, extra=extra, after_end=after_end, leave="ignore")
        for after_end in ("repeat", "stop", "error")
    )
    assert repeating.outcome(0, 50, work).end_us == lost_us
    outcome = stopping.outcome(0, 50, work)
    assert (outcome.ok, outcome.end_us) == (False, 100)
    with pytest.raises(TraceError, match=r"the trace ends at .* a job of client 0 would still be running"):
        ending.outcome(0, 50, work)


def test_chance_loses_a_job_that_takes_no_time():
    outcome = on().outcome(0, 7, Work(1, 1, 1, lost_at=0.3))
    assert (outcome.ok, outcome.end_us, outcome.phase) == (False, 7, "upload")


def test_slowness_stretches_time_and_leaves_bytes_as_they_are():
    extra = [(0, 0, 100, "downlink", 1e6), (0, 0, 100, "compute", 1e-6), (0, 0, 100, "uplink", 1e6)]
    world = on(horizon=100, extra=extra)
    outcome = world.outcome(0, 0, Work(7, 10, 11, slowness=(3.0, 1.5, 0.1)))
    assert (outcome.download_us, outcome.compute_us, outcome.end_us) == (21, 36, 38)
    assert (outcome.downloaded_bytes, outcome.uploaded_bytes) == (7, 11)
    cut = world.outcomes([0], 0, Work(7, 10, 11, slowness=(3.0, 1.5, 0.1)), until_us=10)
    assert cut.downloaded_bytes.tolist() == [3]


def test_unknown_stretches_are_what_the_user_says():
    dark = [(0, 3, 8, "unknown", 1.0), (1, 5, 6, "unknown", 1.0)]
    with pytest.raises(TraceError, match="availability of 2 of 2 clients at times, first of client 0 from"):
        looped(extra=dark)
    there, away = looped(unknown="online", extra=dark), looped(unknown="offline", extra=dark)
    assert [there.online(t).tolist() for t in (4, 5, 6, 8)] == [
        [True, False],
        [True, True],
        [True, False],
        [False, True],
    ]
    assert there.next_change(0) == 3
    assert [away.online(t).tolist() for t in (4, 5)] == [[False, False], [False, False]]


def test_words_that_a_world_does_not_know_are_refused():
    with pytest.raises(ConfigError, match=r"leave: .*, found 'pause_resum'; did you mean 'pause_resume'"):
        looped("pause_resum")


@given(tiny_worlds(), st.integers(0, 50), AMOUNTS)
@settings(max_examples=200, deadline=None)
def test_single_jobs_agree_with_arrays_to_the_bit(tiny, t, amounts):
    if tiny.after_end == "error":
        t %= tiny.horizon
    world = World(tiny.trace())
    for client in np.flatnonzero(world.online(t)).tolist():
        fate = world.single.outcome(client, t, *(a / 7 for a in amounts))
        try:
            job = world.outcomes([client], t, Work(*(a / 7 for a in amounts)))
        except TraceError:
            assert fate is None
            continue
        if fate is not None:
            names = (
                "download_us",
                "compute_us",
                "end_us",
                "ok",
                "phase",
                "downloaded_bytes",
                "uploaded_bytes",
            )
            assert fate == tuple(getattr(job, name).tolist()[0] for name in names)
        else:
            assert not job.ok[0]
            assert job.end_us[0] >= tiny.horizon
