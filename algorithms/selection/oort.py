"""Oort: Lai et al. 2021, "Oort: Efficient Federated Learning via Guided Participant Selection" (OSDI), Algorithm 1.

Of k places, the share ε goes to clients that no step has used yet, the rest to those with the best scores. R is the
round (server steps taken, plus one), L_i the round that used client i last, n_i its samples, ℓ_i the root mean square
of the losses of samples in its last job, each taken before its gradient step, t_i the duration of that job (expected,
if none arrived), T the preferred duration.

`variant = "paper"`:
- ℓ_i is over all samples that the job trained on, each as often as it did.
- score = (min(n_i ℓ_i, clip) + √(0.1 ln R / L_i)) · (T / t_i)^α if T < t_i, α = 2; clip is the 95th percentile.
  With `fairness` f: (1 - f) score + f (max_j r_j - r_i), r the updates received.
- ε = max(0.2, 0.9 · 0.98^(R - 1)). Exploitation draws in proportion to score among those above 95 % of the lowest score
  that would still be taken; exploration takes the fastest first.
- Pacer: every W = 20 rounds, if the utility gained in the last W is below that of the W before, T grows by a step. T
  and the step start as the 30th percentile of durations, unless `preferred` sets them.
- A client that has sent more than 10 updates is barred.
`variant = "fedscale"` (github.com/SymbioticLab/FedScale, thirdparty/oort), which differs:
- ℓ_i is over the samples of the job's last minibatch.
- (min(u_i, clip) - min u) / (max u - min u) with min scaled by 0.999 replaces u; clip at 90 %; clients not explored yet
  count in these with min(n_i, 600), 600 being 20 local steps of batch size 30.
- ε ends at 0.3; the cut-off is at 5 % of the best score not taken, and the list extends to 10 times the number of
  places. Exploration draws in proportion to min(n_i, 600) · (T / t_i)^2 if T < t_i among the best 5 times as many.
- T is the 30th percentile of durations; every 20 rounds from the 40th, it is the 35th and so on if the utility gained
  changed by no more than 10 %, the 25th and so on if by 5 times or more; the 100th means no limit.
- No client is barred; the first round is random. The places to exploit are rounded down, not those to explore.

Deviations and choices:
- ε k is rounded down; less than one place is the probability of one, so that pacing that fills places one at a time
  explores too.
- A client whose jobs were all lost stays unexplored, behind those that had none; so does a client whose updates were
  never used. Places that one part cannot fill go to the other.
- Barred clients, `barred_share` (0.3) of all at most, come last instead of never: a run cannot wait for other clients.
- The pacer checks every W rounds, as FedScale's does.
- Clients whose update a step used gain utility; FedScale takes the mean over those chosen to exploit.
- n_i is the whole data set in either variant.

Known to the server: data sizes, losses, durations, the speeds of candidates at this instant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import topped_up
from fedsim.algorithms.selection.parts.durations import duration_option
from fedsim.algorithms.selection.parts.oort_scores import Pace, Rating, Variant, not_barred
from fedsim.common.option_requirements import Unless, Where, With
from fedsim.engine.selector import Clients, Selector, State, View

Share = Annotated[float, Field(ge=0, le=1)]
BarredAfter = int | Literal["never"]
Positive = Annotated[float, Field(gt=0)]
OfPaper, OfFedScale = With("variant", "paper"), With("variant", "fedscale")
Paced = Unless("pacer", 0)
Percentile = Where(
    lambda o: o.variant == "fedscale" or o.preferred is None, "beside 'preferred'; leave one of them out"
)
Barring = Where(
    lambda o: o.barred_after != "never" and (o.variant == "paper" or o.barred_after is not None),
    "where nobody is barred; it needs a number as 'barred_after'",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OortOptions:
    """Options of `oort`; defaults of None depend on `variant`."""

    variant: Variant = "paper"
    """The paper's algorithm, or FedScale's code."""
    exploration: Share = 0.9
    """ε in the first round."""
    exploration_decay: Share = 0.98
    """Factor on ε per round."""
    exploration_floor: Share | None = None
    """Least ε: 0.2 for "paper", 0.3 for "fedscale"."""
    clip: Share | None = None
    """Quantile at which n ℓ is cut off: 0.95 for "paper", 0.9 for "fedscale"."""
    uncertainty: Annotated[float, Field(ge=0)] = 0.1
    """Factor under the root of the score."""
    penalty: Annotated[float, Field(ge=0)] = 2.0
    """α, the exponent of T / t."""
    cut_off: Share | None = None
    """Share of the lowest score that qualifies for the draw: 0.95 for "paper", 0.05 for "fedscale"."""
    fairness: Share = 0.0
    """f, the weight of having sent few updates."""
    preferred: Annotated[str | float | None, OfPaper] = None
    """T at the start, a duration; by default by `percentile`."""
    preferred_step: Annotated[str | float | None, OfPaper, Paced] = None
    """The duration by which T grows; by default T at the start."""
    percentile: Annotated[float, Field(ge=0, le=100), Percentile] = 30.0
    """Percentile of durations that T is at the start."""
    pacer: Annotated[int, Field(ge=0)] = 20
    """W, rounds between changes of T; 0: T does not change."""
    pacer_delta: Annotated[Positive, OfFedScale, Paced] = 5.0
    """Change of the percentile."""
    barred_after: Annotated[int, Field(ge=0)] | Literal["never"] | None = None
    """Updates beyond which a client is barred: 10 for "paper", "never" for "fedscale"."""
    barred_share: Annotated[Share, Barring] = 0.3
    """Largest share of clients that are barred."""
    few_samples: Annotated[int, Field(ge=1), OfFedScale] = 600
    """Most samples that count of a client that no step has used yet."""
    window: Annotated[float, Field(ge=1), OfFedScale] = 5.0
    """How many times as many clients as places exploration draws from."""


_DEFAULTS: dict[Variant, dict[str, Any]] = {
    "paper": {"exploration_floor": 0.2, "clip": 0.95, "cut_off": 0.95, "barred_after": 10},
    "fedscale": {"exploration_floor": 0.3, "clip": 0.9, "cut_off": 0.05, "barred_after": "never"},
}


def oort(options: OortOptions) -> Selector:
    """Choose clients of high statistical and system utility, and explore those not used yet."""
    by_variant = _DEFAULTS[options.variant].items()
    o = replace(options, **{name: value for name, value in by_variant if getattr(options, name) is None})
    rating = Rating(
        variant=o.variant,
        clip=cast(float, o.clip),
        uncertainty=o.uncertainty,
        penalty=o.penalty,
        cut_off=cast(float, o.cut_off),
        fairness=o.fairness,
        few_samples=o.few_samples,
        window=o.window,
    )
    pace = Pace(
        variant=o.variant,
        rounds=o.pacer,
        percentile=o.percentile,
        delta=o.pacer_delta,
        preferred_us=_duration_us("preferred", o.preferred),
        step_us=_duration_us("preferred_step", o.preferred_step),
    )
    return Selector(_Choice(rating, pace, o).select, pace.start, needs=frozenset({"losses"}))


def _duration_us(name: str, value: str | float | None) -> int | None:
    return None if value is None else duration_option("oort", name, value)


@dataclass(frozen=True, slots=True)
class _Choice:
    """One choice of clients: exploitation by score, exploration, and who is barred."""

    rating: Rating
    pace: Pace
    options: OortOptions

    def select(self, view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Clients, State]:
        o, after = self.options, self.pace.after(view, state)
        if o.variant == "fedscale" and view.step == 0:
            return rng.permutation(view.candidates)[:k], after
        clients = not_barred(view, cast(BarredAfter, o.barred_after), o.barred_share, rng)
        share = max(cast(float, o.exploration_floor), o.exploration * o.exploration_decay**view.step)
        exploited, explored = self.rating.chosen(view, clients, k, share, after["preferred_us"], rng)
        chosen = topped_up(np.concatenate([exploited, explored]), view.candidates, k, rng)
        for_score = state.get("exploited", np.zeros(view.n_clients, dtype=bool)).copy()
        for_score[chosen] = False
        for_score[exploited] = True
        return chosen, {**after, "exploited": for_score}
