"""The tables of a configuration about clients that do not play fair, and about updates that nobody should use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pydantic
from pydantic import Field

from fedsim.config.section import PluginSection, Section
from fedsim.config.world import Duration
from fedsim.server.update_screening import Policy, UpdateScreening
from fedsim.training.attack import Adversary


class AdversarySection(PluginSection):
    """`[adversary]`, or `[[adversary]]` for several: what some clients do to what they send, who and when."""

    kind: ClassVar[str] = "adversary"
    clients: tuple[int, ...] | None = None
    """Who, or instead: """
    share: float | None = Field(None, gt=0, le=1)
    """how many of the clients, drawn once. Tables with equal shares draw the same clients."""
    after: Duration = 0
    """Virtual time from which on jobs that are handed out are attacked."""
    until: Duration | None = None
    """Virtual time before which they are handed out."""
    steps: tuple[int, int] | None = None
    """First and last server step whose model the attacked jobs start from; the last is not among them."""
    chance: float = Field(1.0, gt=0, le=1)
    """Probability that a job is attacked; one draw per job for all tables."""

    @pydantic.model_validator(mode="after")
    def _check_who_and_when(self) -> AdversarySection:
        lines = []
        if (self.clients is None) == (self.share is None):
            lines.append("give 'clients', such as [0, 3], or 'share', such as 0.2")
        if self.clients is not None and (not self.clients or min(self.clients) < 0):
            lines.append(f"clients: expected numbers of clients from 0 on, found {list(self.clients)}")
        if self.until is not None and self.until <= self.after:
            lines.append("until: expected a time later than 'after'")
        if self.steps is not None and not 0 <= self.steps[0] < self.steps[1]:
            lines.append(f"steps: expected [first, end] with 0 <= first < end, found {list(self.steps)}")
        if lines:
            raise ValueError("\n".join(lines))
        return self

    def adversary(self) -> Adversary:
        """Return the same as plain values; a share is not drawn yet."""
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
    """Read one table as a list of one."""
    return (tables,) if isinstance(tables, Mapping) else tables


class BadUpdatesSection(Section):
    """`[bad_updates]`: what the server does about updates that hold NaN or infinity, or are too long."""

    policy: Policy = "skip_and_record"
    """See `fedsim.server.update_screening`."""
    limit: float | None = Field(None, gt=0, le=1e30)
    """Norm above which an update is too long; none by default."""

    @pydantic.model_validator(mode="after")
    def _check_limit(self) -> BadUpdatesSection:
        if self.policy == "clip" and self.limit is None:
            raise ValueError("policy 'clip' needs 'limit', the norm that longer updates are cut to")
        return self

    def rule(self) -> UpdateScreening:
        """Return what the server is told."""
        return UpdateScreening(self.policy, self.limit)
