"""The `[world]` table of a configuration: a scenario to write down, a trace file to read, or several to join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pydantic
from numpy.typing import ArrayLike
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedsim.common import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import given, refusal, without
from fedsim.common.units import US, duration_us
from fedsim.config.errors import read_toml, validated
from fedsim.config.join import ConfoundConfig, JoinConfig
from fedsim.config.section import Count
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import AfterEnd, Trace, read_trace
from fedsim.worlds.world import Unknown

Duration = Annotated[
    int, BeforeValidator(duration_us), pydantic.PlainSerializer(lambda us: us / US, return_type=float)
]
_OF_A_SCENARIO = ("horizon", "options")
_OF_WHAT_IS_MADE = ("clients", "seed")


class WorldConfig(BaseModel):
    """`[world]`: one of `scenario`, `trace` and `join`; `confound` goes with any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: str | None = None
    """Name of a scenario, or `path/to/file.py:factory`."""
    trace: Path | None = None
    """A trace file, as `fedsim trace make` writes."""
    join: JoinConfig | None = None
    """Several worlds that make one."""
    clients: Count | None = None
    """Number of clients in the world; a run's own number by default."""
    horizon: Annotated[Duration, Field(gt=0)] = 7 * 86400 * US
    """How much time the scenario writes down, such as `"7d"`; microseconds inside."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the world; a run's own seed by default."""
    unknown: Unknown = "error"
    """What holds where the trace knows nothing about availability: refuse to run, `online` or `offline`."""
    after_end: AfterEnd | None = None
    """After the horizon: an error, a new lap, or nobody online any more; by default what the scenario, the trace file
    or the join says."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the scenario."""
    confound: ConfoundConfig | None = None
    """How the world's clients depend on the data; needs a run's data."""

    @pydantic.field_validator("scenario")
    @classmethod
    def _exists(cls, scenario: str | None) -> str | None:
        if scenario is not None:
            try:
                plugins.factory("scenario", scenario)
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return scenario

    @pydantic.model_validator(mode="after")
    def _check(self) -> WorldConfig:
        if sum(part is not None for part in (self.scenario, self.trace, self.join)) != 1:
            raise ValueError("give exactly one of 'scenario', 'trace' and 'join'")
        if self.scenario is None:
            kind = "join" if self.trace is None else "trace file"
            lines = [
                f"{key!r} belongs to a scenario, not to a {kind}" for key in self._foreign if self._given(key)
            ]
        else:
            lines = _option_problems(self)
        if lines:
            raise ValueError("\n".join(lines))
        return self

    @pydantic.model_serializer(mode="wrap")
    def _resolved(self, plain: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what the files decide, and write out the defaults of a scenario's options."""
        table: dict[str, Any] = plain(self)
        if self.scenario is not None:
            own = self.after_end or self._scenario_end()
            return table | {"options": resolved_options(self.scenario, self.options), "after_end": own}
        return {key: value for key, value in table.items() if key not in self._foreign}

    def _scenario_end(self) -> str:
        made = plugins.build("scenario", str(self.scenario), self.working_options())
        return str(
            getattr(made, "after_end", "repeat")
        )  # what is no Scenario is refused where the world is made

    @property
    def _foreign(self) -> tuple[str, ...]:
        """The keys that say nothing beside `trace` or `join`."""
        return _OF_A_SCENARIO if self.join is not None else (*_OF_WHAT_IS_MADE, *_OF_A_SCENARIO)

    def scenario_options(self) -> list[tuple[str, str]]:
        """Return a scenario's options that need another one, and what each lacks."""
        return (
            [] if self.scenario is None else plugins.idle_options("scenario", self.scenario, self.options, ())
        )

    def working_options(self) -> dict[str, Any]:
        """Return a scenario's options without those that have no effect."""
        return without(self.options, [place for place, lacks in self.scenario_options() if lacks])

    def _given(self, key: str) -> bool:
        return key in self.model_fields_set


class WorldFile(BaseModel):
    """A file for `fedsim trace make`: a `[world]` table and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    world: WorldConfig

    @pydantic.model_validator(mode="after")
    def _check_effects(self) -> WorldFile:
        lacks = [*given(self.world), *((f"options.{k}", lack) for k, lack in self.world.scenario_options())]
        if lines := [refusal(f"world.{place}", lack) for place, lack in lacks if lack]:
            raise ValueError("\n".join(lines))
        return self


def world_trace(
    config: WorldConfig, *, clients: int | None, seed: int, facts: Mapping[str, ArrayLike] | None = None
) -> Trace:
    """Write down the scenario, read the trace file, or join several.

    `clients` and `seed` hold where the table names none; without either, a join has as many clients as its source of
    availability. `facts` are what a scenario may know of the federation: see `fedsim.worlds.scenario.make_trace`.
    `config.confound` is not applied: see `fedsim.runs.confound`. Raises ConfigError or TraceError.
    """
    return _world_trace(config, clients, seed, facts)


def source_trace(path: Path, *, clients: int | None, seed: int, inside: tuple[Path, ...] = ()) -> Trace:
    """Return the world of a trace file, or of a TOML file with a `[world]` table. Raises ConfigError or TraceError."""
    if path.suffix != ".toml":
        return read_trace(path)
    if path.resolve() in inside:
        raise ConfigError(f"{path}: joins itself: {' > '.join(p.name for p in (*inside, path))}")
    world = validated(WorldFile, read_toml(path), path).world
    return _world_trace(_for_itself(world, path), clients, seed, inside=(*inside, path.resolve()))


def _world_trace(
    config: WorldConfig,
    clients: int | None,
    seed: int,
    facts: Mapping[str, ArrayLike] | None = None,
    inside: tuple[Path, ...] = (),
) -> Trace:
    n, own_seed = config.clients or clients, seed if config.seed is None else config.seed
    if config.scenario is not None:
        if n is None:
            raise ConfigError("world.clients: missing; say how many clients the world has")
        return make_trace(
            config.scenario,
            config.options,
            clients=n,
            horizon_us=config.horizon,
            seed=own_seed,
            after_end=config.after_end,
            facts=facts,
        )
    if config.join is not None:
        trace = _joined(config.join, n, own_seed, inside, config.unknown)
    else:
        assert config.trace is not None
        trace = read_trace(config.trace)
    return trace if config.after_end is None else replace(trace, after_end=config.after_end)


def _joined(
    config: JoinConfig, clients: int | None, seed: int, inside: tuple[Path, ...], unknown: Unknown
) -> Trace:
    from fedsim.worlds.join import join

    base = source_trace(config.availability, clients=clients, seed=seed, inside=inside)
    n = base.clients if clients is None else clients
    others = {
        name: source_trace(path, clients=n, seed=seed, inside=inside)
        for name, path in config.sources.items()
        if name != "availability"
    }
    assignment: Any = config.assign
    return join(
        availability=base,
        **others,
        clients=n,
        assignment=assignment,
        replace=config.replace,
        seed=seed,
        unknown=unknown,
    )


def _for_itself(world: WorldConfig, path: Path) -> WorldConfig:
    if world.confound is not None:
        raise ConfigError(f"{path}: world.confound: needs a run's data; leave it to the run's own [world]")
    return world


def resolved_options(scenario: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's options as plain TOML values, with the defaults of those not named."""
    make = plugins.factory("scenario", scenario)
    defaults = {n: p.default for n, p in plugins.options_of(make).items() if p.default is not p.empty}
    values = defaults | plugins.checked_options("scenario", scenario, make, options, {})
    return {name: found for name, value in values.items() if (found := plugins.plain(value)) is not None}


def _option_problems(world: WorldConfig) -> list[str]:
    assert world.scenario is not None
    try:
        plugins.check("scenario", world.scenario, world.options, ())
        plugins.build("scenario", world.scenario, world.working_options())
    except ConfigError as error:
        return str(error).split("\n")
    return []
