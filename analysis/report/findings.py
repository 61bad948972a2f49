"""What runs or a study say, in at most five sentences made from their numbers; none is stronger than its interval."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.analysis.opening.run import Run, with_distinct_labels
from fedsim.analysis.opening.study import Study
from fedsim.analysis.report.document import Finding
from fedsim.analysis.report.run_findings import run_findings
from fedsim.analysis.report.study_findings import study_findings
from fedsim.common import arguments
from fedsim.common.errors import FolderError


@arguments.checked
def findings(of: Run | Sequence[Run] | Study) -> tuple[Finding, ...]:
    """Return what a run, several runs or a study say: up to five sentences, the most important first.

    Accuracy and the worst-off clients against the first run or the baseline; whether clients with least participation
    fall behind; lost work; doubts. Runs with the seed of the first one are paired by client, studies by seed. All
    intervals are corrected for all comparisons in the sentences. Where an interval holds zero, the sentence says that
    no difference is seen. `docs/report.md` explains each. Raises FolderError without a run, RunError if files cannot
    be read.
    """
    if isinstance(of, Study):
        return tuple(study_findings(of))
    runs = [of] if isinstance(of, Run) else list(of)
    if not runs:
        raise FolderError("findings need at least one run")
    return tuple(run_findings(with_distinct_labels(runs)))
