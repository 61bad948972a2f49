"""Who keeps what from job to job, where it lies, and who may still need it."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ClientStates(Generic[T]):
    """What clients keep from job to job, as the trainer knows it: rows, or handles of rows that may not exist yet.

    A client's next job starts from what its last one keeps that was submitted and not forgotten. `settled` holds, by
    client, what was kept by the last job that a step used.
    """

    def __init__(self) -> None:
        self.settled: dict[int, T] = {}
        self._latest: dict[int, T] = {}
        self._open: dict[int, tuple[T, T | None]] = {}

    def of(self, client: int) -> T | None:
        """Return what the client's next job starts from, None if it has nothing."""
        return self._latest.get(client)

    def begin(self, client: int, keeps: T) -> None:
        """Note what a client keeps from the last job that a step used, before it has any other."""
        self.settled[client] = self._latest[client] = keeps

    def submit(self, job: int, client: int, keeps: T) -> None:
        """Note what a job will keep."""
        self._open[job] = keeps, self._latest.get(client)
        self._latest[client] = keeps

    def settle(self, job: int, client: int) -> None:
        """Note that a step uses the job."""
        self.settled[client] = self._open.pop(job)[0]

    def forget(self, job: int, client: int) -> None:
        """Leave the client as it was before the job, if that was submitted."""
        if job not in self._open:
            return
        keeps, before = self._open.pop(job)
        if self._latest[client] is not keeps:
            raise ValueError(f"job {job} cannot be forgotten: client {client} has a later one")
        if before is None:
            del self._latest[client]
        else:
            self._latest[client] = before
