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

The analysis reads only what a run wrote and never imports the engine. Names are imported when first used, so
`from fedsim import analysis` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.analysis.export.event_file import require_tensorboard
    from fedsim.analysis.export.perfetto import export_perfetto
    from fedsim.analysis.export.tensorboard import TensorBoardWriter, export_tensorboard
    from fedsim.analysis.opening.joining import join_studies
    from fedsim.analysis.opening.run import Evaluation, Run, open_all
    from fedsim.analysis.opening.run import open_run as open
    from fedsim.analysis.opening.study import POINTS, Cell, Study, is_study, open_study
    from fedsim.analysis.plots.availability import availability_picture
    from fedsim.analysis.plots.fit import fit_picture
    from fedsim.analysis.report.document import Document
    from fedsim.analysis.report.report import run_document, write_page, write_report
    from fedsim.analysis.report.report_files import write_figures, write_tables
    from fedsim.analysis.report.study_report import study_document, write_run_reports
    from fedsim.analysis.statistics.conflicts import conflict_table
    from fedsim.analysis.statistics.fairness import summary
    from fedsim.analysis.statistics.improved_users import improved_users_percent
    from fedsim.analysis.statistics.over_time import improved_over_time, time_below
    from fedsim.analysis.statistics.paired import PairedDifference, differences, differences_of
    from fedsim.analysis.statistics.waste import waste, waste_by_status, waste_table
    from fedsim.analysis.tables.audit_tables import audit_groups, audit_tables
    from fedsim.analysis.tables.closing import closing_table, profile, profile_table
    from fedsim.analysis.tables.compare import Comparison, compare, comparison_table
    from fedsim.analysis.tables.findings import study_frames, study_tables
    from fedsim.analysis.tables.group_tables import (
        run_participation,
        run_participation_tables,
        study_participation,
    )
    from fedsim.analysis.worlds.difference import WorldDiff, compare_worlds
    from fedsim.analysis.worlds.facts import QUARTILES_NOTE, world_facts
    from fedsim.analysis.worlds.fitting.comparison import FitComparison, compare_fit
    from fedsim.analysis.worlds.fitting.fit import WorldFit, fit_world
    from fedsim.analysis.worlds.page import write_world_page
    from fedsim.analysis.worlds.summary import WorldSummary, class_hours, online_share, summarize_world

_HOMES = {
    "export.event_file": ("require_tensorboard",),
    "export.perfetto": ("export_perfetto",),
    "export.tensorboard": ("TensorBoardWriter", "export_tensorboard"),
    "opening.joining": ("join_studies",),
    "opening.run": ("Evaluation", "Run", "open", "open_all"),
    "opening.study": ("POINTS", "Cell", "Study", "is_study", "open_study"),
    "plots.availability": ("availability_picture",),
    "plots.fit": ("fit_picture",),
    "report.document": ("Document",),
    "report.report": ("run_document", "write_page", "write_report"),
    "report.report_files": ("write_figures", "write_tables"),
    "report.study_report": ("study_document", "write_run_reports"),
    "statistics.conflicts": ("conflict_table",),
    "statistics.fairness": ("summary",),
    "statistics.improved_users": ("improved_users_percent",),
    "statistics.over_time": ("improved_over_time", "time_below"),
    "statistics.paired": ("PairedDifference", "differences", "differences_of"),
    "statistics.waste": ("waste", "waste_by_status", "waste_table"),
    "tables.audit_tables": ("audit_groups", "audit_tables"),
    "tables.closing": ("closing_table", "profile", "profile_table"),
    "tables.compare": ("Comparison", "compare", "comparison_table"),
    "tables.findings": ("study_frames", "study_tables"),
    "tables.group_tables": ("run_participation", "run_participation_tables", "study_participation"),
    "worlds.difference": ("WorldDiff", "compare_worlds"),
    "worlds.facts": ("QUARTILES_NOTE", "world_facts"),
    "worlds.fitting.comparison": ("FitComparison", "compare_fit"),
    "worlds.fitting.fit": ("WorldFit", "fit_world"),
    "worlds.page": ("write_world_page",),
    "worlds.summary": ("WorldSummary", "class_hours", "online_share", "summarize_world"),
}
"""The module that defines each public name."""
_NAMED_THERE = {"open": "open_run"}
"""Public names that their modules define under another one."""

__all__ = [
    "POINTS",
    "QUARTILES_NOTE",
    "Cell",
    "Comparison",
    "Document",
    "Evaluation",
    "FitComparison",
    "PairedDifference",
    "Run",
    "Study",
    "TensorBoardWriter",
    "WorldDiff",
    "WorldFit",
    "WorldSummary",
    "audit_groups",
    "audit_tables",
    "availability_picture",
    "class_hours",
    "closing_table",
    "compare",
    "compare_fit",
    "compare_worlds",
    "comparison_table",
    "conflict_table",
    "differences",
    "differences_of",
    "export_perfetto",
    "export_tensorboard",
    "fit_picture",
    "fit_world",
    "improved_over_time",
    "improved_users_percent",
    "is_study",
    "join_studies",
    "online_share",
    "open",
    "open_all",
    "open_study",
    "profile",
    "profile_table",
    "require_tensorboard",
    "run_document",
    "run_participation",
    "run_participation_tables",
    "study_document",
    "study_frames",
    "study_participation",
    "study_tables",
    "summarize_world",
    "summary",
    "time_below",
    "waste",
    "waste_by_status",
    "waste_table",
    "world_facts",
    "write_figures",
    "write_page",
    "write_report",
    "write_run_reports",
    "write_tables",
    "write_world_page",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            module = importlib.import_module(f"fedsim.analysis.{home}")
            globals()[name] = getattr(module, _NAMED_THERE.get(name, name))
            return globals()[name]
    raise AttributeError(f"module 'fedsim.analysis' has no attribute {name!r}")
