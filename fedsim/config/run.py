"""The configuration of a run: frozen pydantic models, one per TOML table. This file is its reference manual.

A table that names a plug-in (`task`, `model`, `partition`, `selection`, `client`, `algorithm`) holds the plug-in's own
options beside its name; they are checked against the signature of its factory. Unknown keys are refused everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator

from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import Unless
from fedsim.config.adversary import AdversarySection, BadUpdatesSection, listed
from fedsim.config.checkpoint import CheckpointSection
from fedsim.config.memory import MemorySection
from fedsim.config.section import (
    Count,
    PluginSection,
    RunName,
    Section,
    Seed,
    Whole,
)
from fedsim.config.timing import CostSection, DropoutSection, EvaluateSection, PacingSection, StopSection
from fedsim.config.train import TrainSection
from fedsim.config.world import Duration, WorldConfig
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import RowsFrom
from fedsim.server.rule_factory import build_rule

if TYPE_CHECKING:
    from fedsim.training.attack import Adversary
    from fedsim.training.settings import Mode


class TaskSection(PluginSection):
    """`[task]`: the data and how many clients share it."""

    kind: ClassVar[str] = "task"
    given: ClassVar[tuple[str, ...]] = ("clients", "seed", "data_dir")
    clients: Count
    """K, number of registered clients."""
    data_dir: Path | None = None
    """Where the data set lies or is downloaded to; otherwise $FEDSIM_DATA, otherwise `data`."""
    pool: Literal["all", "train", "official"] = "all"
    """`all` divides the official training and test sets together, `train` only the training set, and `official` too,
    but tests on the official test set."""
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of each client's samples used for training, validation and testing."""
    shuffle: bool = True
    """False cuts each client's samples into these parts in the order in which the partitioner gave them."""


class ModelSection(PluginSection):
    """`[model]`: the network; the task's own by default."""

    kind: ClassVar[str] = "model"
    given: ClassVar[tuple[str, ...]] = ("in_shape", "n_classes")


class PartitionSection(PluginSection):
    """`[partition]`: how samples are divided among clients; not for tasks that have natural clients."""

    kind: ClassVar[str] = "partitioner"


class SelectionSection(PluginSection):
    """`[selection]`: who is chosen."""

    kind: ClassVar[str] = "selector"
    name: str = "uniform"


class WrapSection(PluginSection):
    """`[[algorithm.wrap]]`: a wrapper around the rule."""

    kind: ClassVar[str] = "wrapper"
    given: ClassVar[tuple[str, ...]] = ("rule",)

    def named(self) -> dict[str, Any]:
        """Return the options that have an effect together with the name."""
        return {"name": self.name} | self.working_options()


class AlgorithmSection(PluginSection):
    """`[algorithm]`: the server's rule."""

    kind: ClassVar[str] = "rule"
    name: str = "fedavg"
    wrap: tuple[WrapSection, ...] = ()
    """Wrappers, the innermost first."""
    rows: RowsFrom = "start"
    """Updates as differences to the model that the job started from, or to the `current` one (FedAsync's pull)."""
    memory: Duration = 0
    """Forget absent clients after this much virtual time, beside the rule's own window in steps; 0: never."""

    @pydantic.model_validator(mode="after")
    def _check_together(self) -> AlgorithmSection:
        """Refuse combinations that cannot work; the learning rate stands for any."""
        try:
            build_rule(self.name, self.working_options(), [wrapper.named() for wrapper in self.wrap], lr=0.1)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    def resolved(self) -> dict[str, Any]:
        """Return the table and those of the wrappers with every option's default written out."""
        tables = super().resolved()
        return tables | {"wrap": [w.resolved() for w in self.wrap]} if self.wrap else tables


class ClientSection(PluginSection):
    """`[client]`: the client-side method, what clients do beyond `[train]`."""

    kind: ClassVar[str] = "client"
    name: str = "plain"


class RecordSection(Section):
    """`[record]`: what is written beside the three tables."""

    conflicts: Literal["off", "model", "layers"] = "off"
    """`conflicts.parquet`: weight, age and angle of each row at each step, for the whole model or layer by layer."""


class AuditSection(Section):
    """`[audit]`: at some steps clients train once more, from the model of that step, for the record alone: what is
    remembered of them against what they would send now. It takes no virtual time."""

    every: Whole = 0
    """Server steps from one audit to the next; 0: never."""
    clients: Annotated[Count, Unless("every", 0)] = 100
    """Most clients of one audit: those first whose updates the server has, present or remembered."""


class ParentSection(Section):
    """`[parent]`: the run whose world this one sees, written by `fedsim replay`, or which it was before, `fork`."""

    run: str
    digest: str | None = None
    same_participation: bool = False
    changes: tuple[str, ...] = ()
    forked_step: int | None = None
    """The server step at which a fork left its parent."""
    forked_us: int | None = None
    """The virtual time of that, in microseconds."""
    forked_at: Literal["step", "time"] | None = None
    """What it was asked to wait for: the step, or the time."""
    kept_online: tuple[int, ...] | None = None
    """Clients that stay online from then on."""


class RunConfig(Section):
    """One run."""

    name: RunName
    seed: Seed = 0
    task: TaskSection
    model: ModelSection | None = None
    partition: PartitionSection | None = None
    world: WorldConfig = WorldConfig(scenario="always_on")
    pacing: PacingSection
    selection: SelectionSection = SelectionSection()
    train: TrainSection = TrainSection()
    client: ClientSection = ClientSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    memory: MemorySection = MemorySection()
    cost: CostSection = CostSection()
    dropout: DropoutSection = DropoutSection()
    stop: StopSection
    evaluate: EvaluateSection = EvaluateSection()
    adversary: Annotated[tuple[AdversarySection, ...], BeforeValidator(listed)] = ()
    """What clients do that do not play fair, in the order in which attacks on the same job act."""
    bad_updates: BadUpdatesSection = BadUpdatesSection()
    record: RecordSection = RecordSection()
    audit: AuditSection = AuditSection()
    checkpoint: CheckpointSection = CheckpointSection()
    parent: ParentSection | None = None

    @pydantic.model_validator(mode="after")
    def _check_sizes(self) -> RunConfig:
        wanted = self.pacing.pacing().concurrency
        if wanted > self.task.clients:
            raise ValueError(
                f"pacing asks for {wanted} clients at once, but task.clients is {self.task.clients}"
            )
        for table in self.adversary:
            if max(table.clients or (0,)) >= self.task.clients:
                raise ValueError(
                    f"adversary {table.name!r}: clients: expected numbers from 0 to {self.task.clients - 1}, found "
                    f"{max(table.clients or ())}"
                )
        return self

    def adversaries(self) -> tuple[Adversary, ...]:
        """Return the adversaries with their clients drawn."""
        return tuple(table.adversary().among(self.task.clients, self.seed) for table in self.adversary)

    def settled(self, mode: Mode, history: HistoryPlan) -> RunConfig:
        """Return the same with what depends on model and device written out: how to train, and how rows are kept."""
        train, memory = self.train.model_copy(update={"mode": mode}), self.memory.chosen(history)
        return self.model_copy(update={"train": train, "memory": memory})

    @property
    def label(self) -> str:
        """The name used in tables and legends: the arm's, or the run's."""
        return self.name.rpartition("/")[2]

    def resolved(self) -> dict[str, Any]:
        """Return the whole configuration with defaults written out; running it gives the same run."""
        tables: dict[str, Any] = {"name": self.name, "seed": self.seed}
        for key in type(self).model_fields:
            section = getattr(self, key)
            if isinstance(section, PluginSection):
                tables[key] = section.resolved()
            elif isinstance(section, BaseModel):
                tables[key] = section.model_dump(mode="json", exclude_none=True)
            elif key == "adversary" and section:
                found = [table.resolved() for table in section]
                tables[key] = found if len(found) > 1 else found[0]
        return tables
