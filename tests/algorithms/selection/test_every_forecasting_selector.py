"""Selectors that forecast who will be there: learned hours of the day, and REFL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.algorithms.selection.parts.hours_of_day import chances, looked, overlaps
from fedsim.algorithms.selection.parts.world import online_throughout
from fedsim.common.units import HOUR_US, US
from fedsim.engine.selector import Selector, State
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import World
from views import choose, make, view

S = US


def world(*sessions: tuple[int, int, int], n: int = 4, end: int = 100, after_end: Any = "stop") -> World:
    """A world of `n` clients from (client, start, end) in seconds."""
    client, start, stop = zip(*sessions, strict=True)
    return World(
        Trace.of(
            client,
            np.array(start) * S,
            np.array(stop) * S,
            "online",
            clients=n,
            horizon_us=end * S,
            after_end=after_end,
        )
    )


# Hours of the day


@given(start=st.integers(0, 60 * HOUR_US), length=st.integers(0, 50 * HOUR_US))
@settings(max_examples=60, deadline=None)
def test_overlaps_are_shares(start: int, length: int) -> None:
    found = overlaps(np.array([start]), np.array([start + length]))[0]
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    assert found[start // HOUR_US % 24] > 0


def test_overlaps_of_half_past_one_to_four() -> None:
    found = overlaps(np.array([25 * HOUR_US + HOUR_US // 2]), np.array([28 * HOUR_US]))[0]
    assert found[[1, 2, 3]] == pytest.approx([0.2, 0.4, 0.4])
    assert found.sum() == pytest.approx(1)


def watched(days: int, there: Any, n: int = 4) -> State:
    """Look every half hour; `there(hour)` says who is there."""
    state: State = {}
    for half in range(48 * days):
        now = half * HOUR_US // 2
        who = there(now // HOUR_US % 24)
        if len(who):
            state = looked(view(n, who, now_us=now), state)
    return state


def by_day_and_night(hour: int) -> list[int]:
    return [0, 1] if 8 <= hour < 20 else [0, 2]


def test_chances_learn_the_hours() -> None:
    """Client 0 is always there, 1 by day, 2 at night, 3 never."""
    state, every = watched(20, by_day_and_night), np.arange(4)
    noon, midnight = (
        chances(state, every, np.full(4, h * HOUR_US), np.full(4, (h + 1) * HOUR_US)) for h in (12, 24)
    )
    assert noon == pytest.approx([1, 1, 0, 0], abs=0.05)
    assert midnight == pytest.approx([1, 0, 1, 0], abs=0.05)
    dusk = chances(state, every, np.full(4, 19 * HOUR_US), np.full(4, 21 * HOUR_US))
    assert dusk == pytest.approx([1, 0.5, 0.5, 0], abs=0.05)


def test_a_look_counts_for_the_time_since_the_last_one() -> None:
    state = looked(view(2, now_us=0), {})
    assert state["seen"].sum() == pytest.approx(2)
    again = looked(view(2, now_us=0), state)
    assert again["seen"].sum() == pytest.approx(2)
    assert looked(view(2, now_us=HOUR_US // 4), again)["seen"].sum() == pytest.approx(2.5)
    assert looked(view(2, now_us=90 * HOUR_US), again)["seen"].sum() == pytest.approx(4)


def test_clients_whose_updates_may_wait_for_the_step_are_neither_seen_nor_missed() -> None:
    """Client 0 may be chosen again, 1 had a job in this round, 2 in the one before."""
    state = looked(view(3, now_us=0), {})
    given = [4, 4, 3]
    after = looked(view(3, [0], now_us=HOUR_US, step=4, last_dispatch=given), state)
    assert (after["watched"] - state["watched"]).sum(axis=1).tolist() == [1, 0, 1]
    assert (after["seen"] - state["seen"]).sum(axis=1).tolist() == [1, 0, 0]


def test_clients_at_work_are_neither_seen_nor_missed() -> None:
    state = looked(view(3, now_us=0), {})
    after = looked(view(3, [0], now_us=HOUR_US, busy=[False, True, False]), state)
    assert after["watched"].sum(axis=1) == pytest.approx([2, 1, 2])


@pytest.mark.parametrize(("prefer", "expected"), [("staying", [0, 1]), ("leaving", [3, 2])])
def test_forecast_takes_those_who_stay_or_leave(prefer: str, expected: list[int]) -> None:
    """At 19:30 client 0 is there at all hours, 1 until 22, 2 until 20 and 3 hardly ever."""
    ends = {0: 24, 1: 22, 2: 20, 3: 1}
    state = watched(20, lambda hour: [c for c, end in ends.items() if hour < end])
    now = 20 * 24 * HOUR_US + 39 * HOUR_US // 2
    chosen, _ = choose(
        make("availability_forecast", prefer=prefer, ahead="2h"), view(4, now_us=now), 2, 0, state
    )
    assert chosen == expected


def test_forecast_looks_as_far_as_the_job_takes() -> None:
    """Both leave at 20; at 19:30 a job of 10 minutes is safer than one of 3 hours."""
    state = watched(20, lambda hour: [0, 1] if hour < 20 else [2], n=3)
    now = 20 * 24 * HOUR_US + 39 * HOUR_US // 2
    times = np.array([180, 10, 10]) * 60 * US
    seen = view(3, [0, 1], now_us=now, last_duration_us=times)
    assert choose("availability_forecast", seen, 2, 0, state)[0] == [1, 0]


# The future


def test_online_throughout_sees_every_gap() -> None:
    there = world((0, 0, 100), (1, 0, 30), (1, 31, 100), (2, 20, 40), (3, 10, 25))
    for start, end, expected in (
        (10, 30, [1, 1, 0, 0]),
        (10, 31, [1, 0, 0, 0]),
        (31, 40, [1, 1, 1, 0]),
        (20, 25, [1, 1, 1, 1]),
        (31, 41, [1, 1, 0, 0]),
        (90, 101, [0, 0, 0, 0]),
    ):
        assert online_throughout(there, start * S, end * S).tolist() == [bool(x) for x in expected]


def test_nobody_is_known_to_be_there_behind_the_end() -> None:
    for start, end in ((90, 101), (150, 160)):
        closed = world((0, 0, 100), (1, 0, 50), after_end="error")
        assert not online_throughout(closed, start * S, end * S).any()
    again = world((0, 0, 100), (1, 0, 50), after_end="repeat")
    assert online_throughout(again, 90 * S, 140 * S).tolist() == [True, False, False, False]


# REFL


def refl(**options: Any) -> Selector:
    return make("refl", initial="10s", **options)


def sure(selector: Selector, seen: Any, k: int) -> set[tuple[int, ...]]:
    """Return the sets of clients that are chosen with any of many random numbers."""
    return {tuple(sorted(choose(selector, seen, k, seed)[0])) for seed in range(30)}


def test_paper_takes_those_first_who_are_away_in_the_slot_after_next() -> None:
    """At 0 with slots of 10 s it asks about [10, 20]: 0 stays, 1 leaves at 15, 2 leaves at 5 and 3 comes back at 10."""
    future = world((0, 0, 100), (1, 0, 15), (2, 0, 5), (3, 0, 2), (3, 10, 30))
    seen = view(4, world=future)
    assert sure(refl(forecast="trace"), seen, 2) == {(1, 2)}
    assert {c for some in sure(refl(forecast="trace"), seen, 3) for c in some} == {0, 1, 2, 3}


def test_released_code_also_wants_them_for_the_coming_slot() -> None:
    """Throughout [0, 10] but not [10, 20]: client 1 alone."""
    future = world((0, 0, 100), (1, 0, 15), (2, 0, 5), (3, 0, 2), (3, 10, 30))
    found = sure(refl(forecast="trace", variant="released"), view(4, world=future), 2)
    assert found == {(0, 1), (1, 2), (1, 3)}


def test_forecasts_may_be_wrong() -> None:
    future = world(*[(c, 0, 15) for c in range(2)], *[(c, 0, 90) for c in (2, 3)])
    seen = view(4, world=future)
    assert sure(refl(forecast="trace"), seen, 2) == {(0, 1)}
    assert len(sure(refl(forecast="trace", kept=0.5), seen, 2)) > 3
    assert len(sure(refl(forecast="trace", kept=0.0), seen, 2)) == 6


def test_slot_is_a_moving_average_of_round_durations() -> None:
    """0.75 * 20 + 0.25 * 10 = 17.5; then twice 40: 0.0625 * 17.5 + 0.9375 * 40."""
    selector, state = refl(), refl().start()
    for step, at, slot in ((0, 0, 10), (1, 20, 17.5), (1, 20, 17.5), (3, 100, 38.59375)):
        _, state = choose(selector, view(4, step=step, step_us=at * S, now_us=at * S), 1, 0, state)
        assert state["slot_us"] / S == pytest.approx(slot)


def test_learned_forecast_takes_who_is_rarely_there() -> None:
    state = {**refl().start(), **watched(10, lambda hour: [0, 1, 2] if hour < 12 else [0, 1], n=3)}
    seen = view(3, now_us=10 * 24 * HOUR_US + 11 * HOUR_US)
    assert choose(make("refl", initial="1h"), seen, 1, 0, {**state, "slot_us": HOUR_US})[0] == [2]


@pytest.mark.parametrize(
    ("options", "busy_s", "expected"),
    [
        ({"adaptive": True}, [5, 5, 5], 5),
        ({"adaptive": True}, [5, 50, 50], 7),
        ({"adaptive": True}, [10, 10.000001, 50], 7),  # due at the very end of the slot
        ({"adaptive": True}, [], 8),
        ({"adaptive": True, "cap": 1.0}, [1] * 8, 1),
        ({"adaptive": True, "cap": 0.5}, [1] * 8, 4),
        ({"adaptive": True, "target": 10, "cap": 0.7}, [1] * 8, 3),
        ({"adaptive": True, "target": 6, "cap": 1.0}, [5, 5], 4),
        ({"adaptive": False}, [5, 5, 5], 8),
        ({"target": 3}, [], 3),
        ({"target": 30}, [], 8),
    ],
)
def test_target_shrinks_by_the_stragglers_about_to_report(
    options: dict[str, Any], busy_s: list[float], expected: int
) -> None:
    """Jobs that are due within the slot of 10 s count; at most `cap` of the target is cut."""
    n, selector = 20, refl(**options)
    assert len(choose(selector, view(n), 8)[0]) == (
        8 if "target" not in options else min(8, options["target"])
    )
    durations = np.full(n, 7 * S)
    durations[: len(busy_s)] = np.rint(np.array(busy_s) * S)
    first = view(n, range(len(busy_s) or 1), last_duration_us=durations)
    _, state = choose(make("refl", initial="10s", **options | {"target": n}), first, max(len(busy_s), 1))
    busy = np.arange(n) < len(busy_s)
    later = replace(view(n, range(len(busy_s), n), last_duration_us=durations), busy=busy > 0)
    assert len(choose(selector, later, 8, 0, state)[0]) == expected


def test_chances_shrink_towards_the_client_s_own_mean_and_that_towards_a_half() -> None:
    """Watched for 4 hours at five o'clock, there in 3: (3 + 1) / (4 + 2) at any hour, (3 + 2 / 3) / (4 + 1) at five."""
    seen, watched = np.zeros((2, 24)), np.zeros((2, 24))
    seen[0, 5], watched[0, 5] = 3, 4
    state = {"seen": seen, "watched": watched}
    at = np.array([5, 7]) * HOUR_US
    for hour, expected in zip(at, ((3 + 2 / 3) / 5, 2 / 3), strict=True):
        found = chances(state, np.array([0, 1]), np.array([hour]), np.array([hour + HOUR_US]))
        assert found == pytest.approx([expected, 0.5])
