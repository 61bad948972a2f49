"""Trains the runs of a command under observers, such as a dashboard, and shows their results."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from fedsim import analysis, plugins
from fedsim.cli.options import WatchedTraining, command_line, interrupted
from fedsim.common.errors import Changed, FolderError, LongRun, RunNote, SomeFailed, Untracked, UnusedWorld
from fedsim.common.terminal import Terminal, say
from fedsim.records.profile import PROFILE
from fedsim.runs.progress import Progress, Watch, shown
from fedsim.runs.result import Result, notes


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
    """Print warnings as lines on `console`; if `quiet`, none about long runs and unused worlds."""
    with warnings.catch_warnings():
        for told in (LongRun, UnusedWorld):
            warnings.simplefilter("ignore" if quiet else "always", told)
        warnings.simplefilter("always", Changed)
        warnings.simplefilter("always", Untracked)
        warnings.simplefilter("ignore", RunNote)  # `finish` shows them below the table
        show_others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, (Changed, LongRun, UnusedWorld, Untracked)):
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


class Trained:
    """The results of the runs that a command trains; called with their progress, it passes it to the observers."""

    def __init__(self, watch: Watch) -> None:
        self.results: Sequence[Result] = ()
        self.folder: Path | None = None
        """The folder of the run that made progress last."""
        self._watch = watch

    def __call__(self, progress: Progress) -> None:
        """Pass progress on."""
        self.folder = progress.folder
        self._watch(progress)


@contextmanager
def training(options: WatchedTraining, again: str, names: Sequence[str] = ()) -> Iterator[Trained]:
    """Yield the observers of runs, whose results the caller enters, and show these at the end.

    Args:
        again: the command that does the work from the start, or the rest of it if there are several runs.
        names: the names of the runs in turn, as far as they are known.

    Raises typer.Exit with code 130 if a run was interrupted, else SomeFailed if one of several failed.
    """
    started, failed = perf_counter(), None
    with watching(Terminal(), options, names) as watch:
        trained = Trained(watch)
        try:
            with plugins.contained():
                yield trained
        except SomeFailed as error:
            failed, trained.results = error, error.results
        except KeyboardInterrupt:  # before the first run began, or the second Ctrl-C
            folder = trained.folder if len(names) < 2 else None
            raise interrupted("interrupted", again if folder is None else _resume(folder, options)) from None
    results = trained.results
    if results:
        _show(results, options.write_report, perf_counter() - started if options.profile else None)
    left = names[len(results) + (len(failed.errors) if failed else 0) :]
    _say_end(results, failed, left, again, options)


def _say_end(
    results: Sequence[Result],
    failed: SomeFailed | None,
    left: Sequence[str],
    again: str,
    options: WatchedTraining,
) -> None:
    """Say how runs ended and which are `left`. Raises typer.Exit or SomeFailed."""
    if left:
        say(f"not started: {', '.join(left)}")
    if any(r.status == "interrupted" for r in results) or (left and any(r.asked_to_stop for r in results)):
        if failed is not None:
            say(f"error: {failed}")
        raise interrupted("interrupted, and saved", again if left else _resume(results[-1].folder, options))
    if failed is not None:
        raise failed


def _resume(folder: Path, options: WatchedTraining) -> str:
    return command_line("resume", folder, groups=(options,))


def _show(results: Sequence[Result], write_report: bool, took_s: float | None) -> None:
    """Show the closing table of runs, each run's folder, digest and warnings, and how it spent its part of `took_s`."""
    folders = [result.folder for result in results]
    runs, console = [analysis.open_run(folder) for folder in folders], Terminal()
    console.print(analysis.closing_table(runs))
    for run in runs:
        digest = run.manifest["digest"]
        say(f"{run.label}: {run.folder}" + (f"  digest {digest[:16]}" if digest else ""))
        for note in notes(run):
            say(f"{run.label}: {note}")
    if write_report:
        parent = folders[0].parent if len(folders) > 1 else folders[0]
        say(f"report: {analysis.write_report(runs, parent)}")
    if took_s is not None:
        _show_profiles(runs, took_s, console)


def _show_profiles(runs: Sequence[analysis.Run], took_s: float, console: Terminal) -> None:
    """Show how each run spent its part of `took_s`; runs that were done before have no profile."""
    profiled = [run for run in runs if (run.folder / PROFILE).is_file()]
    for run in runs:
        if run not in profiled:
            say(f"{run.label}: no profile, as the run was done already")
    for run in profiled:
        console.print()
        console.print(analysis.profile_table(run))
        say(f"trace: {run.folder / PROFILE}; open it at https://ui.perfetto.dev")
    if len(profiled) == len(runs):
        known_s = sum(run.wall_s for run in runs)
        share = f"{100 * known_s / took_s:.1f} % of {took_s:.2f} s on the wall clock"
        say(f"the parts add up to {known_s:.2f} s, {share}")


def show_differences(parent: Path, child: Path) -> None:
    """Show how a new run differs from its parent, client by client, or why they cannot be compared."""
    try:
        Terminal().print(analysis.compare(analysis.open_run(parent), analysis.open_run(child)))
    except FolderError as error:
        say(f"not compared: {error}")
