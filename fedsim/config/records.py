"""`[record]`, `[audit]`, `[checkpoint]`: what a run writes beside its main tables; `[parent]`: where it comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsim.common.option_requirements import Unless
from fedsim.config.section import LARGEST, Count, Section, Whole


class RecordSection(Section):
    """`[record]`: tables to write beside the jobs, steps and evals tables."""

    conflicts: Literal["off", "model", "layers"] = "off"
    """Write `conflicts.parquet`: weight, age and angle of each update at each step, for the whole model or by layer."""


class AuditSection(Section):
    """`[audit]`: compare remembered updates with the updates that clients would send now.

    In an audit clients train again from the model of the step, for the record alone and in no virtual time.
    """

    every: Whole = 0
    """Server steps between audits; 0 disables them."""
    clients: Annotated[Count, Unless("every", 0)] = 100
    """Most clients of one audit. Clients whose updates the server has, present or remembered, come first."""


class CheckpointSection(Section):
    """`[checkpoint]`: when a run writes checkpoints, from which it can resume; see docs/reliability.md."""

    every_steps: Whole = 0
    """Server steps between checkpoints; 0 disables this trigger."""
    every_s: float = Field(300.0, ge=0, le=LARGEST)
    """Seconds of wall time between checkpoints; 0 disables this trigger."""
    keep: Count | Literal["all"] = 2
    """Number of latest checkpoints to keep. A finished run removes its checkpoints unless this is `all`."""


class ParentSection(Section):
    """`[parent]`: the run whose world this run replays (`fedsim replay`), or from which it forked (`fedsim fork`)."""

    run: str
    """The parent's folder."""
    digest: str | None = None
    """The parent's digest."""
    same_participation: bool = False
    """Whether the same clients get jobs at the same instants as in the parent."""
    changes: tuple[str, ...] = ()
    """Keys that differ from the parent's configuration, as assignments."""
    forked_step: int | None = None
    """The server step at which a fork left its parent."""
    forked_us: int | None = None
    """The virtual time of the fork in microseconds."""
    forked_at: Literal["step", "time"] | None = None
    """Whether the user gave the fork as a step or as a time."""
    kept_online: tuple[int, ...] | None = None
    """Clients that stay online from the fork on."""
