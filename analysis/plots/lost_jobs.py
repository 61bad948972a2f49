"""Lost jobs by phase."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedsim.analysis.drawing.picture import INK, Key, Picture, panels, whole_numbers
from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.tables import word_counts

PHASES = {"download": "#56b4e9", "compute": "#e69f00", "upload": "#cc79a7"}


def lost_jobs(runs: Mapping[str, Run]) -> Picture:
    """Draw the number of jobs that each run, by label, lost while downloading, computing and uploading."""
    counts = {label: lost_by_phase(run) for label, run in runs.items()}
    figure, (ax,) = panels([0.45 + 0.3 * len(counts)])
    position = np.arange(len(counts))
    left = np.zeros(len(counts))
    for phase, colour in PHASES.items():
        width = np.array([phases.get(phase, 0) for phases in counts.values()])
        ax.barh(position, width, left=left, height=0.7, color=colour)
        left += width
    for y, total in enumerate(left):
        style: dict[str, Any] = {"va": "center", "color": INK, "fontsize": 9}
        ax.annotate(f" {total:.0f}", (total, y), xytext=(2, 0), textcoords="offset points", **style)
    ax.set_yticks(position, [_short(label) for label in counts])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.12 * max(left.max(initial=0), 1))
    ax.grid(visible=False, axis="y")
    whole_numbers(ax.xaxis, 5)
    ax.set_xlabel("jobs lost", fontsize=9)
    keys = tuple(Key(f"lost in {phase}", colour, area=True) for phase, colour in PHASES.items())
    return Picture(figure, _alt(counts), "Jobs lost because the client left or failed, by phase.", keys)


def lost_by_phase(run: Run) -> dict[str, int]:
    """Return the number of lost jobs by phase."""
    lost = pc.equal(run.jobs["status"].cast(pa.string()), "lost")
    return word_counts(run.jobs["phase"].filter(lost))


def _short(label: str, limit: int = 22) -> str:
    return label if len(label) <= limit else f"{label[: limit - 1]}…"


def _alt(counts: Mapping[str, Mapping[str, int]]) -> str:
    words = (
        f"{label}: " + ", ".join(f"{phases.get(phase, 0)} in {phase}" for phase in PHASES)
        for label, phases in counts.items()
    )
    return f"Bars of jobs lost by phase. {'; '.join(words)}."
