"""The tables `[adversary]`, for attacking clients, and `[bad_updates]`, for updates that the server screens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import Field

from fedsim.config.section import Duration, PluginSection, Section
from fedsim.server.update_screening import Policy, UpdateScreening
from fedsim.training.attack import Adversary


class AdversarySection(PluginSection):
    """`[adversary]`, or `[[adversary]]` for several: an attack, the clients that carry it out, and when."""

    kind: ClassVar[str] = "adversary"
    clients: tuple[int, ...] | None = None
    """Numbers of the attacking clients. Give either this or `share`."""
    share: float | None = Field(None, gt=0, le=1)
    """Share of the clients that attack, drawn once. Tables with equal shares draw the same clients."""
    after: Duration = 0
    """Attack only jobs dispatched at this virtual time or later."""
    until: Duration | None = None
    """Attack only jobs dispatched before this virtual time."""
    steps: tuple[int, int] | None = None
    """[first, end]: attack only jobs that start from the model of server steps first to end - 1."""
    chance: float = Field(1.0, gt=0, le=1)
    """Probability that a job is attacked. All tables use the same draw of a job."""

    def _faults(self) -> Iterable[str]:
        yield from super()._faults()
        if (self.clients is None) == (self.share is None):
            yield "give 'clients', such as [0, 3], or 'share', such as 0.2"
        if self.clients is not None and (not self.clients or min(self.clients) < 0):
            yield f"clients: expected numbers of clients from 0 on, found {list(self.clients)}"
        if self.until is not None and self.until <= self.after:
            yield "until: expected a time later than 'after'"
        if self.steps is not None and not 0 <= self.steps[0] < self.steps[1]:
            yield f"steps: expected [first, end] with 0 <= first < end, found {list(self.steps)}"

    def adversary(self) -> Adversary:
        """Return the table as plain values; the clients of a `share` are not drawn yet."""
        return Adversary(
            name=self.name,
            options=self.options,
            clients=self.clients,
            share=self.share,
            after_us=self.after,
            until_us=self.until,
            steps=self.steps,
            chance=self.chance,
        )


def listed(tables: Any) -> Any:
    """Return a single table as a tuple of one."""
    return (tables,) if isinstance(tables, Mapping) else tables


class BadUpdatesSection(Section):
    """`[bad_updates]`: what the server does with updates that contain NaN or infinity, or are too long."""

    policy: Policy = "skip_and_record"
    """See `fedsim.server.update_screening`."""
    limit: float | None = Field(None, gt=0, le=1e30)
    """Norm above which an update is too long; no limit by default."""

    def _faults(self) -> Iterable[str]:
        if self.policy == "clip" and self.limit is None:
            yield "policy 'clip' needs 'limit', the norm that longer updates are cut to"

    @property
    def longest(self) -> float | None:
        """Norm above which updates are left out; None if none is left out for its length."""
        return self.limit if self.policy == "skip_and_record" else None

    def rule(self) -> UpdateScreening:
        """Return the server's policy."""
        return UpdateScreening(self.policy, self.limit)
