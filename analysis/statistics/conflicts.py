"""Conflicts between the clients of a step and its direction: FedLF, Pan et al. 2024 (AAAI), Table 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsim.analysis.opening.run import Run
from fedsim.common import arguments
from fedsim.common.errors import FolderError
from fedsim.server.conflicts import ORTHOGONAL

if TYPE_CHECKING:
    import pandas as pd


@arguments.checked
def conflict_table(run: Run) -> pd.DataFrame:
    """Return the mean number of clients in conflict with the direction, present and absent, layer by layer.

    One row per block; block -1 is the whole model. `present` counts the clients of a step whose update makes an angle
    above 90 degrees with the direction, averaged over steps with updates: MC for the whole model, LC_l for layer l.
    `absent` counts remembered updates in the same way. Raises FolderError unless the run recorded conflicts.
    """
    each = run.frame("conflicts")
    if each.empty:
        raise FolderError(
            f'{run.folder}: no conflicts were recorded; run it with [record] conflicts = "layers" (or "model")'
        )
    steps = each.step.nunique()
    against = each[each.cosine < -ORTHOGONAL]
    counts = against.groupby(["block", against.age == 0]).size().unstack(fill_value=0)
    counts = counts.reindex(index=sorted(each.block.unique()), columns=[True, False], fill_value=0) / steps
    return counts.rename(columns={True: "present", False: "absent"}).rename_axis(columns=None)
