"""Open runs, measure their fairness, compare them, and write the report.

    from fedsim import analysis

    run = analysis.open("runs/quickstart/fedavg")
    run.frame("steps")                        # pandas; run.steps is the Arrow table
    run.final().summary()["worst10_percent"]  # metrics of the last evaluation on the test split
    run.history()                             # every metric at every evaluation
    arms = analysis.open_all(["runs/quickstart"])
    rich.print(analysis.closing_table(arms), analysis.compare(arms[0], arms[1]))
    analysis.write_report(arms, "report.html")
    study = analysis.open_study("runs/dropout")
    study.frame(["mean_percent"], at="time")                     # one row per run, after equal virtual time
    analysis.differences(study, "mean_percent")[0].interval      # paired by seed
    rich.print(*analysis.study_tables(study))

Only what the run wrote is read; the engine is never imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.analysis.opening.run import Evaluation, Run, open_all
from fedsim.analysis.opening.run import open_run as open
from fedsim.analysis.opening.study import Cell, Study, open_study
from fedsim.analysis.statistics.conflicts import conflict_table
from fedsim.analysis.statistics.fairness import summary
from fedsim.analysis.statistics.improved_users import improved_users_percent
from fedsim.analysis.statistics.waste import waste, waste_by_status, waste_table
from fedsim.analysis.tables.closing import closing_table
from fedsim.analysis.tables.compare import Comparison, compare

if TYPE_CHECKING:
    from fedsim.analysis.statistics.over_time import improved_over_time, time_below
    from fedsim.analysis.statistics.paired import PairedDifference, differences, differences_of
    from fedsim.analysis.tables.findings import study_frames, study_tables
    from fedsim.analysis.tables.group_tables import run_participation, study_participation

_HOMES = {
    "fedsim.analysis.tables.findings": ("study_frames", "study_tables"),
    "fedsim.analysis.tables.group_tables": ("run_participation", "study_participation"),
    "fedsim.analysis.statistics.over_time": ("improved_over_time", "time_below"),
    "fedsim.analysis.statistics.paired": ("PairedDifference", "differences", "differences_of"),
}
"""What takes statistics to import, which takes longer than all the rest: found when first asked for."""

__all__ = [
    "Cell",
    "Comparison",
    "Evaluation",
    "PairedDifference",
    "Run",
    "Study",
    "closing_table",
    "compare",
    "conflict_table",
    "differences",
    "differences_of",
    "improved_over_time",
    "improved_users_percent",
    "open",
    "open_all",
    "open_study",
    "run_participation",
    "study_frames",
    "study_participation",
    "study_tables",
    "summary",
    "time_below",
    "waste",
    "waste_by_status",
    "waste_table",
    "write_report",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'fedsim.analysis' has no attribute {name!r}")


def write_report(runs: Sequence[Run], out: str | Path) -> Path:
    """Write one self-contained HTML page about the runs; see `fedsim.analysis.report.report.write_report`."""
    from fedsim.analysis.report.report import write_report as write  # matplotlib takes a second to import

    return write(runs, out)
