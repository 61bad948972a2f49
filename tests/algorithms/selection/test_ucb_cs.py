"""UCB-CS: its index against the paper's sums, written out from a log of rounds, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fedsim.algorithms.selection.ucb_cs import index, ucb_cs
from fedsim.engine.selector import State, View
from views import choose, make, view

SIZES = np.array([10, 30, 20, 20, 50, 40, 30])
K = len(SIZES)


@dataclass
class Rounds:
    """Plays synchronous rounds: those chosen report the mean and the root mean square of their losses at once."""

    gamma: float
    k: int = 2
    silent: tuple[int, ...] = ()
    """Clients whose jobs are lost."""
    sizes: Any = field(default_factory=lambda: SIZES)
    log: list[dict[int, tuple[float, float]]] = field(default_factory=list)
    """By round, the mean loss and its standard deviation of each client that reported."""
    chosen: list[list[int]] = field(default_factory=list)
    state: State | None = None

    def __post_init__(self) -> None:
        n = len(self.sizes)
        self.seen: View = view(n, n_samples=self.sizes)

    def play(self, losses: Any, deviations: Any) -> None:
        picked, self.state = choose(make("ucb_cs", gamma=self.gamma), self.seen, self.k, 0, self.state)
        heard = np.array([c for c in picked if c not in self.silent], dtype=np.int64)
        step, columns = self.seen.step, {}
        for name in ("last_step", "last_dispatch", "dispatched", "last_train_loss", "last_loss_rms"):
            columns[name] = np.array(getattr(self.seen, name))
        columns["last_dispatch"][picked] = step
        columns["dispatched"][picked] += 1
        columns["last_step"][heard] = step
        columns["last_train_loss"][heard] = losses[heard]
        columns["last_loss_rms"][heard] = np.sqrt(losses[heard] ** 2 + deviations[heard] ** 2)
        self.seen = replace(self.seen, step=step + 1, now_us=step + 1, **columns)
        self.log.append({c: (losses[c], deviations[c]) for c in heard.tolist()})
        self.chosen.append(picked)

    def flat(self) -> list[int]:
        return [client for picked in self.chosen for client in picked]


def of_the_paper(rounds: Rounds) -> list[float]:
    """A_k after the rounds of a log: sums over all rounds, the last with weight 1."""
    gamma, t = rounds.gamma, len(rounds.log)
    total = sum(gamma ** (t - 1 - s) for s in range(t))
    sigma = max((deviation for _, deviation in rounds.log[-1].values()), default=math.nan)
    out = []
    for k in range(K):
        mine = [s for s in range(t) if k in rounds.log[s]]
        loss = sum(gamma ** (t - 1 - s) * rounds.log[s][k][0] for s in mine)
        number = sum(gamma ** (t - 1 - s) for s in mine)
        share = SIZES[k] / SIZES.sum()
        doubt = math.sqrt(2 * sigma**2 * math.log(total) / number) if mine else math.inf
        out.append(share * (loss / number + doubt) if mine else math.inf)
    return out


@pytest.mark.parametrize("gamma", [0.7, 0.95, 1.0])
def test_the_index_is_that_of_the_paper_in_each_round(gamma: float) -> None:
    draw, rounds = np.random.default_rng(5), Rounds(gamma)
    for _ in range(20):
        rounds.play(draw.uniform(0.5, 2, K), draw.uniform(0.1, 1, K))
        assert rounds.state is not None
        after = choose(ucb_cs(gamma=gamma), rounds.seen, 2, 0, rounds.state)
        expected = of_the_paper(rounds)
        np.testing.assert_allclose(index(rounds.seen, after[1]), expected, rtol=1e-12)
        if np.isfinite(expected).all():
            assert after[0] == np.argsort(expected)[::-1][:2].tolist()


def test_a_choice_of_this_step_counts_at_once() -> None:
    """Where places are filled one after the other, a client chosen in this step is less uncertain than its twin."""
    rounds = Rounds(0.7, K)
    rounds.play(np.ones(K), np.full(K, 0.5))
    rounds.play(np.ones(K), np.full(K, 0.5))
    state = choose(make("ucb_cs"), rounds.seen, 1, 0, rounds.state)[1]
    last = np.array(rounds.seen.last_dispatch)
    before = index(rounds.seen, state)
    last[2] = rounds.seen.step
    after = index(replace(rounds.seen, last_dispatch=last), state)
    assert before[2] == before[3]
    assert after[2] < after[3] == before[3]


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_everybody_is_tried_first(k: int) -> None:
    rounds = Rounds(0.7, k)
    for _ in range(-(-K // k)):
        rounds.play(np.ones(K), np.full(K, 0.5))
    assert set(rounds.flat()) == set(range(K))


def test_clients_that_are_alike_are_chosen_equally_often() -> None:
    rounds = Rounds(1.0, sizes=np.full(6, 10))
    for _ in range(60):
        rounds.play(np.ones(6), np.full(6, 0.5))
    assert np.ptp(np.bincount(rounds.flat(), minlength=6)) <= 1


def test_choices_make_the_indices_equal_where_losses_are_constant() -> None:
    """p (l + c / √N) is about the same for all that were chosen again: so often is a client chosen."""
    rounds = Rounds(1.0, 1, sizes=np.array([20, 22, 24, 26]))
    for _ in range(400):
        rounds.play(np.ones(4), np.full(4, 2.0))
    assert rounds.state is not None
    values = index(rounds.seen, choose(ucb_cs(gamma=1.0), rounds.seen, 1, 0, rounds.state)[1])
    assert values.max() / values.min() < 1.1
    count = np.bincount(rounds.flat(), minlength=4)
    assert (np.diff(count) > 0).all()
    assert count.min() > 20


def test_a_client_with_the_largest_losses_is_chosen_most_often() -> None:
    rounds, losses = Rounds(0.7, 1, sizes=np.full(5, 10)), np.array([1.0, 1.0, 3.0, 1.0, 1.0])
    for _ in range(40):
        rounds.play(losses, np.full(5, 0.1))
    assert np.argmax(np.bincount(rounds.flat(), minlength=5)) == 2


def test_a_client_that_never_reports_does_not_stay_first() -> None:
    rounds = Rounds(1.0, 1, silent=(4,), sizes=np.full(5, 10))
    for _ in range(50):
        rounds.play(np.ones(5), np.full(5, 0.5))
    count = np.bincount(rounds.flat(), minlength=5)
    assert np.ptp(count) <= 2, "it is chosen as often as others with the mean loss"
    silent = Rounds(0.7, 2, silent=tuple(range(K)))
    for _ in range(8):
        silent.play(np.ones(K), np.ones(K))
    assert set(silent.flat()) == set(range(K))


def test_what_happened_before_several_steps_is_counted_once_for_each() -> None:
    """A server that steps twice between two choices discounts twice."""
    seen = view(3, n_samples=np.full(3, 10), dispatched=[1, 1, 1], last_dispatch=[0, 0, 1], step=2)
    seen = replace(
        seen,
        last_step=np.array([0, 1, 1]),
        last_train_loss=np.array([2.0, 1.0, 4.0]),
        last_loss_rms=np.array([2.5, 1.5, 4.1]),
    )
    state = choose(ucb_cs(gamma=0.5), seen, 1)[1]
    assert state["losses"].tolist() == [1.0, 1.0, 4.0]
    assert state["reports"].tolist() == [0.5, 1.0, 1.0]
    assert state["choices"].tolist() == [0.5, 0.5, 1.0]
    assert state["steps"] == 1.5
    assert state["sigma"] == pytest.approx(max(math.sqrt(1.5**2 - 1), math.sqrt(4.1**2 - 16)))
