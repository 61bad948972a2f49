"""The configuration of a run: frozen pydantic models, one per TOML table. This file is its reference manual.

A table that names a plug-in (`task`, `model`, `partition`, `selection`, `client`, `algorithm`) holds the plug-in's own
options beside its name; they are checked against the signature of its factory. Unknown keys are refused everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator

from fedsim import arguments
from fedsim.config_adversary import AdversarySection, BadUpdatesSection, listed
from fedsim.config_checkpoint import CheckpointSection
from fedsim.config_errors import assign, problems, read_toml
from fedsim.config_idle import lacks_of, refusals, settled
from fedsim.config_memory import MemorySection
from fedsim.config_section import (
    Count,
    PluginSection,
    RunName,
    Section,
    Seed,
    Whole,
    check_distinct,
    run_name,
)
from fedsim.config_time import CostSection, DropoutSection, EvaluateSection, PacingSection, StopSection
from fedsim.config_train import TrainSection
from fedsim.config_world import Duration, WorldConfig
from fedsim.errors import ConfigError
from fedsim.idle import Unless
from fedsim.ladder import HistoryPlan
from fedsim.paths import as_path
from fedsim.rules import build_rule
from fedsim.stack import RowsFrom

if TYPE_CHECKING:
    from fedsim.modes import Mode


_TOGETHER = object()
"""The context of a validation after which `fedsim.config_idle.settled` looks for keys without effect."""


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

    @pydantic.model_validator(mode="after")
    def _check_effects(self, info: pydantic.ValidationInfo) -> RunConfig:
        """Refuse keys without effect; the runs of one file are checked together by `checked`."""
        if info.context is not _TOGETHER and (lines := refusals(lacks_of(self))):
            raise ValueError("\n".join(lines))
        return self

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


_NAMES: dict[str, type[PluginSection]] = {
    "task.name": TaskSection,
    "model.name": ModelSection,
    "partition.name": PartitionSection,
    "selection.name": SelectionSection,
    "client.name": ClientSection,
    "algorithm.name": AlgorithmSection,
    "adversary.name": AdversarySection,
}
"""Keys that name a plug-in, and the table that they stand in."""
_DECIDE_MODE = ("model", "client")
"""Tables on which depends how groups of clients can train: another one asks for `train.mode` anew."""


def load(path: Path | str, sets: Sequence[str] = ()) -> list[RunConfig]:
    """Read a TOML file into one run, or into one run for each of its `[arms.NAME]` tables.

    An arm's keys replace those of the file. `sets` are `a.b=value` assignments made before that. Raises ConfigError
    with one line for each problem.
    """
    path = as_path(path, "path")
    if isinstance(sets, str):
        raise ConfigError(f"sets: expected several assignments, such as ({sets!r},), found the text {sets!r}")
    if not isinstance(sets, Iterable) or not all(isinstance(text, str) for text in sets):
        raise ConfigError(f"sets: expected assignments such as ('train.lr=0.1',), found {sets!r}")
    given = read_toml(path)
    if {"run", "seeds"} <= given.keys():
        raise ConfigError(
            f"{path}: expected the configuration of a run, found that of a study: use fedsim study"
        )
    raw = changed(deepcopy(given), sets)
    if "name" not in raw:
        _check_stem(path)
    found = parse(raw, path.name, default_name=path.stem, before=given)
    arms = {f"arms.{arm}": changes for arm, changes in raw.get("arms", {}).items()}
    check_effect(given, sets, arms)
    return found


def _check_stem(path: Path) -> None:
    """Raise ConfigError if a file's own name cannot be that of its run."""
    try:
        run_name(path.stem)
    except ValueError as error:
        raise ConfigError(
            f"{path.name}: name: the file says none, and its own does not do: {error}; give one with "
            'name = "..." in the file, or --set name=...'
        ) from error


def check_effect(
    given: dict[str, Any], sets: Sequence[str], over: Mapping[str, Mapping[str, Any]], table: str = ""
) -> None:
    """Raise ConfigError if an assignment `a.b=value` changes a configuration, but nothing once others are laid over it.

    `over` are these, each for itself, by their places in the file; the configuration is itself in its `table`.
    """
    if not over:
        return
    base = changed(deepcopy(given), sets)
    for number, text in enumerate(sets):
        try:
            without = changed(deepcopy(given), [*sets[:number], *sets[number + 1 :]])
        except ConfigError:  # another assignment needs this one
            continue
        if without != base and all(merged(base, o) == merged(without, o) for o in over.values()):
            raise ConfigError(
                f"--set {table}{text}: no effect, as each of {', '.join(over)} says otherwise; set it there, such as "
                f"{next(iter(over))}.{text}"
            )


def changed(raw: dict[str, Any], sets: Iterable[str]) -> dict[str, Any]:
    """Make assignments `a.b=value` in a configuration, and return it.

    Naming another plug-in (`algorithm.name=fedlf`) drops the options of the one before; keys that all plug-ins of the
    table share stay. Raises ConfigError.
    """
    names = [text for text in sets if text.partition("=")[0].strip() in _NAMES]
    for text in names:
        table = text.partition(".")[0].strip()
        below = raw.get(table)
        if isinstance(below, Mapping):
            shared = _NAMES[f"{table}.name"].model_fields
            before, raw[table] = below, {k: v for k, v in below.items() if k in shared}
            assign(raw, text)
            if raw[table].get("name") == before.get("name"):
                raw[table] = dict(before)
            if table in _DECIDE_MODE and isinstance(train := raw.get("train"), Mapping):
                raw["train"] = {k: v for k, v in train.items() if k != "mode"}
    for text in sets:
        assign(raw, text)
    return raw


@arguments.checked
def parse(
    raw: Mapping[str, Any], source: str, default_name: str, before: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """Check a configuration given as nested dictionaries; `source` names it in messages.

    A key that others leave without effect is refused, unless it has one in another arm, or in what was `before`.
    """
    runs = []
    raws, sources = _runs(raw, source, default_name)
    for found in checked(raws, sources, lambda: _before(before, default_name)):
        if isinstance(found, ConfigError):
            raise found
        runs.append(found)
    return runs


def checked(
    raws: Sequence[Mapping[str, Any]],
    sources: Sequence[str],
    before: Callable[[], Sequence[RunConfig]] = lambda: (),
) -> list[RunConfig | ConfigError]:
    """Check the runs of one file, named by `sources`, together: each, or what is wrong with it."""
    return settled(raws, sources, _validated, before)


def _before(raw: Mapping[str, Any] | None, default_name: str) -> list[RunConfig]:
    """Return the runs of a configuration as it was; none where it was none."""
    if raw is None:
        return []
    try:
        return [_validated(*run) for run in zip(*_runs(raw, "", default_name), strict=True)]
    except ConfigError:
        return []


def _runs(
    raw: Mapping[str, Any], source: str, default_name: str
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return each arm's own configuration, or the one that there is, and how messages name it."""
    base = {"name": default_name} | dict(raw)
    arms = base.pop("arms", None)
    if arms is None:
        return [base], [source]
    if not isinstance(arms, Mapping) or not arms or not all(isinstance(a, Mapping) for a in arms.values()):
        raise ConfigError(f"{source}: arms: expected tables such as [arms.fedavg.algorithm], found {arms!r}")
    check_distinct(arms, f"{source}: the arms")
    runs: list[Mapping[str, Any]] = []
    for arm, changes in arms.items():
        if "name" in changes:
            raise ConfigError(f"{source}: arms.{arm}.name: an arm has the name of its table; leave it out")
        runs.append(merged(base, changes) | {"name": f"{base['name']}/{arm}"})
    return runs, [f"{source}, arm {arm!r}" for arm in arms]


def _validated(raw: Mapping[str, Any], source: str) -> RunConfig:
    """Check one run; keys without effect are left to `fedsim.config_idle.settled`. Raises ConfigError."""
    try:
        return RunConfig.model_validate(raw, context=_TOGETHER)
    except pydantic.ValidationError as error:
        raise ConfigError(problems(error, RunConfig, source)) from error


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `changes` over `base`, table by table; a table that names another plug-in replaces the one below."""
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(below, Mapping)
            and value.get("name") in (None, below.get("name"))
        ):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result
