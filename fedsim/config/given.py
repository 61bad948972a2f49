"""Tasks and models that Python code passes to a run, in place of those that a configuration names.

The configuration of the run names them by a digest of their content, so that it stands for no other task or model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from fedsim import plugins
from fedsim.common.errors import ConfigError, described
from fedsim.config.data import federation
from fedsim.config.errors import read_toml
from fedsim.config.load import Sets, Source, load_config, read_runs
from fedsim.config.run import ModelSection, RunConfig
from fedsim.config.study.study import StudyConfig
from fedsim.data.federated_data import Task
from fedsim.data.validation import checked
from fedsim.training.given_model import GivenModel

GivenTask = Any
"""A Task, a torch dataset, or the pair (train, test) of two."""
ModelFactory = Callable[..., nn.Module]
"""A function that returns a module, without arguments or with `in_shape` and `n_classes`."""
_OFFICIAL = {"pool": "official", "fractions": [0.9, 0.1, 0.0]}
"""How a task with a test set is split, unless the configuration says so."""
_OF_CLIENTS = (
    "fedsim.Task.from_dataset(ConcatDataset(parts), "
    "client=np.repeat(range(len(parts)), [len(part) for part in parts]))"
)
"""What makes a task of one dataset for each client."""


@dataclass(frozen=True, slots=True)
class Given:
    """A task and a model from Python; None for those that the configuration names."""

    task: Task | None = None
    model: GivenModel | None = None

    @staticmethod
    def of(task: GivenTask | None, model: ModelFactory | None) -> Given:
        """Check what a user passed. Raises ConfigError or DataError."""
        if task is not None:
            task = checked(_task(task), "given")
        return Given(task, None if model is None else GivenModel(model))

    @contextmanager
    def read(self, configs: Any, sets: Sets) -> Iterator[list[RunConfig]]:
        """Yield the runs of configurations, with the task and the model; they can be built in the body.

        Args:
            configs: a path, a dict, a RunConfig, or a list of these.

        Raises ConfigError if they also name what Python passes.
        """
        names = {} if self.task is None else {self._task_name(): _factory(self.task)}
        with plugins.given(names):
            runs = [run for config in _listed(configs) for run in self._runs(config, sets)]
            models = [self._model_name(_without_model(run)) for run in runs] if self.model else []
            with plugins.given({name: self._made() for name in models}):
                sections = [{"model": ModelSection(name=name)} for name in models] or [{}] * len(runs)
                yield [run.model_copy(update=section) for run, section in zip(runs, sections, strict=True)]

    @contextmanager
    def of_run(self, folder: Path, config: Path) -> Iterator[None]:
        """Check that the run in `folder`, with the configuration `config`, had this task and model.

        It can be built in the body. Raises ConfigError with both digests for another task or model, and for one that
        was not passed.
        """
        raw = read_toml(config)
        names = {kind: _named(raw, kind) for kind in ("task", "model")}
        for kind, name in names.items():
            _check_passed(folder, kind, name, getattr(self, kind) is not None)
        if self.task is not None:
            _check_same(folder, "task", names["task"], self._task_name())
        with self._buildable(str(names["model"])):
            if self.model is not None:
                _check_same(folder, "model", names["model"], self._model_name(load_config(config)[0]))
            yield

    @contextmanager
    def of_study(self, read: Callable[..., StudyConfig]) -> Iterator[StudyConfig]:
        """Yield the study that `read` returns, whose cells have the task and the model; they can be built in the body.

        `read` passes its argument `filled` to `load_study`. Raises ConfigError if the study also names what Python
        passes.
        """
        with self._buildable("" if self.model is None else self._model_of_study()):
            yield read(filled=self._study_filled)

    def _buildable(self, model_name: str) -> AbstractContextManager[None]:
        """Return a context in which plug-ins of these names are the task and the model, as far as there are any."""
        factories: dict[str, Callable[..., Any]] = {}
        if self.task is not None:
            factories[self._task_name()] = _factory(self.task)
        if self.model is not None:
            factories[model_name] = self.model
        return plugins.given(factories)

    def _model_of_study(self) -> str:
        """Return the name of the model in all cells. Raises ConfigError if it may differ between them."""
        model = self._made()
        if self.task is not None:
            return f"{plugins.GIVEN}{model.digest(self.task.x.shape[1:], self.task.n_classes)}"
        if model.takes_shapes:
            raise ConfigError(
                "model: expected a function without arguments, found one that takes the shape of the data, which the "
                "study names: pass task= too"
            )
        return f"{plugins.GIVEN}{model.digest((), 0)}"

    def _study_filled(self, raw: dict[str, Any], source: str) -> dict[str, Any]:
        """Return the tables of a study with the task and the model."""
        levels = {
            f"{axis}.{level}": tables
            for axis, of_axis in raw.get("axes", {}).items()
            for level, tables in of_axis.items()
        }
        run = self._filled(raw.get("run", {}) | {"arms": levels}, source)
        del run["arms"]
        if self.model is not None:
            for tables in (run, *levels.values()):
                if "model" in tables:
                    raise ConfigError(f"{source}: model: given twice, as model= and as {tables['model']!r}")
            run["model"] = {"name": self._model_of_study()}
        return raw | {"run": run}

    def _made(self) -> GivenModel:
        assert self.model is not None
        return self.model

    def _task_name(self) -> str:
        assert self.task is not None
        return f"{plugins.GIVEN}{self.task.digest()}"

    def _model_name(self, run: RunConfig) -> str:
        """Return the name of the model in a run, whose data it has to fit."""
        model = self._made()
        if not model.takes_shapes:
            return f"{plugins.GIVEN}{model.digest((), 0)}"
        task = self.task or federation(run)[0]
        return f"{plugins.GIVEN}{model.digest(task.x.shape[1:], task.n_classes)}"

    def _runs(self, config: Source | RunConfig, sets: Sets) -> list[RunConfig]:
        if isinstance(config, RunConfig):
            if sets:
                raise ConfigError(
                    "sets: they change a file or a dict: pass them to fedsim.load_config instead"
                )
            if self.task is not None:
                raise ConfigError(f"task: given twice, as task= and as {config.task.name!r} in {config.name}")
            return [config]
        return read_runs(config, sets, self._filled)

    def _filled(self, raw: dict[str, Any], source: str) -> dict[str, Any]:
        """Return the tables of a configuration with the task."""
        if self.task is None:
            return raw
        arms = raw.get("arms", {})
        for tables in (raw, *(arms.values() if isinstance(arms, Mapping) else ())):
            if (name := _named(tables, "task")) not in (None, self._task_name()):
                raise ConfigError(f"{source}: task.name: given twice, as task= and as {name!r}")
        section = raw.get("task", {})
        if not isinstance(section, Mapping):
            return raw  # refused later, by its type
        wanted: dict[str, Any] = {"name": self._task_name()}
        if self.task.natural is not None:
            wanted["clients"] = len(self.task.natural)
        elif not arms and ("partition" not in raw or "clients" not in section):
            raise ConfigError(
                f"{source}: the samples of task= have no clients: pass client= to fedsim.Task.from_dataset or "
                "from_arrays, or give a [partition] and its number of clients, task.clients"
            )
        if self.task.official_test.any() and not {"pool", "fractions"} & section.keys():
            wanted |= _OFFICIAL
        return raw | {"task": wanted | dict(section)}


def digests_in(config: RunConfig) -> dict[str, str]:
    """Return the digests of the task and the model of a run that Python code passed."""
    names = {"task": config.task.name, "model": config.model.name if config.model else ""}
    return {
        kind: name.removeprefix(plugins.GIVEN)
        for kind, name in names.items()
        if name.startswith(plugins.GIVEN)
    }


def _factory(task: Task) -> Callable[..., Task]:
    def given(*, clients: int, seed: int, data_dir: Path | None) -> Task:
        """Return the task that Python code passed."""
        return task

    return given


def _task(value: GivenTask) -> Task:
    if isinstance(value, Task):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        return Task.from_dataset(value[0], test=value[1])
    several = isinstance(value, (tuple, list, Mapping))
    if (
        hasattr(value, "__getitem__")
        and hasattr(value, "__len__")
        and not (several or isinstance(value, str))
    ):
        return Task.from_dataset(value)
    hint = ""
    if several:
        hint = f"; datasets of clients become one task: {_OF_CLIENTS}"
    elif isinstance(value, DataLoader):
        hint = "; pass its dataset, loader.dataset"
    elif isinstance(value, str):
        hint = f"; a configuration names it: [task] with name = {value!r}"
    found = f"a {type(value).__name__} of {len(value)} entries" if several else described(value)
    raise ConfigError(
        f"task: expected a fedsim.Task, a torch dataset or the pair (train, test) of two, found {found}{hint}"
    )


def _listed(configs: Any) -> list[Any]:
    """Return the configurations as a list. Raises ConfigError for an empty list or another type."""
    single = isinstance(configs, (RunConfig, Mapping, str, Path)) or not isinstance(configs, Iterable)
    listed = [configs] if single else list(configs)
    if not listed:
        raise ConfigError("configs: expected at least one configuration, found none")
    for number, config in enumerate(listed):
        if not isinstance(config, (RunConfig, Mapping, str, Path)):
            place = "configs" if single else f"configs[{number}]"
            raise ConfigError(
                f"{place}: expected a path, a dict of tables, a RunConfig, as fedsim.load_config returns, or a list of "
                f"these, found {described(config)}"
            )
    return listed


def _without_model(run: RunConfig) -> RunConfig:
    """Return the run. Raises ConfigError if it names a model."""
    if run.model is not None:
        raise ConfigError(f"{run.name}: model: given twice, as model= and as {run.model.name!r}")
    return run


def _named(raw: Mapping[str, Any], kind: str) -> str | None:
    table = raw.get(kind)
    name = table.get("name") if isinstance(table, Mapping) else None
    return name if isinstance(name, str) else None


def _check_passed(folder: Path, kind: str, name: str | None, passed: bool) -> None:
    """Raise ConfigError if a run needs a task or a model from Python that was not passed, or the other way round."""
    needed = name is not None and name.startswith(plugins.GIVEN)
    if passed and not needed:
        found = f"it has {name!r}" if name else "it has its task's own"
        raise ConfigError(
            f"{folder}: {kind}: expected none, as the run was given no {kind} from Python: {found}"
        )
    if needed and not passed and not plugins.is_given(str(name)):
        raise ConfigError(
            f"{folder}: the run was given its {kind} from Python: pass the same {kind}=..., whose digest is "
            f"{str(name).removeprefix(plugins.GIVEN)}"
        )


def _check_same(folder: Path, kind: str, before: str | None, now: str) -> None:
    if before != now:
        digests = [str(name).removeprefix(plugins.GIVEN) for name in (before, now)]
        raise ConfigError(
            f"{folder}: {kind}: expected the one with the digest {digests[0]}, found {digests[1]}"
        )
