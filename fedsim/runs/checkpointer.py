"""Writes the checkpoints of a run: when one is due, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from fedsim.common.signals import Interrupts
from fedsim.config.records import CheckpointSection
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.job_table import LANDED, RUNNING, JobTable
from fedsim.engine.state import RunState
from fedsim.records import checkpoint
from fedsim.records.recorder import Recorder
from fedsim.training.job import Cohort


class Checkpointer:
    """Writes checkpoints of a run between two instants of its event loop.

    Args:
        spent_s: wall time of the run in earlier processes, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        section: CheckpointSection,
        run_state: RunState,
        recorder: Recorder,
        interrupts: Interrupts,
        spent_s: float = 0.0,
    ) -> None:
        self.folder, self.section = folder, section
        self.run_state, self.recorder, self.interrupts = run_state, recorder, interrupts
        self._began = self._last = monotonic()
        self._spent_s, self._step = spent_s, run_state.step

    @property
    def spent_s(self) -> float:
        """Wall time of the run so far in seconds, over all processes that it ran in."""
        return self._spent_s + monotonic() - self._began

    def between(self, event_loop: EventLoop) -> None:
        """Save if a checkpoint is due; after an interrupt, save and raise KeyboardInterrupt."""
        interrupted = self.interrupts.asked
        if interrupted or self._due():
            self.save(event_loop)
        if interrupted:
            raise KeyboardInterrupt

    def _due(self) -> bool:
        section, every = self.section, self.section.every_steps
        if every and self.run_state.step // every > self._step // every:  # an instant may have several steps
            return True
        return 0 < section.every_s <= monotonic() - self._last

    def save(self, event_loop: EventLoop) -> None:
        """Write a checkpoint. Raises RunError if it cannot be written."""
        with event_loop.clock.part("checkpoint"):
            checkpoint.write(
                self.folder,
                self.state(event_loop),
                step=self.run_state.step,
                jobs=self.run_state.next_job,
                keep=self.section.keep,
            )
        self._last, self._step = monotonic(), self.run_state.step

    def state(self, event_loop: EventLoop) -> dict[str, Any]:
        """Return the state of the run, after waiting for the step under way; nothing else about the run changes."""
        event_loop.dispatcher.send()
        records = self.recorder.save()  # first: reports of the last step may amend jobs
        return {
            "records": records,
            "run_state": self.run_state.state(),
            "trainer": event_loop.trainer.save(),
            "spent_s": self.spent_s,
        }


def open_jobs(job_table: JobTable, versions: Sequence[int]) -> Iterator[Cohort]:
    """Return the jobs whose updates may still arrive, one cohort for each of `versions` that they started from.

    The oldest job of a cohort comes first. If the current version is not among them, no job that started from it was
    submitted: none would arrive in time.
    """
    table = job_table.table
    rows = np.flatnonzero((table["status"] == LANDED) | ((table["status"] == RUNNING) & (table["ok"] == 1)))
    rows = rows[np.argsort(table["id"][rows], kind="stable")]
    started = table["start"][rows]
    for version in versions:
        if (started == version).any():
            yield job_table.cohort(rows[started == version])
