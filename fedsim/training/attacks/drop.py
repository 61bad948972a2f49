"""Updates that never arrive."""

from __future__ import annotations

from fedsim.training.attack import Attack


def drop() -> Attack:
    """Lose the job at the last instant of its upload; see `zero` for updates of zeros.

    The job ends `lost`, and the server learns of it as of any other loss. Unlike an update of zeros, a missing update
    makes the server wait, or leaves the step to the other clients.
    """
    return Attack(drops=True)
