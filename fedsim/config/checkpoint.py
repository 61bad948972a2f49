"""The table of a configuration that decides when a run is saved: `[checkpoint]`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedsim.config.section import LARGEST, Count, Section, Whole


class CheckpointSection(Section):
    """`[checkpoint]`: when a run is saved so that it can go on; see docs/reliability.md."""

    every_steps: Whole = 0
    """Server steps; 0: never because of steps."""
    every_s: float = Field(300.0, ge=0, le=LARGEST)
    """Seconds of wall time; 0: never because of time."""
    keep: Count | Literal["all"] = 2
    """The last so many; those of a run that is done are removed, unless it is `all`."""
