"""A job: one client trains one model once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that decides the result of a client's training, besides its data and the start parameters."""

    id: int
    """Number of the job in order of dispatch, from 0."""
    client: int
    nth: int
    """How many jobs the client was given before. Minibatches are drawn from (seed, client, nth), so two runs that
    choose clients differently still give a client the same minibatches in its n-th job."""
    version: int
    """Server step whose parameters the job starts from."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a finished job reports. The row itself stays where it was computed: `store` is a `[k, P]` tensor, or a
    handle of one in Ray's object store, and `index` the row in it."""

    loss_before: float
    """Mean loss over the client's training samples at the start parameters; NaN unless the rule asked for it."""
    loss_train: float
    """Mean loss over all minibatches of the job, each taken before its gradient step."""
    finite: bool
    """Whether every entry of the row is finite."""
    store: Any
    index: int
