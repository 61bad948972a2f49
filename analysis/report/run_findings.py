"""What runs say: those with equal seeds of the data are paired by client, others are not compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.analysis.opening.run import Run
from fedsim.analysis.report.document import Finding
from fedsim.analysis.report.doubts import different_ends, doubts, examine, last_changes
from fedsim.analysis.report.lost_work import lost_work, work_of
from fedsim.analysis.report.sentences import FEW_CLIENTS, Claims, listed, sentence, told
from fedsim.analysis.statistics.contrasts import Contrast, by_client, confidence, of_groups, of_tails
from fedsim.analysis.statistics.fairness import lowest_percent, tail_size
from fedsim.analysis.statistics.paired.differences import t_interval
from fedsim.analysis.statistics.participation import run_clients
from fedsim.analysis.tables.compare import compare
from fedsim.common.arrays import Floats
from fedsim.common.errors import RunError, TraceError

_PERCENT = 10
"""The share of clients that counts as worst off."""
PARTICIPATION = {
    "availability": ("least online", "online"),
    "used": ("whose updates were used least", "used"),
}
"""Measures of a client's participation, the best known first, and the clients that have least of it."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """Runs with the data of the first one that has an accuracy, and what keeps the others from being compared."""

    runs: tuple[Run, ...]
    """The baseline first; all have the same clients."""
    accuracy: tuple[Floats, ...]
    """[K] final accuracy of each client in each run, in percent."""
    refused: tuple[str, ...]
    worlds: frozenset[bool | None]
    """Whether the others saw the baseline's world; None where a world was not kept."""


def run_findings(runs: Sequence[Run]) -> Iterator[Finding]:
    """Yield what runs say. Raises FolderError if their files cannot be read."""
    pairing, gaps = _pair(runs), _Gaps.of(runs)
    others = len(pairing.runs) - 1
    comparisons = (2 * others if others > 0 else 1) + len(gaps.groups)
    contrasts = _contrasts(pairing, comparisons)
    if others < 0:
        lack = "has an accuracy" if pairing.refused else "was evaluated"
        yield Finding("accuracy", f"No run {lack}, so nothing can be said about accuracy.")
    elif others == 0:
        yield from _alone(pairing, comparisons)
    else:
        yield from _compared(pairing, contrasts)
    if said := gaps.told(comparisons):
        yield Finding("participation", said)
    yield Finding("lost work", lost_work({run.label: work_of(run) for run in runs}))
    yield Finding("doubts", sentence("; ".join(_doubts(runs, pairing, contrasts, comparisons))))


def _pair(runs: Sequence[Run]) -> Pairing:
    evaluated = [run for run in runs if run.evaluations()]
    base = next((run for run in evaluated if not np.isnan(_accuracy(run)).any()), None)
    if base is None:
        return Pairing((), (), tuple(map(_without_accuracy, evaluated)), frozenset())
    chosen, accuracy, refused, worlds = [base], [_accuracy(base)], [], set()
    for run in evaluated:
        if run is base:
            continue
        if run.seed_of("data") != base.seed_of("data"):
            key = "seeds.data" if "seeds" in {*run.config, *base.config} else "seed"
            refused.append(f"{run.label} has another {key} than {base.label} and is not compared")
            continue
        try:
            same_world = compare(base, run).same_world
        except RunError:
            refused.append(
                f"{run.label} was not evaluated on the clients of {base.label} and is not compared"
            )
            continue
        last = _accuracy(run, base.split)
        if np.isnan(last).any():
            refused.append(_without_accuracy(run))
            continue
        chosen.append(run)
        accuracy.append(last)
        worlds.add(same_world)
    return Pairing(tuple(chosen), tuple(accuracy), tuple(refused), frozenset(worlds))


def _accuracy(run: Run, split: str | None = None) -> Floats:
    """Return [K] the final accuracy of each client with samples, in percent; NaN from outputs that are not finite."""
    last = run.final(split)
    return 100 * last.accuracy[last.n > 0]


def _without_accuracy(run: Run) -> str:
    return f"{run.label} has no accuracy and is not compared"


def _alone(pairing: Pairing, comparisons: int) -> Iterator[Finding]:
    (run,), (accuracy,) = pairing.runs, pairing.accuracy
    k, mean = len(accuracy), float(np.mean(accuracy))
    ends = t_interval(accuracy, confidence(comparisons))
    around = f"[{ends[0]:.1f}, {ends[1]:.1f}]" if ends else f"({FEW_CLIENTS})"
    yield Finding(
        "accuracy", f"{run.label} ends at a mean accuracy of {mean:.1f} % {around} over {k} clients."
    )
    worst = lowest_percent(accuracy / 100, _PERCENT)
    text = f"its worst {_PERCENT} % ({tail_size(k, _PERCENT)} of {k} clients) end at {worst:.1f} %"
    yield Finding("worst-off clients", sentence(f"I{text[1:]}, {mean - worst:.1f} points below the mean"))


def _contrasts(pairing: Pairing, comparisons: int) -> tuple[list[Contrast], list[Contrast]]:
    """Return how the other runs differ from the baseline in the mean of all clients, and of the worst off."""
    if len(pairing.runs) < 2:
        return [], []
    first, *others = pairing.accuracy
    pairs = [(run.label, second) for run, second in zip(pairing.runs[1:], others, strict=True)]
    means = [by_client(name, first, second, comparisons) for name, second in pairs]
    return means, [of_tails(name, first, second, _PERCENT, comparisons) for name, second in pairs]


def _compared(pairing: Pairing, contrasts: tuple[list[Contrast], list[Contrast]]) -> Iterator[Finding]:
    first, base, (means, tails) = pairing.accuracy[0], pairing.runs[0].label, contrasts
    k = len(first)
    yield Finding("accuracy", f"In mean accuracy, {told(means, against(base, float(first.mean())))}.")
    worst = lowest_percent(first / 100, _PERCENT)
    text = f"For the worst {_PERCENT} % of clients ({tail_size(k, _PERCENT)} of {k}), "
    yield Finding("worst-off clients", f"{text}{told(tails, against(base, worst))}.")


def against(base: str, level: float | None, unit: str = "points") -> Claims:
    """Return what to say of differences from a baseline, whose percentage is `level` if it is to be named."""
    return Claims(
        better="{these} {are} better than {base}",
        worse="{these} {are} worse than {base}",
        unseen="no difference from {base} is seen for {these}",
        unconfirmed="the rank test does not confirm the difference from {base} for {these}",
        unit=unit,
        base=base,
        level="" if level is None else f"{level:.1f} %",
    )


def least_participation(
    run: Run, split: str | None = None, last: int = 1
) -> dict[str, tuple[Floats, Floats]]:
    """Return the accuracy of the quarter of clients that takes part least, and that of all others, in percent.

    Accuracies are means over the `last` evaluations on a split (default: the run's).

    One pair for each measure of `PARTICIPATION` that is known and not the same for all clients; none for unseen
    clients, which never take part. Clients with equal values stay together. Empty if the run was not evaluated or its
    world cannot be read, as sections of the report say, or if an accuracy is NaN.
    """
    try:
        frame = run_clients(run, split, last=last)
    except (RunError, TraceError):
        return {}
    accuracy = frame["accuracy_percent"].to_numpy(dtype=np.float64)
    groups: dict[str, tuple[Floats, Floats]] = {}
    if np.isnan(accuracy).any():
        return groups
    for by in PARTICIPATION:
        if by in frame:
            values = frame[by].to_numpy(dtype=np.float64)
            least = values <= np.quantile(values, 0.25)
            if least.any() and not least.all():  # none is, where no virtual time passed
                groups[by] = (accuracy[least], accuracy[~least])
    return groups


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Accuracy of the clients with least participation and of the others, by run."""

    by: str
    groups: dict[str, tuple[Floats, Floats]]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> _Gaps:
        """Group the clients of each run by the first measure that is known and varies in some run."""
        each = {run.label: least_participation(run) for run in runs}
        by = next((by for by in PARTICIPATION if any(by in groups for groups in each.values())), "")
        return cls(by, {label: groups[by] for label, groups in each.items() if by in groups})

    def told(self, comparisons: int) -> str:
        """Return whether the groups differ, as a sentence; empty if there are no groups."""
        if not self.groups:
            return ""
        found = [of_groups(name, *pair, comparisons) for name, pair in self.groups.items()]
        counts = {(len(group), len(group) + len(others)) for group, others in self.groups.values()}
        return participation_sentence(found, self.by, counts)


def participation_sentence(
    found: Sequence[Contrast], by: str, counts: set[tuple[int, int]], split: str | None = None
) -> str:
    """Return how the clients with least of `by` differ from the others; `counts` are their number and that of all.

    The sentence names `split`, if it is not None.
    """
    numbers, totals = zip(*counts, strict=True)  # ties stay together, so that they may be more than a quarter
    who = f"the {_span(numbers)} of {_span(totals)} clients {PARTICIPATION[by][0]}"
    claims = Claims(
        better=f"{who} end above the others with {{these}}",
        worse=f"{who} end below the others with {{these}}",
        unseen=f"no difference between {who} and the others is seen with {{these}}",
        unconfirmed=f"the rank test does not confirm the difference between {who} and the others with {{these}}",
    )
    text = f"{'' if split is None else f'on the {split} split, '}{told(found, claims)}"
    return sentence(text[:1].upper() + text[1:])


def _span(numbers: Sequence[int]) -> str:
    """Return `6 to 7`, or the number if all are the same."""
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most}"


def _doubts(
    runs: Sequence[Run],
    pairing: Pairing,
    contrasts: tuple[list[Contrast], list[Contrast]],
    comparisons: int,
) -> Iterator[str]:
    seed = (pairing.runs or runs)[0].manifest.get("seed")
    number = "" if seed is None else f" ({seed})"
    brackets = "brackets are 95 % intervals over clients, taken as independent"
    corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    yield (
        f"All of this is one seed{number}: {brackets}{corrected}, and another seed, with other data, world and"
        " selection, may say otherwise"
    )
    yield from pairing.refused
    if False in pairing.worlds:
        yield "compared runs met different worlds, so a difference need not be the rule's"
    elif None in pairing.worlds:
        yield "a run folder lacks world.parquet, so it is unknown whether the compared runs had the same world"
    yield from _within_noise(pairing, *contrasts)
    yield from filter(None, [different_ends(pairing.runs)])
    yield from doubts({run.label: examine(run) for run in runs})


def _within_noise(pairing: Pairing, means: list[Contrast], tails: list[Contrast]) -> Iterator[str]:
    """Yield clauses on claimed differences that are smaller than what a run moves between evaluations."""
    if all(each.verdict == "unseen" for each in (*means, *tails)):
        return
    floor = _floor(pairing, lambda accuracy: 100 * float(accuracy.mean()), np.median)
    if small := _smaller(means, floor):
        yield (
            f"the difference of {small} is within the noise floor: mean accuracy still moves by"
            f" {floor:.1f} points from one evaluation to the next"
        )
    # The mean of a few clients moves in jumps, which a median misses.
    floor = _floor(pairing, lambda accuracy: lowest_percent(accuracy, _PERCENT), np.max)
    if small := _smaller(tails, floor):
        yield (
            f"the difference of {small} for the worst {_PERCENT} % is within the noise floor: their accuracy still"
            f" moves by up to {floor:.1f} points from one evaluation to the next"
        )


def _floor(
    pairing: Pairing, statistic: Callable[[Floats], float], summary: Callable[[Floats], float]
) -> float:
    """Return the largest of the runs' changes of a statistic between evaluations, each summed up by `summary`."""
    changes = [last_changes(run, statistic) for run in pairing.runs]
    return max((float(summary(each)) for each in changes if len(each)), default=0.0)


def _smaller(contrasts: Sequence[Contrast], floor: float) -> str:
    """Return the names of claimed differences that are not above a floor but for rounding; empty if there are none."""
    names = [c.name for c in contrasts if c.verdict != "unseen" and abs(c.mean) < floor * (1 + 1e-9)]
    return listed(names) if names else ""
