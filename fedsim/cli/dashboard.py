"""What `fedsim run --live` knows: where each run of an experiment stands, told step by step and painted now and then.

Nothing here runs in a thread or reads what a run writes while it goes on, and no result depends on it.
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
from fedsim.cli.dashboard_state import Arm, Picture
from fedsim.cli.dashboard_view import View
from fedsim.cli.progress import shown
from fedsim.cli.tensorboard import evaluation_of
from fedsim.engine.record_words import PERSONAL
from fedsim.records.recent_rows import RecentRows
from fedsim.runs.result import Progress, Watch, share_done

_EVERY_S = 0.25
_REST = 99
"""At least this many times as long as a picture took passes until the next: a hundredth of the time at most."""
_RECENT = 40
"""Pictures over which the steps per second are taken."""


@contextmanager
def dashboard(console: Console, names: Sequence[str], quiet: bool = False) -> Iterator[Watch]:
    """Yield a watcher that paints a dashboard of runs, those of these names and others; nothing if `quiet`.

    Where the console is no terminal, or one that cannot move its cursor, it shows plain lines.
    """
    if quiet or not console.is_terminal or console.is_dumb_terminal:
        with shown(console, quiet) as watch:
            yield watch
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Dashboard(names, live)


class Dashboard:
    """Hears of each step, which costs microseconds, and paints at most four times a second."""

    def __init__(self, names: Sequence[str], live: Live) -> None:
        self.live = live
        now = perf_counter()
        self.picture = Picture([Arm(name) for name in names], now)
        self.last: Progress | None = None
        self.begun = self.due = now
        self.recent: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        self.process = psutil.Process()

    def __call__(self, progress: Progress) -> None:
        """Note what is new, and paint if it is time."""
        now = perf_counter()
        if self.last is None or progress.folder != self.last.folder:
            self._begin(progress, now)
        self.last = progress
        self._note(progress.recent_rows)
        if now >= self.due:
            self._stand(progress, now)
            self._look(progress, now)
            self.live.update(View(self.picture), refresh=True)
            took = perf_counter() - now
            self.due = now + max(_EVERY_S, (1 + _REST) * took)

    def _begin(self, progress: Progress, now: float) -> None:
        """Another run has begun, and the one before has ended."""
        picture = self.picture
        if self.last is not None:
            self._stand(self.last, now)
            ended = picture.arm
            ended.state, ended.done = "ended", 1.0
            ended.measure(next(reversed(analysis.open(self.last.folder).evaluations()), None))
        name, names = progress.setup.config.name, [arm.name for arm in picture.arms]
        if name not in names:
            picture.arms.append(Arm(name))
            names.append(name)
        clients = progress.setup.world.clients
        self.picture = Picture(picture.arms, picture.started_s, names.index(name), clients)
        self.begun = now
        self.recent.clear()
        arm = self.picture.arm
        arm.state, arm.begun = "running", share_done(progress)

    def _note(self, recent_rows: RecentRows) -> None:
        """Note what was recorded since the step before."""
        picture = self.picture
        for row in recent_rows.steps:
            picture.late += row["late"]
            picture.updates, picture.staleness = row["updates"], row["mean_staleness"]
        for measured in recent_rows.evaluations:
            if not measured.split.endswith(PERSONAL) and len(measured.found.n):
                found = evaluation_of(measured)
                picture.accuracy.append(100 * float(found.accuracy.mean()))
                picture.arm.measure(found)

    def _stand(self, progress: Progress, now: float) -> None:
        """Note where the run stands."""
        arm, run_state = self.picture.arm, progress.run_state
        arm.done, arm.step, arm.now_us = share_done(progress), run_state.step, run_state.now_us
        arm.wall_s = now - self.begun

    def _look(self, progress: Progress, now: float) -> None:
        """Note what only the picture needs."""
        picture, run_state = self.picture, progress.run_state
        picture.elapsed_s = now - picture.started_s
        picture.in_flight, picture.lost = run_state.in_flight, run_state.lost_total
        picture.online = int(progress.setup.world.online(run_state.now_us).sum())
        self.recent.append((now, run_state.step))
        (before, step), (_, last) = self.recent[0], self.recent[-1]
        picture.steps_per_s = (last - step) / (now - before) if now > before else math.nan
        picture.memory_bytes = self.process.memory_info().rss
        picture.free_bytes = psutil.virtual_memory().available
