"""The observers of the runs that a command starts: a progress line or dashboard, warnings and TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from fedsim.cli.progress import EndWatch, shown, warnings_shown
from fedsim.runs.result import Progress, Watch


@contextmanager
def watching(
    console: Console,
    names: Sequence[str] = (),
    *,
    quiet: bool = False,
    live: bool = False,
    tensorboard: Path | None = None,
) -> Iterator[Watch]:
    """Yield a function that passes a run's progress to every observer.

    Args:
        names: names of the runs that will follow each other, as far as they are known.
        live: show a dashboard (`fedsim.cli.dashboard`) instead of a line.
        tensorboard: the folder to write events to (`fedsim.cli.tensorboard`).
    """
    with ExitStack() as opened:
        watches = []
        if live:
            from fedsim.cli.dashboard import dashboard

            watches.append(opened.enter_context(dashboard(console, names, quiet)))
        else:
            watches.append(opened.enter_context(shown(console, quiet)))
        if not quiet:
            watches.append(EndWatch(console))
        opened.enter_context(warnings_shown(console, quiet))
        if tensorboard is not None:
            from fedsim.cli.tensorboard import writing_events

            watches.append(opened.enter_context(writing_events(tensorboard)))

        def notify(progress: Progress) -> None:
            for watch in watches:
                watch(progress)

        yield notify
