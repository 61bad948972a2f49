"""What `fedsim.simulate`, `resume`, `fork` and `replay` return."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq

from fedsim import analysis
from fedsim.common.units import show_us
from fedsim.records.file_names import CLIENTS, WORLD
from fedsim.worlds.availability import sessions_of
from fedsim.worlds.trace import read_trace

_WARNED = {
    "no usable update": "every update that arrived was left out, as not finite or longer than bad_updates.limit, so "
    "the model is still the initial one; its jobs have the status nonfinite; a smaller train.lr may help",
    "accuracy is no number": "the model's outputs are not finite, so there is no accuracy; a smaller train.lr may help",
}
"""The text shown for each warning in a manifest but `no update used`."""
_UNUSED = {
    "late": "cancelled at its step",
    "lost": "the client left or failed, or chance lost the job",
    "stale": "older than pacing.max_staleness, or than the rule's memory",
    "unfinished": "the run ended first",
    "void": "in rounds with fewer updates than pacing.minimum",
}
"""Why no step used the updates of jobs, by status."""


@dataclass(frozen=True, slots=True)
class Result:
    """A run that is done or was interrupted."""

    folder: Path
    status: Literal["done", "interrupted"]
    """`interrupted` after Ctrl-C."""
    digest: str | None
    accuracy: float
    """Mean accuracy over clients at the last evaluation; NaN without one."""
    asked_to_stop: bool = False
    """Whether Ctrl-C or a signal asked to stop, be it after the last step of a run that is done."""

    @property
    def run(self) -> analysis.Run:
        """The run's tables, pictures and metrics, opened from its folder as they are now."""
        return analysis.open_run(self.folder)

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about how the run ended, such as that no step used an update; `fedsim run` prints it."""
        return tuple(notes(self.run))

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the run."""
        return analysis.run_html(self.run)


def notes(run: analysis.Run) -> Iterator[str]:
    """Yield what a user should know about how a run ended."""
    manifest = run.manifest
    if (warning := manifest.get("warning")) == "no update used":
        yield f"no step used an update, so the model is still the initial one: {_why_unused(run)}"
    elif warning:
        yield _WARNED.get(warning, warning)
    if manifest.get("ended_by") == "world":
        yield (
            f"ended at step {manifest['steps']:,}, before a limit of [stop]: no client is online or chosen any more, "
            "or every job is lost"
        )
    if manifest.get("ended_by") == "target" and not manifest["steps"]:
        yield "ended before its first step: the initial model meets stop.target"


def _why_unused(run: analysis.Run) -> str:
    """Return why no step of a run used an update, from its jobs or, without any, from its world."""
    if counts := run.manifest["jobs"]:
        return "jobs: " + ", ".join(f"{n:,} {status} ({_UNUSED[status]})" for status, n in counts.items())
    n = pq.read_metadata(run.folder / CLIENTS).num_rows
    sessions = sessions_of(read_trace(run.folder / WORLD), n, run.config["world"].get("unknown", "error"))
    starts_us = sessions.start_us[sessions.client < n]
    if not len(starts_us):
        return "no client is ever online"
    if (first_us := int(starts_us.min())) <= run.virtual_us:
        return "the selector chose no client"
    ended = (
        "stop.time" if run.manifest["ended_by"] == "time" else f"the run ended at {show_us(run.virtual_us)}"
    )
    return f"no client was online before {ended}; the first comes online at {show_us(first_us)}"
