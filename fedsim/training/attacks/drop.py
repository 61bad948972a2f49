"""Updates that never arrive."""

from __future__ import annotations

from fedsim.training.attack import Attack


def drop() -> Attack:
    """Let the job be lost in the last instant of its upload; see `zero` for updates that say nothing.

    The server learns of it as of any other loss. Who is silent makes everybody wait, or leaves a step to the others,
    which a row of zeros would not: hence the job ends `lost`.
    """
    return Attack(drops=True)
