"""Progress of runs: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedsim.common.errors import EndOfWorld
from fedsim.common.units import show_us
from fedsim.runs.result import Progress, Watch, share_done

_PLAIN_EVERY_S = 5.0
_LIVE_EVERY_S = 0.1


@contextmanager
def shown(console: Console) -> Iterator[Watch]:
    """Yield a watcher that shows progress on `console`."""
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, refresh_per_second=10, transient=True) as live:
            yield _Line(_LIVE_EVERY_S, lambda text: live.update(Text(text)))
    else:
        yield _Line(_PLAIN_EVERY_S, lambda text: console.print(text, highlight=False, soft_wrap=True))


@contextmanager
def warnings_shown(console: Console, quiet: bool = False) -> Iterator[None]:
    """Print warnings about the end of a world as lines on `console`; nothing if `quiet`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "always", EndOfWorld)
        show_others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, EndOfWorld):
                console.print(str(message), highlight=False, soft_wrap=True)
            else:
                show_others(message, category, *where, **more)

        warnings.showwarning = show
        yield


class EndWatch:
    """Prints a line when a run passes the end of its world, unless it was known to be longer from the start."""

    def __init__(self, console: Console) -> None:
        self._console, self._reported = console, ""

    def __call__(self, progress: Progress) -> None:
        """Check a run after a step."""
        setup, name = progress.spec, progress.spec.config.name
        if name == self._reported or setup.outlives(setup.plan.stop.time_us):
            return
        if message := setup.outlives(progress.run_state.now_us):
            self._reported = name
            self._console.print(message, highlight=False, soft_wrap=True)


class _Line:
    """Writes a line about a run at most every `every_s` seconds."""

    def __init__(self, every_s: float, write: Callable[[str], None]) -> None:
        self.every_s, self.write = every_s, write
        self.run = ""
        self.started = self.last = self.share_at_start = 0.0

    def __call__(self, progress: Progress) -> None:
        now = monotonic()
        name = progress.spec.config.name
        if name != self.run:
            self.run, self.started, self.last = name, now, now
            self.share_at_start = share_done(progress) if progress.run_state.step > 1 else 0.0
        if now - self.last >= self.every_s:
            self.last = now
            self.write(line(progress, now - self.started, self.share_at_start))


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
