"""The table `[checkpoint]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedsim.config.section import LARGEST, Count, Section, Whole


class CheckpointSection(Section):
    """`[checkpoint]`: when a run writes checkpoints, from which it can resume; see docs/reliability.md."""

    every_steps: Whole = 0
    """Server steps between checkpoints; 0 disables this trigger."""
    every_s: float = Field(300.0, ge=0, le=LARGEST)
    """Seconds of wall time between checkpoints; 0 disables this trigger."""
    keep: Count | Literal["all"] = 2
    """Number of latest checkpoints to keep. A finished run removes its checkpoints unless this is `all`."""
