"""The `[world]` table of a configuration: a scenario to write down, or a trace file to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

from fedsim import plugins
from fedsim.errors import ConfigError
from fedsim.scenario import make_trace
from fedsim.trace import Trace, read_trace
from fedsim.units import US, duration_us

Duration = Annotated[
    int, BeforeValidator(duration_us), pydantic.PlainSerializer(lambda us: us / US, return_type=float)
]
_OF_A_SCENARIO = ("clients", "horizon", "seed", "options")


class WorldConfig(BaseModel):
    """`[world]`: either `scenario` or `trace`; all other keys but `after_end` belong to a scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: str | None = None
    """Name of a scenario, or `path/to/file.py:factory`."""
    trace: Path | None = None
    """A trace file, as `fedsim trace make` writes."""
    clients: PositiveInt | None = None
    """Number of clients in the world; a run's own number by default."""
    horizon: Annotated[Duration, Field(gt=0)] = 7 * 86400 * US
    """How much time the scenario writes down, such as `"7d"`; microseconds inside."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the world; a run's own seed by default."""
    after_end: Literal["error", "repeat", "stop"] = "repeat"
    """After the horizon: an error, a new lap, or nobody online any more. A trace file's own by default."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the scenario."""

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
        if (self.scenario is None) == (self.trace is None):
            raise ValueError("give exactly one of 'scenario' and 'trace'")
        if self.scenario is None:
            lines = [
                f"{key!r} belongs to a scenario, not to a trace file"
                for key in _OF_A_SCENARIO
                if self._given(key)
            ]
        else:
            lines = _option_problems(self.scenario, self.options)
        if lines:
            raise ValueError("\n".join(lines))
        return self

    @pydantic.model_serializer(mode="wrap")
    def _resolved(self, plain: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what a trace file decides, and write out the defaults of a scenario's options."""
        table: dict[str, Any] = plain(self)
        if self.scenario is not None:
            return table | {"options": resolved_options(self.scenario, self.options)}
        dropped = _OF_A_SCENARIO if self._given("after_end") else (*_OF_A_SCENARIO, "after_end")
        return {key: value for key, value in table.items() if key not in dropped}

    def _given(self, key: str) -> bool:
        return key in self.model_fields_set


class WorldFile(BaseModel):
    """A file for `fedsim trace make`: a `[world]` table and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    world: WorldConfig


def world_trace(config: WorldConfig, *, clients: int, seed: int) -> Trace:
    """Write down the scenario, or read the trace file; `clients` and `seed` hold where the table names none.

    Raises ConfigError or TraceError.
    """
    if config.trace is not None:
        trace = read_trace(config.trace)
        return replace(trace, after_end=config.after_end) if "after_end" in config.model_fields_set else trace
    assert config.scenario is not None
    return make_trace(
        config.scenario,
        config.options,
        clients=config.clients or clients,
        horizon_us=config.horizon,
        seed=seed if config.seed is None else config.seed,
        after_end=config.after_end,
    )


def resolved_options(scenario: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's options as plain TOML values, with the defaults of those not named."""
    make = plugins.factory("scenario", scenario)
    defaults = {n: p.default for n, p in plugins.options_of(make).items() if p.default is not p.empty}
    values = defaults | plugins.checked_options("scenario", scenario, make, options, {})
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    return list(value) if isinstance(value, tuple) else value


def _option_problems(scenario: str, options: Mapping[str, Any]) -> list[str]:
    try:
        plugins.build("scenario", scenario, options)
    except ConfigError as error:
        return str(error).split("\n")
    return []
