"""FedMDFG's search for the length of its step: Pan et al. 2023, "FedMDFG" (AAAI)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.server.rule import Floats, LineSearch


def search_steps(base_lr: float, s: int, scale: float, *, any_absent: bool) -> Iterator[float]:
    """Yield the step sizes to try: from 2^s η, or η with absent rows, halving down to 2^-s η / `scale`.

    `scale` is how much longer the direction became by its last rescaling.
    """
    step = base_lr * (1.0 if any_absent else 2.0**s)
    least = base_lr * 2.0**-s / scale
    while step >= least:
        yield step
        step /= 2


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """The losses `[m]` of the present clients after a trial step."""

    step: float
    losses: Floats


def accepted(
    trial: Trial,
    before: Floats,
    slopes: Floats,
    *,
    guided: bool,
    form: Literal["paper", "released"] = "paper",
    beta: float = 1e-4,
) -> bool:
    """Whether every loss fell enough and, for a guided direction, the losses became more equal.

    `slopes` `[m]` are g_i·d >= 0. Enough is at least `beta` step g_i·d (Armijo). A loss that is NaN did not fall. The
    authors' code, by a slip of the sign, tolerates a rise of that size, and it compares the cosine between losses and 1
    with 1/√m.
    """
    sign = 1.0 if form == "paper" else -1.0
    if not (before - trial.losses >= sign * beta * trial.step * slopes).all():
        return False
    if not guided:
        return True
    reference = _cosine(before) if form == "paper" else 1 / math.sqrt(len(before))
    return _cosine(trial.losses) > reference


def chosen(trials: Sequence[Trial], before: Floats, base_lr: float, *, any_absent: bool) -> Trial:
    """Return the trial to take when none was accepted: the first whose summed loss fell, else the smallest sum.

    With absent rows, steps above `base_lr` do not count as the first.
    """
    total = float(before.sum())
    for trial in trials:
        if trial.losses.sum() < total and not (any_absent and trial.step > base_lr):
            return trial
    sums = [float(trial.losses.sum()) for trial in trials]
    return trials[int(np.argmin(np.nan_to_num(sums, nan=math.inf, posinf=math.inf)))]


@dataclass(frozen=True, slots=True, eq=False)
class SearchStart:
    """What a search starts from: k of the present clients, and the direction to be scaled."""

    clients: NDArray[np.intp]
    """[k] positions of those that count among the present clients."""
    losses: Floats | None
    """[k] their losses before the step; None if they are of older models: a trial of length 0 measures them."""
    slopes: Floats
    """[k] g_i·d of each of them."""
    guided: bool
    """Whether the direction follows a guidance row."""
    any_absent: bool
    """Whether rows of absent clients formed the direction."""


def line_search(s: int, scale: float, start: SearchStart) -> LineSearch:
    """Return the search over the factors of `search_steps` on η: it takes the first one accepted, or `chosen`."""
    lengths = tuple(search_steps(1.0, s, scale, any_absent=start.any_absent))
    first = 0 if start.losses is not None else 1
    steps, before = (0.0,) * first + lengths, start.losses

    def is_accepted(trial: Trial, before: Floats) -> bool:
        return accepted(trial, before, start.slopes, guided=start.guided)

    def accepts(position: int, losses: Floats) -> bool:
        nonlocal before
        if position < first:
            before = losses[start.clients]
            return False
        assert before is not None
        return is_accepted(Trial(steps[position], losses[start.clients]), before)

    def choose(losses: Floats) -> int:
        of_start = losses[:, start.clients]
        now = of_start[0] if start.losses is None else start.losses
        trials = [Trial(steps[i], of_start[i]) for i in range(first, len(losses))]
        for position, trial in enumerate(trials):
            if is_accepted(trial, now):
                return first + position
        return first + trials.index(chosen(trials, now, 1.0, any_absent=start.any_absent))

    return LineSearch(steps, choose, accepts)


def _cosine(losses: Floats) -> float:
    norm = float(np.linalg.norm(losses))
    return float(losses.sum()) / (norm * math.sqrt(len(losses))) if norm > 0 else 1.0
