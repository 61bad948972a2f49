"""Parts of Oort: scores of clients, preferred duration of a round, barred clients. `oort.py` has the formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedsim.algorithms.selection.parts.draws import highest, lowest, others, part, proportional, share_of
from fedsim.algorithms.selection.parts.durations import durations_us, known_us
from fedsim.common.arrays import Mask
from fedsim.engine.selector import Clients, Floats, State, View

Variant = Literal["paper", "fedscale"]


@dataclass(frozen=True, slots=True)
class Rating:
    """Scores of clients, and draws by them."""

    variant: Variant
    clip: float
    uncertainty: float
    penalty: float
    cut_off: float
    fairness: float
    few_samples: int
    window: float

    def chosen(
        self,
        view: View,
        clients: Clients,
        k: int,
        share: float,
        preferred_us: float,
        rng: np.random.Generator,
    ) -> tuple[Clients, Clients]:
        """Return the clients chosen for their score and those to explore, for whom `share` of k places is meant."""
        times = durations_us(view, clients).astype(np.float64)
        scores = self.scores(view, clients, times, preferred_us)
        tried = view.last_step[clients] >= 0
        n_new, n_tried = places(k, self.explorers(k, share, rng), tried)
        exploited = self.exploited(clients[tried], scores[tried], n_tried, rng)
        return exploited, self.explored(view, clients[~tried], times[~tried], scores[~tried], n_new, rng)

    def explorers(self, k: int, share: float, rng: np.random.Generator) -> int:
        """Return how many of `k` places are meant for exploration; FedScale's code rounds the others down."""
        return part(k, share, rng) if self.variant == "paper" else k - share_of(k, 1 - share)

    def scores(self, view: View, clients: Clients, times_us: Floats, preferred_us: float) -> Floats:
        """Return [c] the score of each client; for clients that no step has used yet, the weight of exploring them."""
        tried = view.last_step[clients] >= 0
        slow = self._slowness(times_us, preferred_us)
        fresh = np.minimum(view.n_samples[clients], self.few_samples).astype(np.float64)
        worth = np.where(tried, utility(view, self.variant)[clients], fresh)
        if tried.any():
            worth[tried] = self._clipped(worth, tried) + self._doubt(view, clients[tried])
        worth = np.abs(worth * slow)
        behind = view.received.max() - view.received[clients]
        return np.where(tried, (1 - self.fairness) * worth + self.fairness * behind, worth)

    def exploited(self, clients: Clients, scores: Floats, k: int, rng: np.random.Generator) -> Clients:
        """Draw `k` clients in proportion to score among those above the cut-off."""
        if k < 1:
            return clients[:0]
        order = highest(np.arange(len(clients)), scores, len(clients), rng)
        ranked = scores[order]
        if self.variant == "paper":
            n = int(np.count_nonzero(ranked >= self.cut_off * ranked[k - 1]))
        else:
            above = int(np.count_nonzero(ranked >= self.cut_off * ranked[min(k, len(ranked) - 1)]))
            n = min(max(above, 10 * k + 1), len(ranked))
        return proportional(clients[order[:n]], ranked[:n], k, rng)

    def explored(
        self,
        view: View,
        clients: Clients,
        times_us: Floats,
        weights: Floats,
        k: int,
        rng: np.random.Generator,
    ) -> Clients:
        """Choose `k` clients of those that no step has used yet, first those that had no job at all."""
        at = np.arange(len(clients))
        new = view.dispatched[clients] == 0
        n_new = min(k, int(np.count_nonzero(new)))
        parts = [
            self._explored(at[mask], times_us[mask], weights[mask], n, rng)
            for mask, n in ((new, n_new), (~new, k - n_new))
        ]
        return clients[np.concatenate(parts)]

    def _explored(
        self, at: Clients, times_us: Floats, weights: Floats, k: int, rng: np.random.Generator
    ) -> Clients:
        if self.variant == "paper":
            return lowest(at, times_us, k, rng)
        best = highest(np.arange(len(at)), weights, share_of(k, self.window), rng)
        return proportional(at[best], weights[best], k, rng)

    def _clipped(self, worth: Floats, tried: Mask) -> Floats:
        """Return the statistical utility of those tried, with outliers cut off."""
        if self.variant == "paper":
            return np.minimum(worth[tried], np.quantile(worth[tried], self.clip))
        known = np.sort(worth[worth > 0])
        if not len(known):
            return np.zeros(np.count_nonzero(tried))
        clip = known[min(int(len(known) * self.clip), len(known) - 1)]
        low = 0.999 * known[0]
        return np.asarray((np.minimum(worth[tried], clip) - low) / max(known[-1] - low, 1e-4))

    def _doubt(self, view: View, clients: Clients) -> Floats:
        """Return the temporal uncertainty of clients that a step has used."""
        return np.sqrt(self.uncertainty * math.log(view.step + 1) / (view.last_step[clients] + 1))

    def _slowness(self, times_us: Floats, preferred_us: float) -> Floats:
        late = times_us > preferred_us
        ratio = np.divide(preferred_us, times_us, out=np.ones(len(times_us)), where=late)
        return np.asarray(ratio**self.penalty)


@dataclass(frozen=True, slots=True)
class Pace:
    """The preferred duration T of a round, and how it adapts.

    State: `gains`, the utility gained in each of the last 2 W steps; `seen`, the steps counted; `exploited` [K],
    whether the client's last choice was for its score; `preferred_us`, T; for "fedscale" the `percentile`, for "paper"
    the `step_us` by which T grows.
    """

    variant: Variant
    rounds: int
    percentile: float
    delta: float
    preferred_us: int | None
    step_us: int | None

    def start(self) -> State:
        """Return the state before the first choice."""
        return {"gains": np.zeros(0), "seen": 0, "percentile": self.percentile}

    def after(self, view: View, state: State) -> State:
        """Return the state with all steps up to now counted and the current T."""
        after = dict(state)
        if "preferred_us" not in state and self.variant == "paper":
            first = float(np.nanpercentile(known_us(view), self.percentile))
            after["preferred_us"] = first if self.preferred_us is None else float(self.preferred_us)
            after["step_us"] = after["preferred_us"] if self.step_us is None else float(self.step_us)
        for step in range(state["seen"], view.step):
            gains = np.append(after["gains"], self._gain(view, step, state.get("exploited")))
            after["gains"] = gains[-2 * self.rounds :] if self.rounds else gains[:0]
            after["seen"] = step + 1
            if self.rounds and (step + 1) % self.rounds == 0 and len(gains) >= 2 * self.rounds:
                after.update(self._relaxed(after))
        if self.variant == "fedscale":
            after["preferred_us"] = _at_percentile(known_us(view), after["percentile"])
        return after

    def _gain(self, view: View, step: int, exploited: Any) -> float:
        used = view.last_step == step
        worth = utility(view, self.variant)
        if self.variant == "paper":
            return float(worth[used].sum())
        used = used & exploited if exploited is not None else used & False
        return float(worth[used].sum() / (np.count_nonzero(used) + 1e-4))

    def _relaxed(self, state: State) -> State:
        before, now = state["gains"][: self.rounds].sum(), state["gains"][self.rounds :].sum()
        if self.variant == "paper":
            return {"preferred_us": state["preferred_us"] + (state["step_us"] if now < before else 0.0)}
        change, percentile = abs(now - before), state["percentile"]
        if change <= 0.1 * before:
            percentile = min(100.0, percentile + self.delta)
        elif change >= 5 * before:
            percentile = max(self.delta, percentile - self.delta)
        return {"percentile": percentile}


def utility(view: View, variant: Variant) -> Floats:
    """Return [K] the statistical utility n ℓ of each client, 0 where no loss is known."""
    rms = view.last_loss_rms if variant == "paper" else view.last_batch_rms
    return np.nan_to_num(view.n_samples * rms, nan=0.0)


def places(k: int, explorers: int, tried: Mask) -> tuple[int, int]:
    """Return how many of `k` places go to clients not tried, for whom `explorers` are meant, and to those tried."""
    n_tried = int(np.count_nonzero(tried))
    n_new = min(explorers, len(tried) - n_tried)
    from_tried = min(k - n_new, n_tried)
    return min(k - from_tried, len(tried) - n_tried), from_tried


def not_barred(view: View, limit: int | Literal["never"], share: float, rng: np.random.Generator) -> Clients:
    """Return the candidates that are not barred; clients with more than `limit` updates are, most frequent first."""
    if limit == "never":
        return view.candidates
    over, most = np.flatnonzero(view.received > limit), share_of(view.n_clients, share)
    barred = over if len(over) <= most else highest(over, view.received[over], most, rng)
    return others(view.candidates, barred)


def _at_percentile(known: Floats, percentile: float) -> float:
    if percentile >= 100:
        return math.inf
    times = np.sort(known[~np.isnan(known)])
    return float(times[min(int(len(times) * percentile / 100), len(times) - 1)])
