"""REFL: Abdelmoniem et al. 2023, "REFL: Resource-Efficient Federated Learning" (EuroSys); github.com/ahmedcs/REFL.

The slot μ is the moving average of the durations D of rounds, μ <- (1 - a) D + a μ, a = 0.25, 1000 s at first.

The order, by `variant`:
- `paper`: lowest p first, the chance to be online in [t + μ, t + 2 μ]; ties at random.
- `released`: clients online throughout [t, t + μ] but not throughout [t + μ, t + 2 μ], then the others, each at random.
  The code's two modes differ in how many clients they take beyond the target; here never more than the free places.

The chance p, by `forecast`:
- `trace`: from the future itself (clairvoyant), as in the authors' experiments: 1 if the client is online during the
  whole slot, else 0. Time after a world's end counts as absence. The share `kept` of the clients that go first keep
  their place, as with the code's accuracy of forecasts; the code leaves the others out, here they join the rest.
- `learned`: from the hours at which the client was online before (`parts/hours_of_day.py`); `released` takes p > ½ for
  online.

The number of clients is N, or with `adaptive` max(1, N - S), S the jobs expected to report within μ; as in the code, at
most the share `cap` of N is cut. N is `target`, by default the number of free places. Stragglers are jobs that are
still running: with `late = "keep"` they occupy places, so give the pacing more places than `target`. The rule `refl`
(`algorithms/refl.py`) weighs their updates.

Only ties are drawn, so inclusion probabilities are known, but with `kept` below 1, where they are not stated.

Known to the server: times of steps, expected durations of the jobs that it dispatched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import choose_lowest
from fedsim.algorithms.selection.parts.durations import duration_option, durations_us
from fedsim.algorithms.selection.parts.hours_of_day import chances, looked
from fedsim.algorithms.selection.parts.world import online_throughout
from fedsim.common.option_requirements import With
from fedsim.engine.selector import Choice, Clients, Floats, Selector, State, View

Share = Annotated[float, Field(ge=0, le=1)]


def refl(
    *,
    variant: Literal["paper", "released"] = "paper",
    forecast: Literal["trace", "learned"] = "learned",
    a: Annotated[float, Field(ge=0, lt=1)] = 0.25,
    initial: str | float = "1000s",
    kept: Annotated[Share, With("forecast", "trace")] = 1.0,
    adaptive: bool = False,
    target: Annotated[int, Field(ge=1)] | None = None,
    cap: Annotated[Share, With("adaptive", True)] = 0.5,
) -> Selector:
    """Choose the least available clients first, and fewer of them while stragglers are about to report.

    Args:
        variant: which clients go first, at time t and with μ the average duration of a round. "paper": those that are
            least likely to be online in [t + μ, t + 2 μ]. "released" (the authors' code): those that are online
            throughout [t, t + μ] but not throughout [t + μ, t + 2 μ].
        forecast: how it is known who will be online. "trace": from the future itself (clairvoyant), as in the authors'
            experiments. "learned": from the hours of the day at which the client was online before.
        a: weight of the past in μ: after a round of duration D, μ becomes (1 - a) D + a μ.
        initial: μ before the first round.
        kept: share of the clients that go first which keep their place, in the manner of a forecast of this accuracy;
            the others join the rest.
        adaptive: whether the number of clients N is reduced by the number of jobs that are expected to report within μ,
            to 1 at least.
        target: N, the number of clients to choose, never more than the free places; None: the number of free places.
        cap: greatest share of N that `adaptive` cuts.
    """
    initial_us = duration_option("refl", "initial", initial)
    ranking = _Ranking(variant, forecast)

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Choice, State]:
        after = _clocked(view, state, a)
        after = looked(view, after) if adaptive or forecast == "learned" else after
        ranks = ranking.ranks(view, after)
        if forecast == "trace":
            ranks = np.where((ranks < 1) & (rng.random(len(ranks)) >= kept), 1.0, ranks)
        wanted = target or k
        if adaptive:
            wanted = max(1, wanted - _reporting(view, after), math.ceil(round((1 - cap) * wanted, 9)))
        choice = choose_lowest(view.candidates, ranks, min(wanted, k), rng)
        if forecast == "trace" and kept < 1:
            choice = Choice.unknown(choice.clients)
        return choice, _booked(view, after, choice.clients) if adaptive else after

    def start() -> State:
        return {"slot_us": float(initial_us), "step": 0, "step_us": 0}

    return Selector(select, start, clairvoyant=forecast == "trace", draws=False)


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The order of the candidates; the lowest rank goes first."""

    variant: str
    forecast: str

    def ranks(self, view: View, state: State) -> Floats:
        """Return [c] the rank of each candidate."""
        now, slot = view.now_us, round(state["slot_us"])
        later = self._chances(view, state, now + slot, now + 2 * slot)
        if self.variant == "paper":
            return later
        return np.where((self._chances(view, state, now, now + slot) > 0.5) & (later <= 0.5), 0.0, 1.0)

    def _chances(self, view: View, state: State, start_us: int, end_us: int) -> Floats:
        if self.forecast == "trace":
            assert view.world is not None
            online = online_throughout(view.world, start_us, end_us)
            return np.asarray(online[view.candidates], dtype=np.float64)
        return chances(state, view.candidates, np.array([start_us]), np.array([end_us]))


def _clocked(view: View, state: State, a: float) -> State:
    """Update the moving average with the mean duration of the steps since the last call, once for each of them."""
    steps = view.step - state["step"]
    if steps <= 0:
        return state
    mean_us = (view.step_us - state["step_us"]) / steps
    slot_us = mean_us + a**steps * (state["slot_us"] - mean_us)
    return {**state, "slot_us": max(slot_us, 1.0), "step": view.step, "step_us": view.step_us}


def _reporting(view: View, state: State) -> int:
    """Count the jobs that are expected to report within a slot."""
    if "due_us" not in state:
        return 0
    return int(np.count_nonzero(view.busy & (state["due_us"] <= view.now_us + state["slot_us"])))


def _booked(view: View, state: State, chosen: Clients) -> State:
    due_us = state["due_us"].copy() if "due_us" in state else np.zeros(view.n_clients, dtype=np.int64)
    due_us[chosen] = view.now_us + durations_us(view, chosen)
    return {**state, "due_us": due_us}
