from .export.curves import Curves
from .export.event_file import require_tensorboard
from .export.mlflow import MLflowWriter, export_mlflow, require_mlflow, tracking_uri
from .export.perfetto import export_perfetto
from .export.tensorboard import TensorBoardWriter, export_tensorboard
from .export.wandb import WandbWriter, export_wandb, require_wandb
from .opening.evaluation import Evaluation
from .opening.joining import join_studies
from .opening.points import POINTS
from .opening.results import last_evaluations
from .opening.run import Run, open_all, open_run
from .opening.study import Cell, Study
from .opening.study_file import is_study, open_study
from .plots.availability import availability_picture
from .plots.fit import fit_picture
from .report.document import Document, Finding
from .report.findings import findings
from .report.notebook import plot, run_html
from .report.report import run_document, write_page, write_report
from .report.report_files import write_figures, write_tables
from .report.study_report import study_document, write_run_reports
from .statistics.claims import ClaimedPair, ClaimResult, claim_results
from .statistics.fairness import summary
from .statistics.observatory import conflict_table
from .statistics.over_time import improved_over_time, improved_users_percent, time_below
from .statistics.paired.differences import PairedDifference, differences, differences_of
from .statistics.paired.interaction import interactions
from .statistics.participation import run_clients
from .statistics.published import PublishedValue, published_values
from .statistics.time_to_target import SpeedUp, speed_ups, time_to_target
from .statistics.variance.study_components import VarianceComponents, variance_components
from .statistics.waste import waste, waste_by_status, waste_table
from .tables.arms import arms_table
from .tables.audit_tables import audit_groups, audit_tables
from .tables.claim_tables import claim_table
from .tables.closing import closing_table, profile, profile_table
from .tables.compare import Comparison, compare, comparison_table
from .tables.component_tables import component_tables
from .tables.group_tables import (
    run_clients_table,
    run_participation,
    run_participation_tables,
    study_participation,
)
from .tables.published_tables import published_frames, published_tables
from .tables.study_tables import study_frames, study_tables
from .tables.target_tables import target_tables
from .worlds.choices import participation_gap, selection_regret
from .worlds.difference import WorldDiff, compare_worlds
from .worlds.facts import QUARTILES_NOTE, world_facts
from .worlds.fitting.comparison import FitComparison, compare_fit
from .worlds.fitting.fit import WorldFit, fit_world
from .worlds.page import write_world_page
from .worlds.summary import WorldSummary, class_hours, online_share, summarize_world

__all__ = [
    "POINTS",
    "QUARTILES_NOTE",
    "Cell",
    "ClaimResult",
    "ClaimedPair",
    "Comparison",
    "Curves",
    "Document",
    "Evaluation",
    "Finding",
    "FitComparison",
    "MLflowWriter",
    "PairedDifference",
    "PublishedValue",
    "Run",
    "SpeedUp",
    "Study",
    "TensorBoardWriter",
    "VarianceComponents",
    "WandbWriter",
    "WorldDiff",
    "WorldFit",
    "WorldSummary",
    "arms_table",
    "audit_groups",
    "audit_tables",
    "availability_picture",
    "claim_results",
    "claim_table",
    "class_hours",
    "closing_table",
    "compare",
    "compare_fit",
    "compare_worlds",
    "comparison_table",
    "component_tables",
    "conflict_table",
    "differences",
    "differences_of",
    "export_mlflow",
    "export_perfetto",
    "export_tensorboard",
    "export_wandb",
    "findings",
    "fit_picture",
    "fit_world",
    "improved_over_time",
    "improved_users_percent",
    "interactions",
    "is_study",
    "join_studies",
    "last_evaluations",
    "online_share",
    "open_all",
    "open_run",
    "open_study",
    "participation_gap",
    "plot",
    "profile",
    "profile_table",
    "published_frames",
    "published_tables",
    "published_values",
    "require_mlflow",
    "require_tensorboard",
    "require_wandb",
    "run_clients",
    "run_clients_table",
    "run_document",
    "run_html",
    "run_participation",
    "run_participation_tables",
    "selection_regret",
    "speed_ups",
    "study_document",
    "study_frames",
    "study_participation",
    "study_tables",
    "summarize_world",
    "summary",
    "target_tables",
    "time_below",
    "time_to_target",
    "tracking_uri",
    "variance_components",
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
