"""Client state: what each client keeps from job to job, and which jobs may still need it."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ClientStates(Generic[T]):
    """What clients keep from job to job: tensors, or references to results that may not be computed yet.

    A client's next job continues its last job that was submitted and not forgotten. `settled` holds by client what the
    last job kept that a step used.
    """

    def __init__(self) -> None:
        self.settled: dict[int, T] = {}
        self._latest: dict[int, T | None] = {}
        self._open: dict[int, tuple[T, T | None]] = {}

    def of(self, client: int) -> T | None:
        """Return what the client's next job continues from, None for its first job."""
        return self._latest.get(client)

    def begin(self, client: int, keeps: T) -> None:
        """Set what a client kept from the last job that a step used; call it before any `submit` of the client."""
        self.settled[client] = self._latest[client] = keeps

    def submit(self, job: int, client: int, keeps: T) -> None:
        """Record what a submitted job keeps."""
        self._open[job] = keeps, self._latest.get(client)
        self._latest[client] = keeps

    def settle(self, job: int, client: int) -> None:
        """Record that a step uses the job."""
        self.settled[client] = self._open.pop(job)[0]

    def forget(self, job: int, client: int) -> None:
        """Restore what the client kept before the job. Raises ValueError if the client has a later job.

        Jobs that were not submitted are ignored.
        """
        if job not in self._open:
            return
        keeps, before = self._open.pop(job)
        if self._latest[client] is not keeps:
            raise ValueError(f"job {job} cannot be forgotten: client {client} has a later one")
        self._latest[client] = before
