"""What Python and notebooks show of runs: a picture of their report, and a summary of one in HTML."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from fedsim.analysis.drawing.picture import Picture
from fedsim.analysis.opening.facts import troubles
from fedsim.analysis.opening.run import Run
from fedsim.analysis.plots.accuracy_over_time import METRICS, accuracy_over_time
from fedsim.analysis.plots.participation import participation
from fedsim.analysis.report import page
from fedsim.analysis.report.report import run_document, summary_table
from fedsim.analysis.report.report_files import on_paper
from fedsim.common import arguments
from fedsim.common.errors import ConfigError, RunError, TraceError, closest

_CSS = """<style>
.fedsim-run { max-width: 56rem; font-variant-numeric: tabular-nums; }
.fedsim-run table { border-collapse: collapse; }
.fedsim-run th, .fedsim-run td { padding: 0.15em 0.6em; text-align: right; background: none; color: inherit; }
.fedsim-run .words, .fedsim-run th[scope="row"] { text-align: left; }
.fedsim-run caption, .fedsim-run figcaption { text-align: left; opacity: 0.75; font-size: 0.9em; color: inherit; }
.fedsim-run figure { margin: 0.6em 0; max-width: 40rem; }
.fedsim-run .plot { width: 100%; height: auto; color: inherit; }
.fedsim-run .legend { display: flex; flex-wrap: wrap; gap: 0 1em; list-style: none; margin: 0; padding: 0; }
.fedsim-run .legend svg { width: 26px; height: 12px; margin-right: 0.4em; }
.fedsim-run .scroll { overflow-x: auto; }
</style>"""
"""Colours are those of the notebook, light or dark."""


@arguments.checked
def plot(runs: Sequence[Run], name: str) -> Figure:
    """Draw the picture `name` of the report about `runs`, such as "accuracy-over-time", under its legend and on white.

    Raises ConfigError with the closest name for a picture that this report does not have, and RunError or TraceError
    if the runs' files do not suffice for it.
    """
    figures = run_document(runs).figures
    if name not in figures:
        folders = ", ".join(str(run.folder) for run in runs)
        raise ConfigError(f"{folders}: there is no picture {name!r}{closest(name, figures)}")
    return on_paper(figures[name].draw())


@arguments.checked
def run_html(run: Run) -> str:
    """Return how a run ended, and its accuracy over time, or without evaluations its participation, as HTML."""
    return "\n".join(_parts(run))


def _parts(run: Run) -> Iterator[str]:
    yield f'<div class="fedsim-run">{_CSS}'
    yield from (page.paragraph(text) for text in troubles(run))
    yield page.table(summary_table([run]))
    try:
        yield page.figure(_picture(run), f"fedsim-{hashlib.sha256(str(run.folder).encode()).hexdigest()[:8]}")
    except (RunError, TraceError) as error:
        yield page.paragraph(f"Not drawn: {error}.")
    yield "</div>"


def _picture(run: Run) -> Picture:
    if run.evaluations():
        return accuracy_over_time({run.label: run.history(metrics=list(METRICS))}, by="time")
    return participation(run)
