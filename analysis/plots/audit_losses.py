"""Changes of training loss at audited steps, for present, remembered and unknown clients."""

from __future__ import annotations

import pandas as pd

from fedsim.analysis.drawing.picture import GREY, Picture, arm_keys, arm_style, panels
from fedsim.analysis.statistics.audit import GROUPS


def audit_losses(audit: pd.DataFrame) -> Picture:
    """Draw the mean change of loss at each audited step by group of clients, from a frame of `audit_frame`."""
    figure, (ax,) = panels([1.9])
    audit = audit.assign(change=audit["loss_after"] - audit["loss_before"])
    groups = [group for group in GROUPS if (audit["group"] == group).any()]
    words = []
    for i, group in enumerate(groups):
        change = audit[audit["group"] == group].groupby("step")["change"].mean()
        ax.plot(change.index, change, **arm_style(i))
        words.append(f"{group}: mean {change.mean():+.4f} nat")
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set_xlabel("server step", fontsize=9)
    ax.set_ylabel("change of loss, nat", fontsize=9)
    caption = (
        "Mean training loss after the step minus before it: of clients of whom an update counts, of absent clients of"
        " whom the server remembers one, and of the others."
    )
    return Picture(figure, f"Change of loss by audited steps. {'; '.join(words)}.", caption, arm_keys(groups))
