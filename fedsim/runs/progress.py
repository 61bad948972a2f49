"""The progress of a run: what a watcher gets after each step, and a line about it in a terminal or a notebook."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedsim.common.errors import ManySteps
from fedsim.common.terminal import Terminal
from fedsim.common.units import show_us
from fedsim.engine.state import RunState
from fedsim.records.recent_rows import RecentRows
from fedsim.runs.spec import RunSpec

_PLAIN_EVERY_S = 5.0
_LIVE_EVERY_S = 0.1
_NOTEBOOK_EVERY_S = 0.25
_EARLY = 200
"""The step at which the number of a run's steps is estimated."""
_MANY = 10_000


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run after a server step, or at its end."""

    spec: RunSpec
    folder: Path
    run_state: RunState
    accuracy: float
    """Mean accuracy over clients at the last recorded evaluation; NaN before the first."""
    recent_rows: RecentRows


Watch = Callable[[Progress], None]


def share_done(progress: Progress) -> float:
    """Return the share of a run that is done, from 0 to 1, by the nearest of its limits; 0 if none of them is set."""
    run_state, stop = progress.run_state, progress.spec.plan.stop
    shares = [
        reached / limit
        for reached, limit in (
            (run_state.step, stop.steps),
            (run_state.now_us, stop.time_us),
            (run_state.moved_bytes, stop.moved_bytes),
        )
        if limit
    ]
    return min(1.0, max(shares, default=0.0))


@contextmanager
def watched(watch: Watch, progress: bool | None) -> Iterator[Watch]:
    """Yield a watcher that passes a run's progress to `watch`, and shows it if `progress` is True.

    None shows it in a notebook, at a Python prompt, and if the standard error is a terminal.
    """
    notebook, console = in_notebook(), Terminal(stderr=True)
    looked_at = notebook or hasattr(sys, "ps1") or (console.is_terminal and not console.is_dumb_terminal)
    with ExitStack() as opened:
        watches = [warn_of_many_steps, watch]
        if looked_at if progress is None else progress:
            watches.append(opened.enter_context(displayed() if notebook else shown(console)))

        def notify(now: Progress) -> None:
            for each in watches:
                each(now)

        yield notify


def warn_of_many_steps(progress: Progress) -> None:
    """Warn with ManySteps, early in a run without `stop.steps`, if it heads for more than 10,000 server steps."""
    run_state, stop = progress.run_state, progress.spec.plan.stop
    if run_state.step != _EARLY or stop.steps or not stop.time_us or not run_state.now_us:
        return
    steps, every_s = run_state.step * stop.time_us / run_state.now_us, run_state.now_us / run_state.step / 1e6
    if steps > _MANY:
        warnings.warn(
            f"{progress.spec.config.name}: heads for about {round(steps, -3):,.0f} server steps until stop.time, one "
            f"every {every_s:.3g} s of virtual time; if that is more than you want, set stop.steps, or set "
            "cost.payload and cost.compute_scale so that jobs take as long as those of a larger model",
            ManySteps,
            stacklevel=2,
        )


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")  # it is there if it runs this process
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


@contextmanager
def displayed() -> Iterator[Watch]:
    """Yield a watcher that shows progress as one line under the cell of a notebook, which stays there at the end."""
    from IPython import display  # not needed elsewhere, and not installed everywhere

    show: Any = display.display
    handle = show({"text/plain": ""}, raw=True, display_id=True)
    line = _Line(_NOTEBOOK_EVERY_S, lambda text: handle.update({"text/plain": text}, raw=True))
    try:
        yield line
    finally:
        line.write_last()


@contextmanager
def shown(console: Console) -> Iterator[Watch]:
    """Yield a watcher that shows progress on `console`."""
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, refresh_per_second=10, transient=True) as live:
            yield _Line(_LIVE_EVERY_S, lambda text: live.update(Text(text)))
    else:
        yield _Line(_PLAIN_EVERY_S, lambda text: console.print(text, highlight=False, soft_wrap=True))


class _Line:
    """Writes a line about a run at most every `every_s` seconds."""

    def __init__(self, every_s: float, write: Callable[[str], None]) -> None:
        self.every_s, self.write = every_s, write
        self.run = ""
        self.text: Callable[[], str] | None = None
        self.started = self.last = self.share_at_start = 0.0

    def __call__(self, progress: Progress) -> None:
        now = monotonic()
        name = progress.spec.config.name
        if name != self.run:
            self.run, self.started, self.last = name, now, now
            self.share_at_start = share_done(progress) if progress.run_state.step > 1 else 0.0
        self.text = partial(line, progress, now - self.started, self.share_at_start)
        if now - self.last >= self.every_s:
            self.last = now
            self.write(self.text())

    def write_last(self) -> None:
        """Write where the last run ended."""
        if self.text is not None:
            self.write(self.text())


def line(progress: Progress, elapsed_s: float, share_at_start: float = 0.0) -> str:
    """Return a run's progress in a line: virtual time, step, clients online, jobs in flight, accuracy, time to go.

    `share_at_start` is the share of the run (0 to 1) that was done before `elapsed_s` began, as in a resumed run.
    """
    run_state, setup = progress.run_state, progress.spec
    stop, done = setup.plan.stop, share_done(progress)
    steps = f"{run_state.step}/{stop.steps}" if stop.steps else f"{run_state.step}"
    online = int(setup.world.online(run_state.now_us).sum())
    accuracy = "-" if math.isnan(progress.accuracy) else f"{progress.accuracy:.1%}"
    lately = done - share_at_start
    eta = "-" if lately <= 0 else f"{elapsed_s * (1 - done) / lately:.0f} s"
    return (
        f"{setup.config.name}  {done:4.0%}  step {steps}  at {show_us(run_state.now_us)}  online {online}  "
        f"training {run_state.in_flight}  lost {run_state.lost_total}  accuracy {accuracy}  to go {eta}"
    )
