"""What runs lost: jobs, steps and the time of devices, as a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.tables import word_counts
from fedsim.analysis.report.sentences import sentence, shares, spread
from fedsim.analysis.statistics.waste import USED, WASTED, waste_by_status

_LATE = ("late", "remembered")
_OTHERS = (
    ("late", "jobs", "came too late for their step"),
    ("stale", "jobs", "were too stale to use"),
    ("void", "jobs", "came in time for a step with too few updates"),
    ("empty", "steps", "had no update to use"),
    ("few", "steps", "had fewer updates than the minimum"),
)
"""Counts of `Work`, of what they are a part, and what is said of them."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a run, or several together, did and lost."""

    jobs: int = 0
    lost: int = 0
    late: int = 0
    """Jobs that arrived too late for their step, or after too many others."""
    stale: int = 0
    """Jobs whose update was older than `max_staleness` or the rule's memory allows."""
    void: int = 0
    """Jobs that arrived for a round with fewer updates than its minimum."""
    steps: int = 0
    empty: int = 0
    """Steps without an update to use."""
    few: int = 0
    """Steps that were not taken, as they had fewer updates than the minimum."""
    used_s: float = 0.0
    """Device time of used updates."""
    wasted_s: float = 0.0


def work_of(run: Run) -> Work:
    """Count what a run did and lost, from its tables."""
    jobs, steps = word_counts(run.jobs["status"]), word_counts(run.steps["status"])
    seconds = waste_by_status(run)["device_s"]
    return Work(
        jobs=len(run.jobs),
        lost=jobs.get("lost", 0),
        late=sum(jobs.get(status, 0) for status in _LATE),
        stale=jobs.get("stale", 0),
        void=jobs.get("void", 0),
        steps=len(run.steps),
        empty=steps.get("empty", 0),
        few=steps.get("void", 0),
        used_s=float(seconds.reindex(USED).sum()),
        wasted_s=float(seconds.reindex(WASTED).sum()),
    )


def together(works: Iterable[Work]) -> Work:
    """Return the sum of the work of several runs."""
    listed = list(works)
    return Work(**{field.name: sum(getattr(work, field.name) for work in listed) for field in fields(Work)})


def lost_work(works: Mapping[str, Work], each: str = "in each run") -> str:
    """Return what runs lost, by name, as one sentence; `each` says what the names are, see `shares`."""
    if not any(work.jobs for work in works.values()):
        return "No job was recorded."
    lost = {name: (work.lost, work.jobs) for name, work in works.items()}
    clauses = [f"clients lost {shares(lost, 'jobs', each)}" if _any(lost) else "no job was lost"]
    for part, whole, words in _OTHERS:
        found = {name: (getattr(work, part), getattr(work, whole)) for name, work in works.items()}
        if _any(found):
            clauses.append(f"{shares(found, whole, each)} {words}")
    total = {name: work.used_s + work.wasted_s for name, work in works.items()}
    wasted = {name: 100 * works[name].wasted_s / s for name, s in total.items() if s > 0}
    if any(wasted.values()):
        clauses.append(f"{spread(wasted)} of the clients' device time was wasted")
    text = "; ".join(clauses)
    return sentence(text[:1].upper() + text[1:])


def _any(parts: Mapping[str, tuple[int, int]]) -> bool:
    return any(part for part, _ in parts.values())
