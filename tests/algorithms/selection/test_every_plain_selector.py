"""Selectors with a rule of one line: by size, by turn, by speed, by deadline, by plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.algorithms.selection.parts.draws import highest, lowest, part, proportional, topped_up
from fedsim.algorithms.selection.parts.durations import durations_us, known_us
from fedsim.common.errors import ConfigError
from fedsim.common.units import US
from fedsim.engine.selector import Selector, View, checked_choice
from views import after_jobs, choose, lookup, make, shares, view

SIZES = np.array([10, 20, 30, 40])


def rounds(
    selector: Selector, n: int, k: int, count: int, there: float = 1.0
) -> tuple[list[list[int]], View]:
    """Let a selector choose `count` times; each time each of `n` clients is there with a chance."""
    draw, state, seen = np.random.default_rng(3), selector.start(), view(n)
    chosen: list[list[int]] = []
    for _ in range(count):
        who = np.flatnonzero(draw.random(n) < there)
        seen = after_jobs(seen, chosen[-1] if chosen else [], candidates=who if len(who) else np.arange(n))
        k_now = min(k, len(seen.candidates))
        picked, state = selector.select(seen, k_now, draw, state)
        chosen.append(checked_choice(picked, seen, k_now).clients.tolist())
    return chosen, after_jobs(seen, chosen[-1])


# Draws


@given(scores=st.lists(st.floats(allow_infinity=True, allow_nan=True), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_highest_is_sorted_with_unknown_last(scores: list[float]) -> None:
    rng, clients = np.random.default_rng(0), np.arange(len(scores)) + 5
    for order, sign in ((highest, -1), (lowest, 1)):
        found = sign * np.array(scores)[order(clients, np.array(scores), len(scores), rng) - 5]
        known = found[~np.isnan(found)]
        assert (np.sort(known) == known).all()
        assert np.isnan(found[len(known) :]).all()


def test_ties_are_broken_at_random() -> None:
    rng = np.random.default_rng(0)
    first = [int(highest(np.arange(4), np.array([1, 1, 1, 0]), 1, rng)[0]) for _ in range(600)]
    assert np.bincount(first, minlength=4) == pytest.approx([200, 200, 200, 0], abs=40)


def test_proportional_draws_one_after_another() -> None:
    """The law of two draws of three is p_i p_j / (1 - p_i), in order."""
    rng, p = np.random.default_rng(1), np.array([0.2, 0.3, 0.5])
    pairs = [tuple(proportional(np.arange(3), 7 * p, 2, rng)) for _ in range(6000)]
    for i in range(3):
        for j in set(range(3)) - {i}:
            assert pairs.count((i, j)) / 6000 == pytest.approx(p[i] * p[j] / (1 - p[i]), abs=0.02)


def test_proportional_takes_weightless_clients_last() -> None:
    rng = np.random.default_rng(1)
    drawn = [proportional(np.arange(4), np.array([0, 2, 0, 1e-300]), 3, rng).tolist() for _ in range(50)]
    assert all(set(d[:2]) == {1, 3} and d[2] in (0, 2) for d in drawn)
    assert {d[2] for d in drawn} == {0, 2}


def test_topped_up_keeps_the_chosen_in_front() -> None:
    filled = topped_up(np.array([4, 2]), np.arange(6), 4, np.random.default_rng(0))
    assert filled[:2].tolist() == [4, 2]
    assert len(set(filled.tolist())) == 4


# By size


def test_uniform_chooses_everybody_equally_often() -> None:
    assert shares(make("uniform"), view(5), 2) == pytest.approx(np.full(5, 0.4), abs=0.03)


def test_uniform_proposes_each_client_for_an_equal_part_of_the_numbers() -> None:
    propose = make("uniform").propose
    assert propose is not None
    assert propose(np.array([[0.001, 0.249, 0.251], [0.5, 0.749, 0.999]]), 4).tolist() == [
        [0, 0, 1],
        [2, 2, 3],
    ]


def test_weighted_goes_by_samples() -> None:
    seen = view(4, n_samples=SIZES)
    assert shares(make("weighted"), seen, 1) == pytest.approx(SIZES / 100, abs=0.03)


def test_weighted_with_replacement_gives_those_drawn_twice_one_job() -> None:
    seen = view(4, n_samples=SIZES)
    often = shares(make("weighted", replacement=True), seen, 2)
    assert often == pytest.approx(1 - (1 - SIZES / 100) ** 2, abs=0.03)
    assert often.sum() < 1.75


def test_weighted_without_any_samples_is_uniform() -> None:
    seen = view(4, n_samples=np.zeros(4, dtype=np.int64))
    for replacement in (False, True):
        assert shares(make("weighted", replacement=replacement), seen, 1) == pytest.approx(0.25, abs=0.03)


# By turn


def test_round_robin_goes_round_and_passes_over_who_is_away() -> None:
    selector, chosen, state = make("round_robin"), [], None
    for there in ([0, 1, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4], [4, 0]):
        some, state = choose(selector, view(5, there), 2, 0, state)
        chosen.append(some)
    assert chosen == [[0, 1], [3, 4], [0, 1], [4, 0]]


def test_minimise_reuse_goes_through_everybody_in_one_order() -> None:
    chosen, _ = rounds(make("minimise_reuse"), 6, 2, 9)
    flat = [client for some in chosen for client in some]
    assert sorted(flat[:6]) == list(range(6))
    assert flat == flat[:6] * 3
    assert flat[:6] != list(range(6))


def test_minimise_reuse_keeps_the_place_of_who_is_away() -> None:
    first, state = choose("minimise_reuse", view(5), 5)
    order = first
    away = order[0]
    some, state = choose("minimise_reuse", view(5, set(order) - {away}), 2, 0, state)
    assert some == order[1:3]
    assert choose("minimise_reuse", view(5), 2, 0, state)[0] == [away, order[3]]


def test_longest_absent_takes_the_oldest_contribution_and_before_all_none() -> None:
    seen = view(5, last_step=[4, 1, -1, 2, 9], last_dispatch=[4, 10, 8, 2, 9])
    assert choose("longest_absent", seen, 3)[0] == [2, 1, 3]
    assert choose(make("longest_absent", since="dispatched"), seen, 3)[0] == [3, 0, 2]


# By speed


def test_fastest_and_slowest_go_by_measured_then_expected_time() -> None:
    seen = view(
        4, last_duration_us=[9 * US, -1, 2 * US, -1], expected_us=lookup(np.array([1, 5, 1, 12]) * US)
    )
    assert choose("fastest_first", seen, 4)[0] == [2, 1, 0, 3]
    assert choose("slowest_first", seen, 4)[0] == [3, 0, 1, 2]


def test_expected_times_are_asked_for_only_where_none_was_measured() -> None:
    calls: list[list[int]] = []
    seen = view(4, last_duration_us=[9, -1, 2, -1], expected_us=lookup(np.ones(4, dtype=np.int64), calls))
    choose("fastest_first", seen, 2)
    assert calls == [[1, 3]]


def times(*seconds: float) -> dict[str, Any]:
    return {"expected_us": lookup((np.array(seconds) * US).astype(np.int64)), "n": len(seconds)}


def test_fedcs_takes_all_that_fit_the_deadline_fastest_first() -> None:
    seen = view(**times(30, 10, 61, 60, 20))
    assert choose("fedcs", seen, 5)[0] == [1, 4, 0, 3]
    assert choose("fedcs", seen, 2)[0] == [1, 4]
    assert choose(make("fedcs", deadline="9s"), seen, 2)[0] == []


def test_fedcs_adds_up_uploads_on_a_shared_channel() -> None:
    """Of jobs of 10, 20 and 30 s, half of it upload: 10, then max(10, 10) + 10 = 20, then max(20, 15) + 15 = 35."""
    seen = view(**times(20, 30, 10))
    for deadline, expected in (("34.9s", [2, 0]), ("35s", [2, 0, 1]), ("19s", [2])):
        assert choose(make("fedcs", deadline=deadline, upload_share=0.5), seen, 3)[0] == expected
    alone = make("fedcs", deadline="59s", upload_share=1.0)
    assert choose(alone, seen, 3)[0] == [2, 0]


def test_fedcs_says_what_it_lacks_without_a_deadline() -> None:
    with pytest.raises(ConfigError, match="selector 'fedcs' needs a deadline"):
        choose("fedcs", view(4, deadline_us=None), 2)


# By plan


def test_fixed_list_is_kept_in_its_order() -> None:
    selector = make("fixed", clients=[3, 1, 3, 0])
    assert choose(selector, view(5), 2)[0] == [3, 1]
    assert choose(selector, view(5, [0, 1, 4]), 3)[0] == [1, 0]
    assert choose(selector, view(5, [4]), 1)[0] == []
    with pytest.raises(ConfigError, match="expected clients from 0 to 2, found 3"):
        choose(selector, view(3), 1)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_fixed_table_goes_by_step(tmp_path: Path, suffix: str) -> None:
    path, table = tmp_path / f"plan.{suffix}", pa.table({"client": [2, 1, 0], "step": [0, 0, 2]})
    if suffix == "csv":
        path.write_text("client,step\n2,0\n1,0\n0,2\n")
    else:
        pq.write_table(table, path)
    selector = make_table(path)
    assert [choose(selector, view(4, step=step), 3)[0] for step in range(4)] == [[2, 1], [], [0], []]


def test_a_fixed_table_may_be_in_any_order_and_is_checked_before_its_steps_come(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("client,step\n3,2\n2,0\n0,2\n1,0\n")
    selector = make_table(path)
    assert [choose(selector, view(4, step=step), 3)[0] for step in range(3)] == [[2, 1], [], [3, 0]]
    with pytest.raises(ConfigError, match="expected clients from 0 to 2, found 3"):
        choose(selector, view(3), 1)


def make_table(path: Path) -> Selector:
    from fedsim.plugins import build

    selector: Selector = build("selector", "fixed", {"table": str(path)})
    return selector


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,stp\n1,0\n", r"has no column 'step'; did you mean 'stp'\?"),
        ("client,step\nx,0\n", "column 'client': expected whole numbers, found string"),
        ("client,step\n1,0\n-1,1\n", "row 1, column 'client': expected a number of at least 0"),
        ("client,step\n1,0\n,1\n", "row 1, column 'client': expected a number of at least 0"),
        ("client,step\n1,0\n-2,1\n", "row 1, column 'client': expected a number of at least 0"),
    ],
)
def test_fixed_table_names_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        make_table(path)
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere\.csv"):
        make_table(tmp_path / "nowhere.csv")


def test_fixed_needs_a_client() -> None:
    from fedsim.plugins import build

    with pytest.raises(ConfigError, match="'clients': expected at least one client, found none"):
        build("selector", "fixed", {"clients": []})


def test_fixed_takes_either_a_list_or_a_table(tmp_path: Path) -> None:
    from fedsim.plugins import build

    for options in ({}, {"clients": [1], "table": str(tmp_path)}):
        with pytest.raises(ConfigError, match="either the option 'clients' or the option 'table'"):
            build("selector", "fixed", options)


def test_all_clients_get_their_turn_with_a_fair_selector() -> None:
    """Over many rounds with absences, nobody is left out by a selector that goes by past participation."""
    for name in ("round_robin", "minimise_reuse", "longest_absent", "quota"):
        _, seen = rounds(make(name), 9, 2, 60, there=0.6)
        assert seen.dispatched.min() > 5, name


class Half:
    """A generator of numbers in [0, 1), half of which are below its only one."""

    def random(self) -> float:
        return 0.5


def test_a_share_of_places_is_rounded_down_and_of_less_than_one_it_is_a_chance() -> None:
    rng = np.random.default_rng(0)
    assert [part(k, share, rng) for k, share in ((100, 0.29), (10, 0.25), (3, 1.0), (4, 0.25))] == [
        29,
        2,
        3,
        1,
    ]
    assert {part(7, 0.0, rng) for _ in range(50)} == {0}
    assert part(1, 0.5, Half()) == 0  # type: ignore[arg-type]
    assert np.mean([part(1, 0.3, rng) for _ in range(2000)]) == pytest.approx(0.3, abs=0.04)
    assert np.mean([part(3, 0.3, rng) for _ in range(2000)]) == pytest.approx(0.9, abs=0.03)


def test_a_job_that_took_no_time_is_measured_and_one_that_never_arrived_is_expected() -> None:
    seen = view(3, last_duration_us=[0, -1, 5], expected_us=lookup(np.array([7, 8, 9])))
    assert durations_us(seen, np.arange(3)).tolist() == [0, 8, 5]
    away = view(3, [1], last_duration_us=[0, -1, -1], expected_us=lookup(np.array([7, 8, 9])))
    assert np.array_equal(known_us(away), [0, 8, np.nan], equal_nan=True)
