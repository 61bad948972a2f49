"""The configuration of a run: frozen pydantic models, one per TOML table.

A table that names a plug-in (`task`, `model`, `partition`, `selection`, `client`, `algorithm`) holds the plug-in's
options beside its name, which are checked against the signature of the plug-in's factory. Unknown keys are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, Field

from fedsim import plugins
from fedsim.common.errors import shown
from fedsim.config.adversary import AdversarySection, BadUpdatesSection, listed
from fedsim.config.memory import MemorySection
from fedsim.config.records import AuditSection, CheckpointSection, ParentSection, RecordSection
from fedsim.config.section import (
    Count,
    Duration,
    PluginSection,
    RunName,
    Section,
    Seed,
    Whole,
    clients_in,
    no_whole_float,
)
from fedsim.config.timing import CostSection, DropoutSection, EvaluateSection, PacingSection, StopSection
from fedsim.config.train import TrainSection
from fedsim.config.world import WorldConfig
from fedsim.data.federated_data import UNSEEN
from fedsim.engine.costs import Costs
from fedsim.engine.record_words import PERSONAL
from fedsim.server.history_storage import HistoryPlan
from fedsim.server.rule import Algorithm, RowsFrom
from fedsim.server.rule_factory import build_rule

if TYPE_CHECKING:
    from fedsim.training.attack import Adversary
    from fedsim.training.client_method import ClientMethod
    from fedsim.training.settings import Mode


class TaskSection(PluginSection):
    """`[task]`: the data, and the number of clients that share it."""

    kind: ClassVar[str] = "task"
    clients: Count
    """Number of clients among whom the data are divided: K that train, and the unseen ones."""
    data_dir: Path | None = None
    """The folder of the data set. By default $FEDSIM_DATA, or `data` if that is not set; downloads go there alone."""
    pool: Literal["all", "train", "official"] = "all"
    """The samples to divide: `all`, the official training and test sets together; `train`, the training set alone;
    `official`, the training set, with tests on the official test set."""
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of each client's samples for training, validation and testing."""
    shuffle: bool = True
    """Shuffle each client's samples before they are split. False keeps the order of the partitioner."""
    unseen: Annotated[Whole | Annotated[float, Field(ge=0, lt=1)], BeforeValidator(no_whole_float)] = 0
    """Unseen clients, which never train and on which each evaluation also measures the model: a number, or a share of
    `clients`, rounded down and at least 1. The seed draws them."""

    def _faults(self) -> Iterable[str]:
        yield from super()._faults()
        if self.training_clients < 1:
            yield f"unseen: expected fewer than 'clients', which is {self.clients}, found {self.unseen}"

    @property
    def unseen_clients(self) -> int:
        """Number of clients that never train."""
        return clients_in(self.unseen, self.clients)

    @property
    def training_clients(self) -> int:
        """Number of clients that may train, those that rules, selectors and worlds know."""
        return self.clients - self.unseen_clients


class SeedsSection(Section):
    """`[seeds]`: seeds of the three parts of a run's random draws; a part without one has the run's `seed`."""

    data: Seed | None = None
    """Seed of the data: a task's own draws, partition, splits, unseen clients, and the rotation of
    `world.confound.labels`."""
    world: Seed | None = None
    """Seed of the clients' lives: the world that a scenario or join makes, which client lives which part of it, jitter,
    completeness, losses by chance, and attacks."""
    train: Seed | None = None
    """Seed of all else: start parameters, minibatches, the client method, selector, rule, evaluated and audited
    clients."""


def _table_of_seeds(seeds: Any) -> Any:
    if isinstance(seeds, Mapping | SeedsSection):
        return seeds
    raise ValueError(
        f"expected a table, such as seeds.world = 3, found {shown(seeds)}; several seeds of a run are an option of the "
        "command: --seeds 5"
    )


class ModelSection(PluginSection):
    """`[model]`: the network; by default the one that the task names."""

    kind: ClassVar[str] = "model"


class PartitionSection(PluginSection):
    """`[partition]`: how samples are divided among clients. Tasks with natural clients take none."""

    kind: ClassVar[str] = "partitioner"


class SelectionSection(PluginSection):
    """`[selection]`: the selector, which chooses clients."""

    kind: ClassVar[str] = "selector"
    name: str = "uniform"
    """Name of the selector, or `path/to/file.py:factory`."""


class WrapSection(PluginSection):
    """`[[algorithm.wrap]]`: a wrapper around the rule."""

    kind: ClassVar[str] = "wrapper"

    def named(self) -> dict[str, Any]:
        """Return the name together with the options that have an effect."""
        return {"name": self.name} | self.working_options()


class AlgorithmSection(PluginSection):
    """`[algorithm]`: the aggregation rule."""

    kind: ClassVar[str] = "rule"
    name: str = "fedavg"
    wrap: tuple[WrapSection, ...] = ()
    """Wrappers around the rule, the innermost first."""
    rows: RowsFrom = "start"
    """The model that updates are differences to: the job's `start`, or the `current` model (FedAsync's pull)."""
    memory: Duration = 0
    """Forget absent clients after this virtual time, in addition to the rule's window in steps; 0: never."""

    def _faults(self) -> Iterable[str]:
        yield from super()._faults()
        self.rule(lr=0.1)  # raises ConfigError for combinations that cannot work, at any learning rate

    def rule(self, lr: float) -> Algorithm:
        """Return the rule inside its wrappers, built with the options that have an effect."""
        return build_rule(
            self.name, self.working_options(), [wrapper.named() for wrapper in self.wrap], lr=lr
        )

    def resolved(self) -> dict[str, Any]:
        """Return the table and its wrappers' tables with the default of every option."""
        tables = super().resolved()
        return tables | {"wrap": [w.resolved() for w in self.wrap]} if self.wrap else tables


class ClientSection(PluginSection):
    """`[client]`: the client method, which extends the training of `[train]`."""

    kind: ClassVar[str] = "client"
    name: str = "plain"


class RunConfig(Section):
    """One run."""

    file_keys: ClassVar[tuple[str, ...]] = ("arms",)
    """Keys that the file of a run may have beside these."""
    name: RunName
    """Name of the run and of its folder; by default that of the file."""
    seed: Seed = 0
    """Seed of all random draws for which `[seeds]` has none."""
    seeds: Annotated[SeedsSection, BeforeValidator(_table_of_seeds)] = SeedsSection()
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
    """Attacking clients, in the order in which attacks on the same job act."""
    bad_updates: BadUpdatesSection = BadUpdatesSection()
    record: RecordSection = RecordSection()
    audit: AuditSection = AuditSection()
    checkpoint: CheckpointSection = CheckpointSection()
    parent: ParentSection | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _count_share_of_clients(cls, tables: Any) -> Any:
        """Replace `pacing.clients` as a share by the number of clients."""
        task, pacing = (
            tables.get(name) if isinstance(tables, Mapping) else None for name in ("task", "pacing")
        )
        if not (isinstance(task, Mapping) and isinstance(pacing, Mapping)):
            return tables
        share, clients = pacing.get("clients"), task.get("clients")
        if isinstance(clients, float) and clients.is_integer():
            clients = int(clients)
        if not (isinstance(share, float) and 0 < share < 1 and isinstance(clients, int) and clients > 0):
            return tables
        unseen = task.get("unseen", 0)
        if isinstance(unseen, (int, float)) and 0 <= unseen < clients:  # else refused later
            clients -= clients_in(unseen, clients)
        return {**tables, "pacing": {**pacing, "clients": clients_in(share, clients)}}

    def _faults(self) -> Iterable[str]:
        concurrency, clients = self.pacing.pacing().concurrency, self.task.training_clients
        if concurrency > clients:
            of = f", and task.unseen keeps {self.task.unseen_clients} of them out" if self.task.unseen else ""
            yield f"pacing asks for {concurrency} clients at once, but task.clients is {self.task.clients}{of}"
        for table in self.adversary:
            if (last := max(table.clients or (0,))) >= clients:
                yield f"adversary {table.name!r}: clients: expected numbers from 0 to {clients - 1}, found {last}"
        measured = (self.evaluate.split, *self.evaluate.also)
        if self.stop.split is not None and self.stop.split not in measured:
            listed = " and ".join(map(repr, measured))
            yield (
                f"stop.split: the run is evaluated on {listed}, not on {self.stop.split!r}: add it to evaluate.also"
            )

    def seed_of(self, part: Literal["data", "world", "train"]) -> int:
        """Return the seed of a part of the run's random draws, as `[seeds]` divides them."""
        own: int | None = getattr(self.seeds, part)
        return self.seed if own is None else own

    def recorded_splits(self) -> tuple[str, ...]:
        """Return the splits that evaluations record, `evaluate.split` first."""
        evaluate = self.evaluate
        method: ClientMethod = plugins.build("client", self.client.name, self.client.working_options())
        unseen = (UNSEEN,) if self.task.unseen_clients else ()
        personal = (evaluate.split + PERSONAL,) if evaluate.personal and method.personal else ()
        adapted = (UNSEEN + PERSONAL,) if unseen and evaluate.personal and method.adapt else ()
        return (evaluate.split, *evaluate.also, *unseen, *personal, *adapted)

    def costs(
        self, sizes: NDArray[np.int64], parameters: int, flops: float, about: Mapping[str, NDArray[Any]]
    ) -> Costs:
        """Return the costs of jobs for clients with `sizes` [K] training samples.

        The model has `parameters` parameters, and its forward pass takes `flops` operations. `about` holds the trace's
        columns [K] on the clients, by name. Raises ConfigError.
        """
        cost, train = self.cost, self.train.local_sgd()
        method: ClientMethod = plugins.build("client", self.client.name, self.client.options)
        payload_bytes = 4 * parameters if cost.payload is None else cost.payload
        passes = method.passes(train.epochs)
        work = cost.work_formula(flops).work(sizes, payload_bytes, passes, train.epochs, train.batch_size)
        used = sizes if method.samples is None else method.samples(sizes)
        steps = train.epochs * np.ceil(used / (train.batch_size or np.maximum(used, 1))).astype(np.int64)
        return Costs(
            work=work.with_vectors(len(method.receives), len(method.sends)),
            steps=np.maximum(steps, 1),
            epochs=train.epochs,
            seed=self.seed_of("world"),
            jitter=cost.jitter.jitter(about),
            completeness=cost.completeness.completeness(),
            chance=self.dropout.by_chance(),
            most_steps=method.most_steps,
        )

    def adversaries(self) -> tuple[Adversary, ...]:
        """Return the adversaries with their clients drawn."""
        return tuple(
            table.adversary().with_clients_drawn(self.task.training_clients, self.seed_of("world"))
            for table in self.adversary
        )

    def settled(self, mode: Mode, history: HistoryPlan) -> RunConfig:
        """Return the configuration with the batching mode and the history plan, which depend on model and device."""
        train, memory = self.train.model_copy(update={"mode": mode}), self.memory.chosen(history)
        return self.model_copy(update={"train": train, "memory": memory})

    @property
    def label(self) -> str:
        """The name in tables and legends: the arm's, or the run's."""
        return self.name.rpartition("/")[2]

    @property
    def is_fork(self) -> bool:
        """Whether the run starts from the state of another one."""
        return self.parent is not None and self.parent.forked_step is not None

    def resolved(self) -> dict[str, Any]:
        """Return the configuration with all defaults as nested dictionaries; running it gives the same run."""
        tables: dict[str, Any] = {"name": self.name, "seed": self.seed}
        for key, section in self:
            if isinstance(section, PluginSection):
                tables[key] = section.resolved()
            elif isinstance(section, BaseModel):
                tables[key] = section.model_dump(mode="json", exclude_none=True)
                if key == "seeds" and not tables[key]:
                    del tables[key]
            elif key == "adversary" and section:
                adversaries = [table.resolved() for table in section]
                tables[key] = adversaries if len(adversaries) > 1 else adversaries[0]
        return tables
