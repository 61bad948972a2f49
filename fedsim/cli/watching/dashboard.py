"""The dashboard of `fedsim run --live`: collects progress after each step and repaints a few times a second.

The dashboard has no thread, does not read the files of a running run, and changes no result.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import psutil
from rich.console import Console
from rich.live import Live

from fedsim import analysis
from fedsim.cli.watching.dashboard_state import Arm, Picture
from fedsim.cli.watching.dashboard_view import View
from fedsim.integrations.trackers import evaluation_of
from fedsim.runs.progress import Progress, Watch, share_done

_EVERY_S = 0.25
_REST = 99
"""The next repaint waits at least this many times as long as the last one took: painting takes 1 % of the time."""
_RECENT = 40
"""Repaints over which the steps per second are averaged."""


@contextmanager
def dashboard(console: Console, names: Sequence[str]) -> Iterator[Watch]:
    """Yield a watcher that paints a dashboard of runs on a terminal.

    `names` are the runs known beforehand; others are added when they start.
    """
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Dashboard(names, live)


class Dashboard:
    """Records each step, which takes microseconds, and repaints at most four times a second."""

    def __init__(self, names: Sequence[str], live: Live) -> None:
        self.live = live
        now = perf_counter()
        self.picture = Picture([Arm(name) for name in names], now)
        self.last: Progress | None = None
        self.run_started = self.due = now
        self.recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self.process = psutil.Process()

    def __call__(self, progress: Progress) -> None:
        """Record what is new, and repaint if it is time."""
        now = perf_counter()
        if self.last is None or progress.folder != self.last.folder:
            self._begin(progress, now)
        self.last = progress
        self._add_rows(progress)
        if now >= self.due:
            self._update_arm(progress, now)
            self._update_picture(progress, now)
            self.live.update(View(self.picture), refresh=True)
            took = perf_counter() - now
            self.due = now + max(_EVERY_S, (1 + _REST) * took)

    def _begin(self, progress: Progress, now: float) -> None:
        """Switch to a new run; the run before has ended."""
        picture = self.picture
        if self.last is not None:
            self._update_arm(self.last, now)
            ended = picture.arm
            ended.state, ended.done = "ended", 1.0
            ended.measure(next(reversed(analysis.open_run(self.last.folder).evaluations()), None))
        name, names = progress.spec.config.name, [arm.name for arm in picture.arms]
        if name not in names:
            picture.arms.append(Arm(name))
            names.append(name)
        clients = progress.spec.world.clients
        self.picture = Picture(picture.arms, picture.started_s, names.index(name), clients)
        self.run_started = now
        self.recent.clear()
        arm = self.picture.arm
        arm.state, arm.share_at_start = "running", share_done(progress)

    def _add_rows(self, progress: Progress) -> None:
        """Add the rows recorded since the step before."""
        picture, recent_rows = self.picture, progress.recent_rows
        for row in recent_rows.steps:
            picture.late += row["late"]
            picture.updates, picture.staleness = row["updates"], row["mean_staleness"]
        for measured in recent_rows.evaluations:
            if measured.split == progress.spec.config.evaluate.split and len(measured.found.n):
                evaluation = evaluation_of(measured)
                picture.accuracy.append(100 * float(evaluation.accuracy.mean()))
                picture.arm.measure(evaluation)

    def _update_arm(self, progress: Progress, now: float) -> None:
        """Update the progress of the run."""
        arm, run_state = self.picture.arm, progress.run_state
        arm.done, arm.step, arm.now_us = share_done(progress), run_state.step, run_state.now_us
        arm.wall_s = now - self.run_started

    def _update_picture(self, progress: Progress, now: float) -> None:
        """Update the numbers that only the picture needs."""
        picture, run_state = self.picture, progress.run_state
        picture.elapsed_s = now - picture.started_s
        picture.in_flight, picture.lost = run_state.in_flight, run_state.lost_total
        picture.online = int(progress.spec.world.online(run_state.now_us).sum())
        self.recent.append((now, run_state.step))
        (before, step), (_, last) = self.recent[0], self.recent[-1]
        picture.steps_per_s = (last - step) / (now - before) if now > before else math.nan
        picture.memory_bytes = self.process.memory_info().rss
        picture.free_bytes = psutil.virtual_memory().available
