"""Trains the runs of a command under observers, such as a dashboard, and shows their results."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import typer
from rich.console import Console

from fedsim import analysis
from fedsim.cli.options import WatchedTraining
from fedsim.common.errors import EndOfWorld, SomeFailed
from fedsim.common.terminal import Terminal, say
from fedsim.runs.progress import shown
from fedsim.runs.result import Progress, Result, Watch

_WARNED = {
    "no finite update": "no update that arrived was finite, so the model is still the initial one; its jobs have the "
    "status nonfinite; a smaller train.lr may help",
    "accuracy is no number": "the model's outputs are not finite, so there is no accuracy; a smaller train.lr may help",
}
"""The text shown for each warning in a manifest."""


@contextmanager
def watching(console: Console, options: WatchedTraining, names: Sequence[str] = ()) -> Iterator[Watch]:
    """Yield a function that passes a run's progress to every observer; `names` are the runs known in advance."""
    watches: list[Watch] = []
    with ExitStack() as opened:
        if options.live and not options.quiet and console.is_terminal and not console.is_dumb_terminal:
            from fedsim.cli.watching.dashboard import dashboard

            watches.append(opened.enter_context(dashboard(console, names)))
        elif not options.quiet:
            watches.append(opened.enter_context(shown(console)))
        if not options.quiet:
            watches.append(EndWatch(console))
        opened.enter_context(warnings_shown(console, options.quiet))
        watches += [opened.enter_context(logger) for logger in options.loggers()]

        def notify(progress: Progress) -> None:
            for watch in watches:
                watch(progress)

        yield notify


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


def train_and_show(
    train: Callable[[Watch], Sequence[Result]], options: WatchedTraining, names: Sequence[str] = ()
) -> list[Path]:
    """Train runs, show their results, and return their folders.

    Args:
        train: trains the runs, and passes their progress to the observers.
        names: the names of the runs in turn, as far as they are known.

    Raises typer.Exit with code 130 if a run was interrupted, else SomeFailed if one of several failed.
    """
    started, failed = perf_counter(), None
    with watching(Terminal(), options, names) as watch:
        try:
            results = train(watch)
        except SomeFailed as error:
            failed, results = error, error.results
    took_s = perf_counter() - started if options.profile else None
    if left := names[len(results) + (len(failed.errors) if failed else 0) :]:
        say(f"not started: {', '.join(left)}; the same command with --resume runs the rest")
    if results:
        _show(results, options.write_report, took_s)
    if any(result.status == "interrupted" for result in results):
        if failed is not None:
            say(f"error: {failed}")
        folder = shlex.quote(str(results[-1].folder))
        say(f"interrupted, and saved; continue it with: fedsim resume {folder}")
        raise typer.Exit(130)
    if failed is not None:
        raise failed
    return [result.folder for result in results]


def _show(results: Sequence[Result], write_report: bool, took_s: float | None) -> None:
    """Show the closing table of runs, each run's folder, digest and warnings, and how it spent its part of `took_s`."""
    folders = [result.folder for result in results]
    runs, console = [analysis.open_run(folder) for folder in folders], Terminal()
    console.print(analysis.closing_table(runs))
    for run in runs:
        say(f"{run.label}: {run.folder}  digest {str(run.manifest['digest'])[:16]}")
        for note in _notes(run.manifest):
            say(f"{run.label}: {note}")
    if write_report:
        parent = folders[0].parent if len(folders) > 1 else folders[0]
        say(f"report: {analysis.write_report(runs, parent)}")
    if took_s is not None:
        for run in runs:
            console.print()
            console.print(analysis.profile_table(run))
            say(f"trace: {run.folder / 'profile.json'}; open it at https://ui.perfetto.dev")
        known_s = sum(run.wall_s for run in runs)
        share = f"{100 * known_s / took_s:.1f} % of {took_s:.2f} s on the wall clock"
        say(f"the parts add up to {known_s:.2f} s, {share}")


def _notes(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a user should know about how a run ended."""
    if warning := manifest.get("warning"):
        yield _WARNED.get(warning, warning)
    if manifest.get("ended_by") == "world":
        yield (
            f"ended at step {manifest['steps']:,}, before a limit of [stop]: no client is online or chosen any more"
        )
    if manifest.get("ended_by") == "target" and not manifest["steps"]:
        yield "ended before its first step: the initial model meets stop.target"
