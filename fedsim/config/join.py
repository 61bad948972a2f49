"""The tables `[world.join]` and `[world.confound]` of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedsim.common.errors import ConfigError, closest
from fedsim.common.option_requirements import Unless, With
from fedsim.worlds.matching import AssignmentRule, correlation_of

_OTHERS = ("compute", "network", "faults")


def _checked_assign(given: Any) -> Any:
    """Check the whole of `assign` at once: the members of a union would each complain of their own."""
    table = given if isinstance(given, dict) else {"": given}
    lines = []
    for source, how in table.items():
        if source and source not in _OTHERS:
            lines.append(f"there is no source {source!r} to assign{closest(source, _OTHERS)}")
        elif isinstance(how, bool) or not isinstance(how, str | int | float):
            lines.append(f"expected 'independent', 'rank' or a number from -1 to 1, found {how!r}")
        else:
            try:
                correlation_of(how)
            except ConfigError as error:
                lines.append(str(error))
    if lines:
        raise ValueError("\n".join(lines))
    return given


Assign = Annotated[AssignmentRule | dict[str, AssignmentRule], BeforeValidator(_checked_assign)]


class JoinConfig(BaseModel):
    """`[world.join]`: availability from one world, speeds and faults from others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    availability: Path
    """Who is online when, and all that no other source gives. Sources are traces or TOML files with a `[world]`."""
    compute: Path | None = None
    """Computing speeds."""
    network: Path | None = None
    """Downlink and uplink speeds."""
    faults: Path | None = None
    """Faults."""
    assign: Assign = "independent"
    """Who gets whose speed: `independent`, `rank` (those most online are the fastest), a rank correlation from -1 to
    1, or a table of these by source."""
    replace: bool | None = None
    """Draw clients with replacement; by default only from sources that have too few."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> JoinConfig:
        assigned = self.assign if isinstance(self.assign, dict) else {}
        lines = [
            f"assign.{name}: there is no source {name!r}" for name in assigned if name not in self.sources
        ]
        if len(self.sources) == 1 and self.assign not in ("independent", {}):
            lines = ["assign: there is nothing to assign without 'compute', 'network' or 'faults'"]
        if lines:
            raise ValueError("\n".join(lines))
        return self

    @property
    def sources(self) -> dict[str, Path]:
        """The files by what is taken from them."""
        named = {key: getattr(self, key) for key in ("availability", "compute", "network", "faults")}
        return {key: path for key, path in named.items() if path is not None}


class ConfoundConfig(BaseModel):
    """`[world.confound]`: ties a property of the world's clients to one of the data's clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    """`availability`, `compute`, `downlink`, `uplink`, `faults`, `night`, or a numeric fact that the world carries."""
    to: str
    """`label`, `n_samples`, `loss`, or another fact about the data's clients."""
    labels: Annotated[tuple[int | str, ...], Unless("to", "n_samples", "loss")] = ()
    """Of `to = "label"`: the share of samples with these counts. Of a fact in words: those clients that have one of
    these."""
    run: Path | None = None
    """Of `to = "loss"`: the folder of the run whose last evaluation counts."""
    strength: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Rank correlation without its sign: 0 is independent, 1 perfectly sorted."""
    sign: Literal["positive", "negative"] = "positive"
    """Whether more of the one goes with more or with less of the other."""
    night_start: Annotated[float, Field(ge=0, le=24), With("what", "night")] = 0.0
    """Of `what = "night"`: hour of the day."""
    night_end: Annotated[float, Field(ge=0, le=24), With("what", "night")] = 6.0

    @pydantic.model_validator(mode="after")
    def _check(self) -> ConfoundConfig:
        lines = []
        if self.to == "label" and not self.labels:
            lines.append("to = 'label' needs 'labels', such as labels = [0, 1]")
        if (self.to == "loss") != (self.run is not None):
            lines.append("to = 'loss' needs 'run', the folder of an earlier run, and nothing else does")
        if self.night_start == self.night_end:
            lines.append(
                f"night_start and night_end are both {self.night_start:g}: a night must have a length"
            )
        if lines:
            raise ValueError("\n".join(lines))
        return self
