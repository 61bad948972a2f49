"""F3AST: its choices and rates against the paper's formulas, written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsim.engine.selector import State
from views import make, stated, view

SIZES = np.array([10, 30, 20, 25, 50, 40, 35, 15])
SHARES = SIZES / SIZES.sum()


def rounds(count: int, k: int, there: Any, **options: Any) -> tuple[list[Any], list[State]]:
    """Choose `count` times among the clients that `there(round)` names; return choices and states."""
    selector, state, choices, states = make("f3ast", **options), None, [], []
    for step in range(count):
        seen = view(8, there(step), n_samples=SIZES, step=step)
        choice, state = stated(selector, seen, min(k, len(seen.candidates)), step, state)
        choices.append(choice)
        states.append(state)
    return choices, states


@pytest.mark.parametrize("b", [0.01, 0.2])
@pytest.mark.parametrize("initial", ["places", "samples", "equal"])
def test_choices_and_rates_are_those_of_the_paper(b: float, initial: str) -> None:
    draw = np.random.default_rng(1)
    online = [np.flatnonzero(draw.random(8) < 0.7) for _ in range(30)]
    online = [who if len(who) > 3 else np.arange(8) for who in online]
    choices, states = rounds(30, 3, lambda step: online[step], b=b, initial=initial)
    rate = {"places": np.full(8, 3 / 8), "samples": SHARES, "equal": np.full(8, 1 / 8)}[initial]
    for who, choice, state in zip(online, choices, states, strict=True):
        value = {int(c): (SHARES[c] / rate[c]) ** 2 for c in who}
        worst = min(value[c] for c in choice.clients.tolist())
        left = [v for c, v in value.items() if c not in choice.clients]
        assert max(left, default=0.0) <= worst * (1 + 1e-12)
        rate = (1 - b) * rate + b * np.isin(np.arange(8), choice.clients)
        np.testing.assert_allclose(state["rate"], rate, rtol=1e-12)
        np.testing.assert_allclose(choice.inclusion, rate[choice.clients], rtol=1e-12)


def test_rates_add_up_to_the_places_from_the_start_and_those_of_the_code_in_the_long_run() -> None:
    _, states = rounds(5, 3, lambda step: range(8))
    assert [state["rate"].sum() for state in states] == pytest.approx([3.0] * 5)
    _, states = rounds(600, 3, lambda step: range(8), initial="equal")
    assert states[0]["rate"].sum() == pytest.approx(0.99 + 0.03)
    assert states[-1]["rate"].sum() == pytest.approx(3, rel=0.01)


def test_rates_follow_the_weights_where_all_are_there() -> None:
    """Σ a² / r is least, over rates that add up to k, where r is in proportion to a."""
    choices, states = rounds(3000, 2, lambda step: range(8), b=0.01)
    np.testing.assert_allclose(states[-1]["rate"], 2 * SHARES, rtol=0.12)
    share = np.bincount(np.concatenate([c.clients for c in choices[500:]]), minlength=8) / 2500
    np.testing.assert_allclose(share, 2 * SHARES, rtol=0.1)


def test_a_client_that_is_seldom_there_is_chosen_when_it_is() -> None:
    choices, _ = rounds(400, 2, lambda step: range(8) if step % 10 == 0 else range(1, 8), b=0.05)
    when = [step for step, choice in enumerate(choices) if 0 in choice.clients]
    assert len(when) >= 35, "of the 40 times that it is online"


def test_clients_without_samples_come_last() -> None:
    seen = view(4, n_samples=np.array([0, 5, 5, 5]))
    for initial in ("places", "samples"):
        choice, _ = stated(make("f3ast", initial=initial), seen, 3)
        assert sorted(choice.clients.tolist()) == [1, 2, 3]
        assert len(stated(make("f3ast", initial=initial), seen, 4)[0]) == 4
