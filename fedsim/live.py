"""What `fedsim run --live` knows: where each run of an experiment stands, told step by step and painted now and then.

Nothing here runs in a thread or reads what a run writes while it goes on, and no result depends on it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import psutil
from rich.console import Console
from rich.live import Live

import analysis
from fedsim.boards import evaluation_of
from fedsim.live_view import View
from fedsim.news import News
from fedsim.progress import share_done, shown
from fedsim.records import PERSONAL
from fedsim.result import Progress, Watch

METRICS = ("mean_percent", "worst10_percent", "angle_rad")
_EVERY_S = 0.25
_REST = 99
"""At least this many times as long as a picture took passes until the next: a hundredth of the time at most."""
_RECENT = 40
"""Pictures over which the steps per second are taken."""


@dataclass(slots=True)
class Arm:
    """One run of the experiment, as far as it is known."""

    name: str
    state: Literal["waiting", "running", "ended"] = "waiting"
    done: float = 0.0
    """From 0 to 1, as `begun`: how much was done when this was first told of it."""
    begun: float = 0.0
    step: int = 0
    now_us: int = 0
    wall_s: float = 0.0
    evaluation: analysis.Evaluation | None = None
    """The last one that is known, of the global model."""
    values: dict[str, float] = field(default_factory=dict)
    """Of `METRICS`, at that evaluation; taken when it is painted."""

    def measure(self, found: analysis.Evaluation | None) -> None:
        """Note an evaluation."""
        self.evaluation, self.values = found, {}

    def metric(self, name: str) -> float:
        """Return a metric of the last evaluation, NaN before one."""
        if self.evaluation is None:
            return math.nan
        self.values = self.values or self.evaluation.summary(METRICS)
        return self.values[name]

    @property
    def to_go_s(self) -> float:
        """Seconds on the wall clock that are left if it goes on as it did; NaN if nothing says."""
        lately = self.done - self.begun
        return self.wall_s * (1 - self.done) / lately if lately > 0 else math.nan


@dataclass(slots=True)
class Picture:
    """All that a dashboard shows."""

    arms: list[Arm]
    started_s: float
    current: int = -1
    """Position of the arm that runs."""
    clients: int = 0
    online: int = 0
    in_flight: int = 0
    updates: int = 0
    """In the last step that is recorded."""
    lost: int = 0
    """Jobs since the run began, as `late`."""
    late: int = 0
    staleness: float = math.nan
    """Mean over the updates of the last step that is recorded, in steps."""
    accuracy: list[float] = field(default_factory=list)
    """Mean over clients at each evaluation of the run, in percent."""
    steps_per_s: float = math.nan
    memory_bytes: int = 0
    free_bytes: int = 0
    elapsed_s: float = 0.0

    @property
    def arm(self) -> Arm:
        """The one that runs."""
        return self.arms[self.current]

    @property
    def to_go_s(self) -> float:
        """Seconds until all arms have ended; those that wait are taken to last as long as the others on average."""
        whole = [a.wall_s for a in self.arms if a.state == "ended"] + [self.arm.wall_s + self.arm.to_go_s]
        waiting = sum(a.state == "waiting" for a in self.arms)
        return self.arm.to_go_s + waiting * sum(whole) / len(whole)


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
        self._note(progress.news)
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

    def _note(self, news: News) -> None:
        """Note what was recorded since the step before."""
        picture = self.picture
        for row in news.steps:
            picture.late += row["late"]
            picture.updates, picture.staleness = row["updates"], row["mean_staleness"]
        for measured in news.evaluations:
            if not measured.split.endswith(PERSONAL) and len(measured.found.n):
                found = evaluation_of(measured)
                picture.accuracy.append(100 * float(found.accuracy.mean()))
                picture.arm.measure(found)

    def _stand(self, progress: Progress, now: float) -> None:
        """Note where the run stands."""
        arm, course = self.picture.arm, progress.course
        arm.done, arm.step, arm.now_us = share_done(progress), course.step, course.now_us
        arm.wall_s = now - self.begun

    def _look(self, progress: Progress, now: float) -> None:
        """Note what only the picture needs."""
        picture, course = self.picture, progress.course
        picture.elapsed_s = now - picture.started_s
        picture.in_flight, picture.lost = course.in_flight, course.lost_total
        picture.online = int(progress.setup.world.online(course.now_us).sum())
        self.recent.append((now, course.step))
        (before, step), (_, last) = self.recent[0], self.recent[-1]
        picture.steps_per_s = (last - step) / (now - before) if now > before else math.nan
        picture.memory_bytes = self.process.memory_info().rss
        picture.free_bytes = psutil.virtual_memory().available
