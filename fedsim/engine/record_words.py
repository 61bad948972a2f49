"""Values in the tables of a run that the engine writes; `docs/records.md` defines each."""

from __future__ import annotations

STATUSES = ("aggregated", "remembered", "late", "lost", "stale", "void", "nonfinite", "unfinished")
"""Statuses of jobs. aggregated: a step used the update. remembered: too late for its step, the update refreshed the
history. late: cancelled at the step it was meant for. lost: the client left or failed, or the job was lost by chance.
stale: dropped as older than allowed. void: arrived for a round with too few updates. nonfinite: dropped for NaN, Inf or
too large a norm (`fedsim.server.update_screening`). unfinished: running, or waiting for its step, at the run's end."""

STEP_STATUSES = ("applied", "empty", "void", "still")
"""Statuses of steps. applied: the model changed. empty: no update to use. void: too few updates. still: the direction
was zero."""

PERSONAL = "_personal"
"""Suffix of the split's name where each client was evaluated with its personal model."""
