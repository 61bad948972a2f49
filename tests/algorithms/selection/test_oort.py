"""Oort against its formulas, written out for few clients, and its shares over many rounds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim import analysis
from fedsim.algorithms.selection.parts.oort_scores import Pace, Rating, not_barred, places, utility
from fedsim.common.units import US
from fedsim.config.load import parse
from fedsim.engine.selector import View
from fedsim.runs.simulate import simulate
from views import after_jobs, choose, lookup, make, shares, view

ALL = np.arange(4)
OWN = """
import numpy as np
import torch
from fedsim.data.federated_data import Task

EASY, HARD, EVEN = (4.05, 0), (4.05, 1), (0.0, 0)  # losses 0.017, 4.067 and 0.693


def task(*, clients, seed, data_dir):
    each = [[HARD] * 48 + [EASY] * 352, [EVEN] * 400]
    values, labels = zip(*(sample for own in each for sample in own))
    x = np.array(values, dtype=np.float32)[:, None]
    rows = tuple(np.arange(400 * c, 400 * c + 400) for c in range(2))
    return Task("own", x, np.array(labels), 2, np.zeros(800, dtype=bool), natural=rows)


def model(*, in_shape, n_classes):
    layer = torch.nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [0.0]]))
        layer.bias.zero_()
    return torch.nn.Sequential(torch.nn.Flatten(), layer)
"""


def rating(variant: Any = "paper", **changed: Any) -> Rating:
    paper = variant == "paper"
    given: dict[str, Any] = {
        "variant": variant,
        "clip": 1.0,
        "uncertainty": 0.1,
        "penalty": 2.0,
        "cut_off": 0.95 if paper else 0.05,
        "fairness": 0.0,
        "few_samples": 600,
        "window": 5.0,
    }
    return Rating(**given | changed)


def seen_by_oort(**changed: Any) -> View:
    """Utilities 20, 60, 10 and one client that was never used, at step 9."""
    columns = {
        "n_samples": np.array([10, 20, 10, 700]),
        "last_loss_rms": [2.0, 3.0, 1.0, math.nan],
        "last_batch_rms": [2.0, 3.0, 1.0, math.nan],
        "last_step": [3, 0, 8, -1],
        "received": [1, 4, 2, 0],
        "dispatched": [1, 4, 2, 0],
        "step": 9,
    }
    return view(4, **columns | changed)


def scores(seen: View, times: list[float], preferred: float, **changed: Any) -> list[float]:
    found = rating(**changed).scores(seen, ALL, np.array(times, dtype=np.float64), preferred)
    return [float(x) for x in found]


# Scores


def test_statistical_utility_is_samples_times_root_mean_square_loss() -> None:
    seen = seen_by_oort(last_batch_rms=[5.0, 0.5, 7.0, math.nan])
    assert utility(seen, "paper").tolist() == [20, 60, 10, 0]
    assert utility(seen, "fedscale").tolist() == [50, 10, 70, 0]


def test_paper_adds_uncertainty_and_punishes_slow_clients() -> None:
    """Round 10; last rounds 4, 1, 9; preferred 10: the second takes 20 and keeps a quarter."""
    doubt = [math.sqrt(0.1 * math.log(10) / last) for last in (4, 1, 9)]
    found = scores(seen_by_oort(), [10, 20, 1, 1], 10.0)
    assert found[:3] == pytest.approx([20 + doubt[0], (60 + doubt[1]) / 4, 10 + doubt[2]])


def test_paper_clips_at_a_quantile_and_may_ask_for_fairness() -> None:
    plain = scores(seen_by_oort(), [1] * 4, 10.0, uncertainty=0.0, clip=0.5)
    assert plain[:3] == pytest.approx([20, 20, 10])
    fair = scores(seen_by_oort(), [1] * 4, 10.0, uncertainty=0.0, clip=0.5, fairness=0.25)
    assert fair[:3] == pytest.approx([0.75 * 20 + 0.25 * 3, 0.75 * 20, 0.75 * 10 + 0.25 * 2])


def test_fedscale_normalises_with_the_unexplored_among_the_rewards() -> None:
    """Rewards 10, 20, 60, 600: the clip at 50 % is the third of four."""
    low, top = 0.999 * 10, 600
    found = scores(seen_by_oort(), [10, 20, 1, 30], 10.0, variant="fedscale", uncertainty=0.0, clip=0.5)
    span = top - low
    assert found[:3] == pytest.approx([(20 - low) / span, (60 - low) / span / 4, (10 - low) / span])
    assert found[3] == pytest.approx(600 / 9)


@pytest.mark.parametrize("mode", ["loop", "vmap", "dense"])
@pytest.mark.parametrize("epochs", [2, 1], ids=["whole jobs", "half the work"])
def test_a_client_with_a_few_hard_samples_is_worth_more_than_one_whose_samples_are_all_middling(
    mode: str, epochs: int, tmp_path: Path
) -> None:
    """Of client 0, 12 % of the samples have a loss of 4.07: their root mean square is 1.41, that of client 1's is 0.69.

    The root mean square of the mean losses of its minibatches, 0.6, would say the opposite.
    """
    (tmp_path / "own.py").write_text(OWN)
    oort = {"name": "oort", "exploration": 1, "exploration_decay": 1, "penalty": 0, "pacer": 0}
    config = {
        "name": "worth",
        "task": {"name": f"{tmp_path}/own.py:task", "clients": 2, "fractions": [0.8, 0.1, 0.1]},
        "model": {"name": f"{tmp_path}/own.py:model"},
        "world": {"scenario": "always_on", "horizon": "2h"},
        "algorithm": {"name": "fedavg"},
        "pacing": {"preset": "sync", "clients": 1},
        "train": {"batch_size": 32, "epochs": 2, "lr": 1e-9, "mode": mode},
        "cost": {"completeness": {"mode": "epochs", "low": epochs, "high": epochs}},
        "selection": oort | {"barred_after": "never"},
        "stop": {"steps": 8},
    }
    found = simulate(parse(config, "own.toml", "own"), out=tmp_path, workers=0)[0]
    jobs = analysis.open_run(found.folder).frame("jobs")
    assert set(jobs.share) == {epochs / 2}
    assert sorted(jobs.client[:2]) == [0, 1], "each is explored once"
    assert jobs.client[2:].tolist() == [0] * 6
    assert jobs.loss_train[jobs.client == 1].to_numpy() == pytest.approx(math.log(2))


# Draws


def test_exploitation_draws_in_proportion_among_those_above_the_cut_off() -> None:
    """The second best is 40, so the cut-off is 38: of 100, 40, 39, 37 the last has no chance."""
    chosen = np.zeros(4)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        chosen[rating().exploited(ALL, np.array([40, 100, 37, 39.0]), 2, rng)] += 1 / 3000
    assert chosen[2] == 0
    p = {c: w / 179 for c, w in ((0, 40), (1, 100), (3, 39))}
    first_or_second = p[1] + sum(p[c] * p[1] / (1 - p[c]) for c in (0, 3))
    assert chosen[1] == pytest.approx(first_or_second, abs=0.03)


def test_fedscale_lets_ten_times_as_many_take_part() -> None:
    clients, values = np.arange(30), np.concatenate([np.full(5, 1000.0), np.full(25, 1.0)])
    rng = np.random.default_rng(0)
    drawn = {
        int(c)
        for _ in range(4000)
        for c in rating("fedscale", cut_off=1.0).exploited(clients, values, 1, rng)
    }
    low = drawn - set(range(5))
    assert low
    assert len(drawn) <= 5 + 25
    strict = rating("paper")
    assert {int(c) for _ in range(300) for c in strict.exploited(clients, values, 1, rng)} == set(range(5))


def test_exploration_of_the_paper_takes_the_fastest_and_those_never_tried_first() -> None:
    seen = view(5, dispatched=[0, 1, 0, 0, 1], lost=[0, 1, 0, 0, 1])
    rng, times = np.random.default_rng(0), np.array([5, 1, 3, 4, 2.0])
    found = rating().explored(seen, np.arange(5), times, np.ones(5), 4, rng)
    assert found.tolist() == [2, 3, 0, 1]


def test_exploration_of_fedscale_draws_from_a_window_by_weight() -> None:
    seen, rng = view(6), np.random.default_rng(0)
    weights = np.array([1, 5, 4, 0.5, 6, 5.0])
    drawn = np.zeros(6)
    for _ in range(3000):
        found = rating("fedscale", window=4.0).explored(seen, np.arange(6), np.ones(6), weights, 1, rng)
        drawn[found] += 1 / 3000
    assert drawn == pytest.approx(np.array([0, 5, 4, 0, 6, 5]) / 20, abs=0.03)


@pytest.mark.parametrize(
    ("k", "explorers", "tried", "expected"),
    [
        (10, 2, 30, (2, 8)),
        (10, 9, 3, (9, 1)),
        (50, 45, 3, (37, 3)),
        (10, 5, 40, (0, 10)),
        (10, 0, 4, (6, 4)),
        (4, 4, 38, (2, 2)),
    ],
)
def test_places_that_one_part_cannot_fill_go_to_the_other(
    k: int, explorers: int, tried: int, expected: tuple[int, int]
) -> None:
    assert places(k, explorers, np.arange(40) < tried) == expected


def test_share_explored_is_rounded_down_and_fedscale_rounds_the_rest_down() -> None:
    rng = np.random.default_rng(0)
    assert [rating("paper").explorers(10, share, rng) for share in (0.25, 0.88, 1.0, 0.0)] == [2, 8, 10, 0]
    assert [rating("fedscale").explorers(10, share, rng) for share in (0.25, 0.88, 1.0, 0.0)] == [3, 9, 10, 0]


def test_single_places_are_explored_with_the_share_as_chance() -> None:
    """One of three candidates was used before: with one place at a time the two others are found as well."""
    seen = view(3, step=1, last_step=[0, -1, -1], received=[1, 0, 0], last_loss_rms=[1.0, math.nan, math.nan])
    seen = replace(seen, last_batch_rms=seen.last_loss_rms)
    often = shares(make("oort", exploration=0.2, exploration_decay=1.0), seen, 1)
    assert often == pytest.approx([0.8, 0.2, 0.0], abs=0.03)
    assert shares(make("oort", variant="fedscale"), seen, 1, 200)[0] == 0


@pytest.mark.parametrize(("variant", "floor"), [("paper", 0.2), ("fedscale", 0.3)])
@pytest.mark.parametrize("step", [1, 20, 400])
def test_exploration_share_decays_to_its_floor(variant: str, floor: float, step: int) -> None:
    used = np.arange(100) < 50
    seen = view(
        100,
        step=step,
        last_step=np.where(used, 0, -1),
        received=used.astype(int),
        dispatched=used.astype(int),
        last_loss_rms=np.where(used, 1.0, np.nan),
        last_batch_rms=np.where(used, 1.0, np.nan),
    )
    chosen, _ = choose(make("oort", variant=variant), seen, 20)
    explored = sum(c >= 50 for c in chosen)
    share = max(floor, 0.9 * 0.98**step)
    assert explored == (int(20 * share) if variant == "paper" else 20 - int(20 * (1 - share)))


def test_everybody_is_explored_over_many_rounds() -> None:
    selector, state, rng = make("oort"), make("oort").start(), np.random.default_rng(2)
    seen = view(30)
    for _ in range(30):
        chosen, state = selector.select(seen, 5, rng, state)
        seen = after_jobs(seen, chosen, last_loss_rms=np.where(seen.last_step >= 0, 1.0, np.nan))
    assert (seen.last_step >= 0).all()


def test_fedscale_begins_at_random() -> None:
    often = shares(make("oort", variant="fedscale"), view(5), 2)
    assert often == pytest.approx(np.full(5, 0.4), abs=0.03)


def used_once(rms: list[float]) -> View:
    """Clients of one sample each that a step has used, so that their utilities are the losses, at step 1."""
    n = len(rms)
    ones = np.ones(n, dtype=np.int64)
    same = {"n_samples": ones, "received": ones, "dispatched": ones, "last_step": np.zeros(n, dtype=np.int64)}
    losses = {"last_loss_rms": rms, "last_batch_rms": rms}
    return view(n, step=1, expected_us=lookup(np.full(n, US)), **same, **losses)


def test_by_default_the_paper_draws_from_95_percent_of_the_best_on() -> None:
    often = shares(make("oort", uncertainty=0.0, clip=1.0), used_once([100.0, 95.5, 94.5, 50.0]), 1, 600)
    assert often == pytest.approx([100 / 195.5, 95.5 / 195.5, 0, 0], abs=0.07)


def test_by_default_fedscale_draws_from_5_percent_of_the_best_on() -> None:
    """One client gives the lowest utility, 25 have 3 % of the best once that is taken off, 15 are the best."""
    seen = used_once([1.0] + [31.0] * 25 + [1000.0] * 15)
    often = shares(make("oort", variant="fedscale", uncertainty=0.0), seen, 1, 300)
    assert often[:26].sum() == 0
    lower = shares(make("oort", variant="fedscale", uncertainty=0.0, cut_off=0.01), seen, 1, 300)
    assert lower[1:26].sum() > 0


@pytest.mark.parametrize(("variant", "n"), [("paper", 21), ("fedscale", 20)])
def test_by_default_outliers_are_cut_off_at_a_quantile(variant: str, n: int) -> None:
    """Of 21 utilities the quantile 0.95 is the last but one, and so is the code's position 0.9 n of 20."""
    seen = used_once([0.001] * (n - 2) + [1.0, 1000.0])
    often = shares(make("oort", variant=variant, uncertainty=0.0, cut_off=0.0), seen, 1, 400)
    assert often[-2:] == pytest.approx([0.5, 0.5], abs=0.09)


# Barring


def test_those_with_too_many_updates_are_barred_up_to_a_share() -> None:
    seen, rng = view(10, received=[11, 12, 0, 10, 13, 14, 0, 0, 0, 0]), np.random.default_rng(0)
    assert not_barred(seen, 10, 0.3, rng).tolist() == [0, 2, 3, 6, 7, 8, 9]
    assert not_barred(seen, 10, 1.0, rng).tolist() == [2, 3, 6, 7, 8, 9]
    assert not_barred(seen, "never", 1.0, rng).tolist() == list(range(10))
    many = view(100, received=np.arange(100))
    assert len(not_barred(many, 10, 0.29, rng)) == 71


def test_of_equally_frequent_ones_it_is_chance_who_is_barred() -> None:
    seen, rng = view(4, received=[11, 11, 11, 12]), np.random.default_rng(0)
    free = np.zeros(4)
    for _ in range(2000):
        free[not_barred(seen, 10, 0.5, rng)] += 1 / 2000
    assert free == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0], abs=0.04)


def test_barred_clients_come_last() -> None:
    used = {"last_step": [1] * 4, "received": [1, 50, 1, 1], "last_loss_rms": [1, 9, 1, 1.0], "step": 3}
    seen = view(4, **used)
    for seed in range(10):
        assert 1 not in choose("oort", seen, 3, seed)[0]
        assert choose("oort", seen, 4, seed)[0][3] == 1
    assert 1 in choose(make("oort", barred_after="never"), seen, 1)[0]


@pytest.mark.parametrize(("updates", "barred"), [(10, False), (11, True)])
def test_more_than_ten_updates_are_too_many(updates: int, barred: bool) -> None:
    used = {"last_step": [1] * 4, "last_loss_rms": [1, 9, 1, 1.0], "step": 3}
    seen = view(4, received=[1, updates, 1, 1], **used)
    assert any(1 in choose("oort", seen, 3, seed)[0] for seed in range(10)) is not barred


# Pacer


def pace(variant: Any, **changed: Any) -> Pace:
    given: dict[str, Any] = {
        "variant": variant,
        "rounds": 2,
        "percentile": 50.0,
        "delta": 20.0,
        "preferred_us": None,
        "step_us": None,
    }
    return Pace(**given | changed)


def gains(pacer: Pace, worths: list[float]) -> list[dict[str, Any]]:
    """Let one client, out of four, be used in each step with the given utility."""
    seen, state = view(4, n_samples=np.ones(4, dtype=np.int64)), pacer.after(view(4), pacer.start())
    states = [state]
    for step, worth in enumerate(worths):
        used = np.full(4, -1)
        used[1] = step
        rms = dict.fromkeys(("last_loss_rms", "last_batch_rms"), np.array([np.nan, worth, 9, 9]))
        seen = replace(seen, step=step + 1, last_step=used, **rms)
        state = pacer.after(seen, {**state, "exploited": np.arange(4) == 1})
        states.append(state)
    return states


def test_paper_becomes_more_patient_when_utility_falls() -> None:
    """Sums over two rounds: 10, then 6, then 20: T grows at the second check alone."""
    found = [s["preferred_us"] / US for s in gains(pace("paper"), [5, 5, 3, 3, 10, 10])]
    assert found == pytest.approx([2.5, 2.5, 2.5, 2.5, 5.0, 5.0, 5.0])
    own = pace("paper", preferred_us=7 * US, step_us=2 * US)
    assert [s["preferred_us"] / US for s in gains(own, [5, 5, 3, 3])][-1] == 9


def test_fedscale_moves_the_percentile_when_utility_is_flat_or_jumps() -> None:
    found = [s["percentile"] for s in gains(pace("fedscale"), [5, 5, 5, 5, 40, 40, 60, 60])]
    assert found == [50, 50, 50, 50, 70, 70, 50, 50, 50]


def test_fedscale_remembers_who_was_chosen_for_a_score_while_places_are_filled_one_at_a_time() -> None:
    selector, state, rng = make("oort", variant="fedscale"), {"seen": 1}, np.random.default_rng(0)
    used = {"last_step": [0] * 4, "received": [1] * 4, "last_batch_rms": [1.0] * 4, "step": 1}
    state = selector.start() | state
    chosen: list[int] = []
    for _ in range(2):
        free = [c for c in range(4) if c not in chosen]
        one, state = selector.select(view(4, free, **used), 1, rng, state)
        chosen.extend(one.tolist())
    assert np.flatnonzero(state["exploited"]).tolist() == sorted(chosen)
    gained = {"last_step": np.where(np.isin(np.arange(4), chosen), 1, 0), "step": 2}
    assert selector.select(view(4, **used | gained), 1, rng, state)[1]["gains"][-1] > 0


def test_fedscale_prefers_a_percentile_of_all_known_durations() -> None:
    seen = view(
        5, [0, 1], last_duration_us=[9 * US, -1, 4 * US, -1, 1 * US], expected_us=lookup(np.full(5, 3 * US))
    )
    for percentile, expected in ((0.0, 1.0), (30.0, 3.0), (50.0, 4.0), (99.0, 9.0), (100.0, math.inf)):
        state = pace("fedscale", percentile=percentile).after(seen, pace("fedscale").start())
        again = pace("fedscale").after(seen, {**state, "percentile": percentile})
        assert again["preferred_us"] / US == expected
