"""The tables about virtual time: `[pacing]`, `[cost]`, `[dropout]`, `[stop]` and `[evaluate]`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import AfterValidator, Field

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import Unless, With
from fedsim.common.units import US
from fedsim.config.section import LARGEST, Count, Duration, NumberOrShare, Section, Size, Whole, installed
from fedsim.engine import pacing as presets
from fedsim.engine.costs import Chance, Completeness, Formula, Jitter, WorkFormula, trace_spread
from fedsim.engine.pacing import Pacing
from fedsim.engine.state import LOSS, Dropout, Stop
from fedsim.server.rule import EvaluatedModel
from fedsim.worlds.world import Leave


class PacingSection(Section):
    """`[pacing]`: when the server steps. Each preset needs certain keys; see `fedsim.engine.pacing`."""

    preset: presets.Preset = "sync"
    """When the server steps and dispatches jobs; docs/pacing.md defines the presets."""
    clients: NumberOrShare | None = None
    """Clients of a round, as a number or as a share of the clients that train (`task.clients` without
    `task.unseen`), rounded down and at least 1."""
    extra: Whole | None = None
    """Clients to select beyond `clients` (over-selection)."""
    factor: float | None = Field(None, ge=1, le=100)
    """Over-selection as a factor such as 1.3, in place of `extra`."""
    deadline: Duration | None = None
    """Most virtual time from the dispatch of a cohort to the step; with `late = "keep"`, from the previous step."""
    concurrency: Count | None = None
    """Most jobs in flight."""
    buffer: Count | None = None
    """Updates after which the server steps."""
    refill: presets.Refill | None = None
    """When free places are filled."""
    late: presets.Late | None = None
    """What the server does with jobs still in flight at a step."""
    minimum: NumberOrShare | None = None
    """Fewest updates of a step at the deadline, as a number or as a share of the updates that a step waits for."""
    max_staleness: Whole | None = None
    """Most server steps by which an update may be stale."""
    least_candidates: Count | None = None
    """Fewest available clients for a dispatch."""

    KEYS: ClassVar[dict[str, tuple[str, ...]]] = {
        "sync": ("clients",),
        "overselect": ("clients", "extra"),
        "deadline": ("clients", "deadline"),
        "fedbuff": ("concurrency", "buffer"),
        "fedasync": ("concurrency",),
        "periodic": ("concurrency", "deadline"),
    }
    """The keys that each preset needs; `factor` may take the place of `extra`."""

    def _faults(self) -> Iterable[str]:
        needed = self.KEYS[self.preset]
        present = {key for key, value in self if value is not None}
        covered = present | ({"extra"} if self.factor is not None else set())
        lines = [f"preset {self.preset!r} needs {key!r}" for key in needed if key not in covered]
        lines += [
            f"preset {self.preset!r} does not use {key!r}; it uses {', '.join(needed)}"
            for key in ("clients", "extra", "factor")
            if key in present and key.replace("factor", "extra") not in needed
        ]
        if {"extra", "factor"} <= present:
            lines.append("give 'extra' or 'factor', not both")
        if self.preset == "overselect" and "concurrency" in present:
            lines.append(
                "preset 'overselect' has 'clients' + 'extra' jobs in flight: leave out 'concurrency'"
            )
        elif {"clients", "concurrency", "buffer"} <= present:
            lines.append(
                "'clients' has no effect beside 'concurrency' and 'buffer': leave out one of the three"
            )
        if not lines:
            self.pacing()
        return lines

    def pacing(self) -> Pacing:
        """Return the preset's Pacing object with the fields that the table sets."""
        values = dict(self) | {"deadline_us": self.deadline, "minimum": None}
        if isinstance(self.clients, float):
            raise ConfigError(
                f"clients: expected task.clients, of which it is a share, found {self.clients} alone"
            )
        if self.factor is not None:
            values["extra"] = presets.extra_of(self.clients or 0, self.factor)
        preset: Pacing = getattr(presets, self.preset)(*(values[key] for key in self.KEYS[self.preset]))
        changes = {f.name: values[f.name] for f in fields(Pacing) if values[f.name] is not None}
        pacing = replace(preset, **changes)
        least = self.minimum or 0
        if isinstance(least, float):
            least = math.ceil(round(least * pacing.most_updates, 9))
        return replace(pacing, minimum=least)


def with_preset(pacing: Mapping[str, Any], preset: Any) -> dict[str, Any]:
    """Return a `[pacing]` table that is about to name `preset`, without the keys that only its former preset needs."""
    former = PacingSection.KEYS.get(
        str(pacing.get("preset", PacingSection.model_fields["preset"].default)), ()
    )
    gone = set(former).difference(PacingSection.KEYS.get(str(preset), former))
    if "extra" in gone:
        gone.add("factor")
    return {key: value for key, value in pacing.items() if key not in gone}


Spread = Annotated[float, Field(ge=0, le=5)] | Literal["trace"]
"""A relative spread, or `"trace"` for each client's spread in the world's trace."""


class JitterSection(Section):
    """`[cost.jitter]`: variation of the time of each phase between jobs; docs/costs.md has the formulas."""

    law: Literal["lognormal", "normal"] = "lognormal"
    """`lognormal` multiplies times; `normal` multiplies speeds of transfers and times of computations."""
    downlink: Spread = 0.0
    """Relative spread of the download; `"trace"` takes each client's own from the world's trace."""
    compute: Spread = 0.0
    """Relative spread of the computation; `"trace"` as for `downlink`."""
    uplink: Spread = 0.0
    """Relative spread of the upload; `"trace"` as for `downlink`."""

    def jitter(self, about: Mapping[str, Any]) -> Jitter:
        """Return the Jitter of clients with the facts `about` in their trace. Raises ConfigError."""
        spreads = {phase: getattr(self, phase) for phase in ("downlink", "compute", "uplink")}
        return Jitter(
            self.law,
            {phase: trace_spread(about, phase) if s == "trace" else s for phase, s in spreads.items() if s},
        )


class CompletenessSection(Section):
    """`[cost.completeness]`: the share of its local work that a client does; docs/costs.md has the formulas."""

    mode: Literal["all", "epochs", "PDU", "FSU", "ADU", "ASU"] = "all"
    """How the share is drawn: `all` does the whole job, `epochs` draws whole epochs, the others are FLGo's modes."""
    chance: Annotated[float, Field(ge=0, le=1), With("mode", "epochs", "PDU")] = 1.0
    """Probability that a job is shortened."""
    low: Annotated[Whole, With("mode", "epochs", "ADU", "ASU")] = 1
    """Fewest epochs."""
    high: Annotated[Whole, With("mode", "epochs", "ADU", "ASU")] = 1
    """Most epochs; `ADU` and `ASU` draw at most one less."""
    fixed: Annotated[bool, With("mode", "epochs")] = False
    """Draw once per client instead of once per job."""

    def _faults(self) -> Iterable[str]:
        self.completeness()
        return ()

    def completeness(self) -> Completeness:
        """Return the Completeness object."""
        return Completeness(self.mode, self.chance, self.low, self.high, self.fixed)


class CostSection(Section):
    """`[cost]`: bytes and virtual time of one job."""

    formula: Formula = "fedsim"
    """The formula for virtual time from samples, epochs and bytes; see `fedsim.engine.costs.Formula`."""
    payload: Size | None = None
    """Bytes sent in each direction per job; by default the size of the model in float32."""
    reference_flops: float | None = Field(None, ge=1, le=1e24)
    """Floating-point operations per sample of a forward pass of the model for which the world's seconds per sample
    were measured. By default they were measured for this run's model."""
    compute_scale: float = Field(1.0, gt=0, le=LARGEST)
    """Factor on the world's seconds per sample."""
    fedscale_steps: Annotated[Count, With("formula", "fedscale")] = 20
    """Number of local steps in the formula `fedscale`."""
    flash_most_samples: Annotated[Count | None, With("formula", "flash")] = None
    """Upper limit of the number of samples in the formula `flash`."""
    jitter: JitterSection = JitterSection()
    completeness: CompletenessSection = CompletenessSection()

    def work_formula(self, flops: float) -> WorkFormula:
        """Return how work follows from samples, for a model whose forward pass takes `flops` operations."""
        scale = self.compute_scale * (flops / self.reference_flops if self.reference_flops else 1.0)
        return WorkFormula(self.formula, scale, self.fedscale_steps, self.flash_most_samples)


class DropoutSection(Section):
    """`[dropout]`: what happens to jobs of clients that leave, loss by chance, and how the server handles lost jobs."""

    leave: Leave = "abort"
    """What happens to the job of a client that leaves; see `fedsim.worlds.world`."""
    chance: float = Field(0.0, ge=0, le=1)
    """Probability that a job is lost, independently of the world."""
    law: Annotated[Literal["same", "uniform"], Unless("chance", 0)] = "same"
    """`same`: `chance` is the probability for every client. `uniform`: `chance` is the share of clients that lose
    jobs, each with a probability drawn uniformly from [0, 1]."""
    within: Annotated[Literal["any", "download", "compute", "upload"], Unless("chance", 0)] = "any"
    """The phase in which chance loses jobs."""
    notice: Duration = 0
    """Virtual time from a loss until the server learns of it; until then the job still takes its place."""
    retries: Whole = 0
    """Number of times that a client repeats a lost job, if it is online when the server learns of the loss."""
    replace: bool = False
    """Dispatch to another client within the round when a job is lost."""
    partial: bool = False
    """Let a client that would miss the deadline do fewer epochs, so that it arrives in time (FLASH)."""

    def handling(self) -> Dropout:
        """Return how the server handles lost jobs."""
        return Dropout(self.notice, self.retries, self.replace, self.partial)

    def by_chance(self) -> Chance:
        """Return the loss by chance."""
        return Chance(self.chance, self.law, self.within)


Split = Literal["train", "valid", "test"]


def smaller_is_better(metric: str) -> bool:
    """Return whether smaller values of what `stop.metric` names are better."""
    return metric == LOSS or plugins.smaller_is_better(metric)


def _watchable(metric: str) -> str:
    return metric if metric == LOSS else installed("metric", metric)


Watched = Annotated[str, AfterValidator(_watchable)]


class StopSection(Section):
    """`[stop]`: the run ends at the limit that it reaches first; one of steps, time, bytes and wall is required."""

    steps: Count | None = None
    """Server steps."""
    time: Duration | None = None
    """Virtual time."""
    bytes: Size | None = None
    """Bytes moved by all clients together."""
    wall: Duration | None = None
    """Wall time. A run that ends by it is not reproducible."""
    metric: Watched = "mean_percent"
    """The metric for `target` and `patience`, from `analysis/metrics`, at each evaluation of the global model; or
    `"loss"`, the mean loss over samples."""
    split: Split | None = None
    """The samples that `metric` is measured on, one of those in `[evaluate]`; by default `evaluate.split`."""
    rising: bool = True
    """Whether larger values of the metric are better; by default the metric's own choice."""
    target: float | None = Field(None, ge=-LARGEST, le=LARGEST)
    """The run ends when the metric is at least this, or at most this if it is not `rising`."""
    patience: Count | None = None
    """The run ends after this many evaluations in a row without an improvement of the best by more than `least`."""
    least: Annotated[float, Field(ge=0, le=LARGEST), Unless("patience", None)] = 0.0
    """Least improvement of the metric that `patience` counts."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _default_rising(cls, table: Any) -> Any:
        metric = table.get("metric") if isinstance(table, Mapping) else None
        if isinstance(metric, str) and "rising" not in table and smaller_is_better(metric):
            return {**table, "rising": False}
        return table

    def _faults(self) -> Iterable[str]:
        if all(limit is None for limit in (self.steps, self.time, self.bytes, self.wall)):
            yield "give 'steps', 'time', 'bytes' or 'wall', or the run might never end"
        if self.target is not None and self.metric.endswith("_percent") and not 0 <= self.target <= 100:
            yield f"target: expected a percentage, from 0 to 100, found {self.target:g}"

    def stop(self) -> Stop:
        """Return the Stop object."""
        watched = self.target is not None or self.patience is not None
        return Stop(
            steps=self.steps,
            time_us=self.time,
            moved_bytes=self.bytes,
            wall_s=None if self.wall is None else self.wall / US,
            metric=self.metric if watched else None,
            split=self.split,
            target=self.target,
            rising=self.rising,
            patience=self.patience,
            least=self.least,
        )


class EvaluateSection(Section):
    """`[evaluate]`: when to evaluate, beside the initial and the final model, which are always evaluated."""

    every_steps: Whole = 10
    """Server steps between evaluations; 0: none because of steps."""
    every: Duration = 0
    """Virtual time between evaluations, which are left out if there was no step since; 0: none because of time."""
    clients: Count | None = None
    """Number of clients to evaluate, drawn once, and as many unseen ones; by default all. The final model is evaluated
    on all clients."""
    split: Split = "test"
    """The samples of the clients to evaluate on."""
    also: tuple[Split, ...] = ()
    """Further samples to evaluate the global model on, at the same times."""
    model: EvaluatedModel = "last"
    """The global model to evaluate: `last`, the current one, or `mean`, the mean of the models after each step that
    used an update, called Polyak averaging. Clients always train from the current model."""
    personal: bool = True
    """Also evaluate each client with its personal model, if the client method has personal models, and unseen clients
    after they adapted the model."""

    def _faults(self) -> Iterable[str]:
        if len({self.split, *self.also}) <= len(self.also):
            listed = ", ".join(map(repr, self.also))
            yield f"also: expected splits other than {self.split!r}, each once, found {listed}"
