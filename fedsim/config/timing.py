"""The tables of a configuration that decide about time: pacing, costs, dropout, when to evaluate and when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import Field

from fedsim.common import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import Unless, With
from fedsim.common.units import US
from fedsim.config.section import LARGEST, Count, Section, Size, Whole
from fedsim.config.world import Duration
from fedsim.engine import pacing as presets
from fedsim.engine.costs import Chance, Completeness, Formula, Jitter, trace_spread
from fedsim.engine.pacing import Pacing
from fedsim.engine.state import Dropout, Stop
from fedsim.worlds.world import Leave


class PacingSection(Section):
    """`[pacing]`: when the server steps. Each preset needs its own keys: see `fedsim.engine.pacing`."""

    preset: Literal["sync", "overselect", "deadline", "fedbuff", "fedasync", "periodic"] = "sync"
    clients: Count | None = None
    extra: Whole | None = None
    """How many more clients are chosen than needed, or instead: """
    factor: float | None = Field(None, ge=1, le=100)
    """how many times as many, such as 1.3."""
    deadline: Duration | None = None
    concurrency: Count | None = None
    buffer: Count | None = None
    refill: presets.Refill | None = None
    late: presets.Late | None = None
    minimum: Count | Annotated[float, Field(gt=0, lt=1)] | None = None
    """Updates without which a round is void, or their share of what a step waits for."""
    max_staleness: Whole | None = None
    least_candidates: Count | None = None
    """Clients that must be there to choose from before anybody is handed work."""

    _KEYS: ClassVar[dict[str, tuple[str, ...]]] = {
        "sync": ("clients",),
        "overselect": ("clients", "extra"),
        "deadline": ("clients", "deadline"),
        "fedbuff": ("concurrency", "buffer"),
        "fedasync": ("concurrency",),
        "periodic": ("concurrency", "deadline"),
    }
    _FIELDS: ClassVar[tuple[str, ...]] = (
        "concurrency",
        "buffer",
        "refill",
        "late",
        "max_staleness",
        "least_candidates",
    )

    @pydantic.model_validator(mode="after")
    def _check_keys(self) -> PacingSection:
        wanted = self._KEYS[self.preset]
        present = {k for k in type(self).model_fields if k != "preset" and getattr(self, k) is not None}
        given = present | ({"extra"} if self.factor is not None else set())
        lines = [f"preset {self.preset!r} needs {key!r}" for key in wanted if key not in given]
        lines += [
            f"preset {self.preset!r} does not use {key!r}; it uses {', '.join(wanted)}"
            for key in ("clients", "extra", "factor")
            if key in present and key.replace("factor", "extra") not in wanted
        ]
        if {"extra", "factor"} <= present:
            lines.append("give 'extra' or 'factor', not both")
        if lines:
            raise ValueError("\n".join(lines))
        self.pacing()
        return self

    def pacing(self) -> Pacing:
        """Return the Pacing object: the preset's, with the fields changed that are given."""
        extra = presets.extra_of(self.clients or 0, self.factor) if self.factor is not None else self.extra
        values = {key: getattr(self, key) for key in self._KEYS[self.preset]} | {"extra": extra}
        make = getattr(presets, self.preset)
        plain: Pacing = make(*(values[key] for key in self._KEYS[self.preset]))
        changes = {key: getattr(self, key) for key in self._FIELDS if getattr(self, key) is not None}
        if self.deadline is not None:
            changes["deadline_us"] = self.deadline
        changed = replace(plain, **changes)
        if self.minimum is None:
            return changed
        share = isinstance(self.minimum, float)
        least = math.ceil(round(self.minimum * changed.most_updates, 9)) if share else int(self.minimum)
        return replace(changed, minimum=least)


Spread = Annotated[float, Field(ge=0, le=5)] | Literal["trace"]
"""A relative spread, or that of each client as the world's trace knows it."""


class JitterSection(Section):
    """`[cost.jitter]`: how the time of a phase varies from job to job; see `fedsim.engine.costs.Jitter`."""

    law: Literal["lognormal", "normal"] = "lognormal"
    downlink: Spread = 0.0
    compute: Spread = 0.0
    uplink: Spread = 0.0

    def jitter(self, about: Mapping[str, Any]) -> Jitter:
        """Return the Jitter of clients of whom the trace knows `about`. Raises ConfigError."""
        given = {way: getattr(self, way) for way in ("downlink", "compute", "uplink")}
        spread = {way: trace_spread(about, way) if s == "trace" else s for way, s in given.items() if s}
        return Jitter(self.law, spread)


class CompletenessSection(Section):
    """`[cost.completeness]`: how much of its local work a client does; see `fedsim.engine.costs.Completeness`."""

    mode: Literal["all", "epochs", "PDU", "FSU", "ADU", "ASU"] = "all"
    chance: Annotated[float, Field(ge=0, le=1), With("mode", "epochs", "PDU")] = 1.0
    low: Annotated[Whole, With("mode", "epochs", "ADU", "ASU")] = 1
    high: Annotated[Whole, With("mode", "epochs", "ADU", "ASU")] = 1
    fixed: Annotated[bool, With("mode", "epochs")] = False

    @pydantic.model_validator(mode="after")
    def _check(self) -> CompletenessSection:
        self.completeness()
        return self

    def completeness(self) -> Completeness:
        """Return the Completeness object."""
        return Completeness(self.mode, self.chance, self.low, self.high, self.fixed)


class CostSection(Section):
    """`[cost]`: what one job moves and computes in virtual time."""

    formula: Formula = "fedsim"
    """How samples, epochs and bytes become time; see `fedsim.engine.costs.Formula`."""
    payload: Size | None = None
    """Bytes sent down and up per job; otherwise the model's own size in float32."""
    reference_flops: float | None = Field(None, ge=1, le=1e24)
    """Operations of a forward pass of the model that the world's seconds per sample were measured with; otherwise
    they hold for the model at hand."""
    compute_scale: float = Field(1.0, gt=0, le=LARGEST)
    """Factor on the seconds per sample of the world's devices."""
    fedscale_steps: Annotated[Count, With("formula", "fedscale")] = 20
    """Local steps that the formula `fedscale` counts."""
    flash_most_samples: Annotated[Count | None, With("formula", "flash")] = None
    """Most samples that the formula `flash` counts."""
    jitter: JitterSection = JitterSection()
    completeness: CompletenessSection = CompletenessSection()


class DropoutSection(Section):
    """`[dropout]`: what leaving does to a job, loss by chance, and what the server does about lost jobs."""

    leave: Leave = "abort"
    """What a client's leaving does to its job; see `fedsim.worlds.world`."""
    chance: float = Field(0.0, ge=0, le=1)
    """Probability that a job is lost whatever the world does."""
    law: Annotated[Literal["same", "uniform"], Unless("chance", 0)] = "same"
    """`uniform`: a share `chance` of the clients have a probability of their own, uniform on [0, 1], the others 0."""
    within: Annotated[Literal["any", "download", "compute", "upload"], Unless("chance", 0)] = "any"
    """The phase in which chance loses jobs."""
    notice: Duration = 0
    """How long after it is lost the server learns of a loss; until then the client's place is taken."""
    retries: Whole = 0
    """How often a client is given lost work once more, if it is online when the server learns of the loss."""
    replace: bool = False
    """Whether another client is drawn in the middle of a round for one that is lost."""
    partial: bool = False
    """Whether a client that would miss the deadline does as many epochs less as lets it arrive in time (FLASH)."""

    def handling(self) -> Dropout:
        """Return what the server does."""
        return Dropout(self.notice, self.retries, self.replace, self.partial)

    def by_chance(self) -> Chance:
        """Return the loss by chance."""
        return Chance(self.chance, self.law, self.within)


class StopSection(Section):
    """`[stop]`: the run ends at whichever comes first; at least one is needed."""

    steps: Count | None = None
    time: Duration | None = None
    """Virtual time."""
    bytes: Size | None = None
    """Moved by all clients together."""
    wall: Duration | None = None
    """Wall time; runs that end by it are not reproducible."""
    metric: str = "mean_percent"
    """What `target` and `patience` watch: a metric of `analysis/metrics`, at each evaluation of the global model."""
    rising: bool = True
    """Whether more of the metric is better; by default what the metric's file says."""
    target: float | None = Field(None, ge=-LARGEST, le=LARGEST)
    """The run ends when the metric is at least this (at most, if it is not rising)."""
    patience: Count | None = None
    """The run ends after so many evaluations in a row that were no better than the best by more than `least`."""
    least: Annotated[float, Field(ge=0, le=LARGEST), Unless("patience", None)] = 0.0

    @pydantic.model_validator(mode="before")
    @classmethod
    def _ask_the_metric(cls, said: Any) -> Any:
        metric = said.get("metric") if isinstance(said, Mapping) else None
        if isinstance(metric, str) and "rising" not in said and plugins.smaller_is_better(metric):
            return {**said, "rising": False}
        return said

    @pydantic.model_validator(mode="after")
    def _check_any(self) -> StopSection:
        if all(getattr(self, key) is None for key in ("steps", "time", "bytes", "wall")):
            raise ValueError("give 'steps', 'time', 'bytes' or 'wall', or the run might never end")
        try:
            plugins.factory("metric", self.metric)
        except ConfigError as error:
            raise ValueError(f"metric: {error}") from error
        if self.target is not None and self.metric.endswith("_percent") and not 0 <= self.target <= 100:
            raise ValueError(f"target: expected a percentage, from 0 to 100, found {self.target:g}")
        return self

    def stop(self) -> Stop:
        """Return the Stop object."""
        watched = self.target is not None or self.patience is not None
        return Stop(
            steps=self.steps,
            time_us=self.time,
            moved_bytes=self.bytes,
            wall_s=None if self.wall is None else self.wall / US,
            metric=self.metric if watched else None,
            target=self.target,
            rising=self.rising,
            patience=self.patience,
            least=self.least,
        )


class EvaluateSection(Section):
    """`[evaluate]`: the initial and the final model are always evaluated."""

    every_steps: Whole = 10
    every: Duration = 0
    """Also after each stretch of so much virtual time, if there was a step in it."""
    clients: Count | None = None
    """How many clients to evaluate, drawn once; all by default. The final model is evaluated on all."""
    split: Literal["train", "valid", "test"] = "test"
    personal: bool = True
    """Also evaluate each client with its own model, where the client-side method has such models."""
