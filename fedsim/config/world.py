"""The table `[world]`: a scenario to simulate, a trace file to read, or several worlds to join."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pydantic
from numpy.typing import ArrayLike
from pydantic import Field

from fedsim import plugins
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import lacks_in, refusal, without
from fedsim.common.units import DAY_US
from fedsim.config.errors import read_toml, validated
from fedsim.config.join import ConfoundConfig, JoinConfig
from fedsim.config.section import Count, Duration, Scenario, Section
from fedsim.plugins.options import options_of, plain
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import AfterEnd, Trace, read_trace
from fedsim.worlds.world import Unknown


class WorldConfig(Section):
    """`[world]`: one of `scenario`, `trace` and `join`; `confound` is possible with each."""

    scenario: Scenario | None = None
    """Name of a scenario, or `path/to/file.py:factory`."""
    trace: Path | None = None
    """A trace file, such as `fedsim trace make` writes; `{seed}` in the path stands for the run's `seeds.world`."""
    join: JoinConfig | None = None
    """Several worlds to join into one."""
    clients: Count | None = None
    """Number of clients in the world; by default the run's number of clients."""
    horizon: Annotated[Duration, Field(gt=0)] = 7 * DAY_US
    """Length of the world that the scenario generates, such as `"7d"`; in microseconds after parsing."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the scenario or join alone; by default the run's `seeds.world`."""
    unknown: Unknown = "error"
    """Availability of clients where the trace has none: `error` refuses to run, `online` or `offline` assume it."""
    after_end: AfterEnd | None = None
    """After the horizon: `error` ends the run with an error, `repeat` repeats the world from its beginning, and with
    `stop` no client is online. By default the choice of the scenario, the trace file or the join."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the scenario."""
    confound: ConfoundConfig | None = None
    """Makes the world's clients depend on the data; only in the configuration of a run."""

    def _faults(self) -> Iterable[str]:
        if sum(part is not None for part in (self.scenario, self.trace, self.join)) != 1:
            return ["give exactly one of 'scenario', 'trace' and 'join'"]
        if self.scenario is not None:
            plugins.check("scenario", self.scenario, self.options, ())
            self._build_scenario()
            return []
        kind = "join" if self.trace is None else "trace file"
        foreign = [key for key in self._foreign if key in self.model_fields_set]
        return [f"{key!r} belongs to a scenario, not to a {kind}" for key in foreign]

    @pydantic.model_serializer(mode="wrap")
    def _resolved(self, plain: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that files decide, and write out the defaults of a scenario's options."""
        table: dict[str, Any] = plain(self)
        if self.scenario is not None:
            # `make_trace` refuses anything but a Scenario
            after_end = self.after_end or str(getattr(self._build_scenario(), "after_end", "repeat"))
            return table | {"options": resolved_options(self.scenario, self.options), "after_end": after_end}
        return {key: value for key, value in table.items() if key not in self._foreign}

    @property
    def _foreign(self) -> tuple[str, ...]:
        """The keys that have no meaning beside `join`, or beside `trace`."""
        return ("horizon", "options") if self.join else ("clients", "seed", "horizon", "options")

    def idle_options(self) -> list[tuple[str, str]]:
        """Return a scenario's options that depend on another one, and what each lacks to have an effect, or ""."""
        if self.scenario is None:
            return []
        idle = plugins.idle_options("scenario", self.scenario, self.options, ())
        return [(f"options.{option}", lacks) for option, lacks in idle]

    def _build_scenario(self) -> Any:
        """Build the scenario with the options that have an effect."""
        idle = [place for place, lacks in self.idle_options() if lacks]
        options = without({"options": self.options}, idle)["options"]
        return plugins.build("scenario", str(self.scenario), options)


class WorldFile(Section):
    """A file for `fedsim trace make`: a `[world]` table alone."""

    world: WorldConfig

    def _faults(self) -> Iterable[str]:
        lacks = [*lacks_in(self.world), *self.world.idle_options()]
        return [refusal(f"world.{place}", lack) for place, lack in lacks if lack]


def with_scenario(world: Mapping[str, Any], scenario: Any) -> dict[str, Any]:
    """Return a `[world]` table that is about to name `scenario`, without what was its former scenario's.

    That is its options, and `after_end` where it is the scenario's default.
    """
    left = dict(world)
    if (former := world.get("scenario")) is None or scenario == former:
        return left
    options = left.pop("options", {})
    if "after_end" in world:
        with suppress(ConfigError):
            if plugins.build("scenario", str(former), options).after_end == world["after_end"]:
                del left["after_end"]
    return left


def world_trace(
    config: WorldConfig,
    *,
    clients: int | None,
    seed: int,
    facts: Mapping[str, ArrayLike] | None = None,
    inside: tuple[Path, ...] = (),
) -> Trace:
    """Generate the world of a scenario, read a trace file, or join several worlds.

    `clients` and `seed` apply if the table has none. Without a number of clients, a join has as many as its source of
    availability. `facts` about the federation are for the scenario, see `fedsim.worlds.scenario.make_trace`. `inside`
    has the files that join this world. `config.confound` is not applied; `fedsim.runs.confound` does that. Raises
    ConfigError or TraceError.
    """
    n, seed = config.clients or clients, seed if config.seed is None else config.seed
    if config.scenario is not None:
        return _generated(config, n, seed, facts)
    if config.join is not None:
        trace = _joined(config.join, n, seed, inside, config.unknown)
    else:
        assert config.trace is not None
        trace = read_trace(of_seed(config.trace, seed))
    return trace if config.after_end is None else replace(trace, after_end=config.after_end)


def source_trace(path: Path, *, clients: int | None, seed: int, inside: tuple[Path, ...] = ()) -> Trace:
    """Return the world of a trace file, or of a TOML file with a `[world]` table. Raises ConfigError or TraceError."""
    if path.suffix != ".toml":
        return read_trace(path)
    if path.resolve() in inside:
        raise ConfigError(f"{path}: joins itself: {' > '.join(p.name for p in (*inside, path))}")
    world = validated(WorldFile, read_toml(path), path).world
    if world.confound is not None:
        raise ConfigError(f"{path}: world.confound: needs a run's data; leave it to the run's own [world]")
    if world.unknown != "error":
        raise ConfigError(
            f"{path}: world.unknown: the run decides what holds where a joined world has no availability: expected it "
            f"in the run's own [world], found {world.unknown!r} here"
        )
    return world_trace(world, clients=clients, seed=seed, inside=(*inside, path.resolve()))


def world_files(config: WorldConfig, *, seed: int) -> Iterator[Path]:
    """Yield the files that `world_trace` reads for this table and this seed. Raises ConfigError."""
    seed = seed if config.seed is None else config.seed
    if config.trace is not None:
        yield of_seed(config.trace, seed)
    for source in config.join.sources.values() if config.join else ():
        path = of_seed(source, seed)
        yield path
        if path.suffix == ".toml":
            yield from world_files(validated(WorldFile, read_toml(path), path).world, seed=seed)


def of_seed(path: Path, seed: int) -> Path:
    """Return the path with `{seed}` replaced, so that each seed of a study can have a recording or a fit of its own."""
    return Path(str(path).replace("{seed}", str(seed)))


def _generated(
    config: WorldConfig, clients: int | None, seed: int, facts: Mapping[str, ArrayLike] | None
) -> Trace:
    assert config.scenario is not None
    if clients is None:
        raise ConfigError("world.clients: missing; give the number of clients in the world")
    return make_trace(
        config.scenario,
        config.options,
        clients=clients,
        horizon_us=config.horizon,
        seed=seed,
        after_end=config.after_end,
        facts=facts,
    )


def _joined(
    config: JoinConfig, clients: int | None, seed: int, inside: tuple[Path, ...], unknown: Unknown
) -> Trace:
    from fedsim.worlds.join import join

    sources = {name: of_seed(path, seed) for name, path in config.sources.items()}
    base = source_trace(sources.pop("availability"), clients=clients, seed=seed, inside=inside)
    n = base.clients if clients is None else clients
    others = {name: source_trace(path, clients=n, seed=seed, inside=inside) for name, path in sources.items()}
    return join(
        availability=base,
        **others,
        clients=n,
        assignment=config.assign,
        replace=config.replace,
        seed=seed,
        unknown=unknown,
    )


def resolved_options(scenario: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a scenario as plain TOML values, including defaults."""
    known = options_of(plugins.factory("scenario", scenario))
    defaults = {n: p.default for n, p in known.items() if p.default is not p.empty}
    values = defaults | plugins.check("scenario", scenario, options, ())
    return {name: shown for name, value in values.items() if (shown := plain(value)) is not None}
