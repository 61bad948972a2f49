"""Words in the tables of a run that the engine itself uses; `docs/records.md` defines each."""

from __future__ import annotations

STATUSES = ("aggregated", "remembered", "late", "lost", "stale", "void", "nonfinite", "unfinished")
"""aggregated: in a step. remembered: too late for its step, it refreshed the history. late: cancelled at the step it
was meant for. lost: the client left or failed, or chance struck. stale: older than allowed, left out. void: arrived for
a round that had too few updates. nonfinite: arrived with NaN or Inf, or too long (`fedsim.server.update_screening`),
and was left out. unfinished: still running, or waiting for its step, when the run ended."""

STEP_STATUSES = ("applied", "empty", "void", "still")
"""applied: the model moved. empty: no update to use. void: too few. still: the direction was zero."""

PERSONAL = "_personal"
"""Ending of the split's name where each client was evaluated with the model that it would use itself."""
