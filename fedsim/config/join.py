"""The tables `[world.join]` and `[world.confound]`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedsim.common.errors import ConfigError, closest
from fedsim.common.option_requirements import Unless, With
from fedsim.config.section import Section
from fedsim.worlds.matching import AssignmentRule, correlation_of

_OTHERS = ("compute", "network", "faults")


def _checked_assign(assign: Any) -> Any:
    """Check `assign` as a whole, since each member of the union would report an error of its own."""
    table = assign if isinstance(assign, dict) else {"": assign}
    lines = []
    for source, matching in table.items():
        if source and source not in _OTHERS:
            lines.append(f"there is no source {source!r} to assign{closest(source, _OTHERS)}")
        elif isinstance(matching, bool) or not isinstance(matching, str | int | float):
            lines.append(f"expected 'independent', 'rank', 'id' or a number from -1 to 1, found {matching!r}")
        elif matching != "id":
            try:
                correlation_of(matching)
            except ConfigError as error:
                lines.append(str(error))
    if lines:
        raise ValueError("\n".join(lines))
    return assign


Assign = Annotated[AssignmentRule | dict[str, AssignmentRule], BeforeValidator(_checked_assign)]


class JoinConfig(Section):
    """`[world.join]`: availability from one world, speeds and faults from others."""

    availability: Path
    """The source of availability, and of everything that no other source provides. A source is a trace file or a TOML
    file with a `[world]` table."""
    compute: Path | None = None
    """The source of computing speeds."""
    network: Path | None = None
    """The source of downlink and uplink speeds."""
    faults: Path | None = None
    """The source of faults."""
    assign: Assign = "independent"
    """How clients of the sources are matched: `independent`, `rank` (the clients that are online most are the
    fastest), a rank correlation from -1 to 1, or a table of these by source."""
    replace: bool | None = None
    """Draw clients with replacement; by default only from sources with too few clients."""

    def _faults(self) -> Iterable[str]:
        if len(self.sources) == 1 and self.assign not in ("independent", {}):
            return ["assign: there is nothing to assign without 'compute', 'network' or 'faults'"]
        assigned = self.assign if isinstance(self.assign, dict) else {}
        return [
            f"assign.{name}: there is no source {name!r}" for name in assigned if name not in self.sources
        ]

    @property
    def sources(self) -> dict[str, Path]:
        """The files by the key that names them."""
        return {key: path for key in ("availability", *_OTHERS) if (path := getattr(self, key))}


class ConfoundConfig(Section):
    """`[world.confound]`: ties a property of the world's clients to one of the data's clients."""

    what: str
    """A property of the world's clients: `availability`, `compute`, `downlink`, `uplink`, `faults`, `night`, or a
    numeric fact in the world's trace."""
    to: str
    """A property of the data's clients: `label`, `n_samples`, `loss`, or another fact."""
    labels: Annotated[tuple[int | str, ...], Unless("to", "n_samples", "loss")] = ()
    """With `to = "label"`: the property is the share of samples with one of these labels. With a fact in words: it is
    whether the client's fact is one of these."""
    rotate: Annotated[bool, With("to", "label")] = False
    """With `to = "label"`: add the run's `seeds.data` to each of `labels`, modulo the number of classes, so that
    the seeds of a study tie different labels."""
    run: Path | None = None
    """With `to = "loss"`: the folder of the run whose last evaluation provides the losses."""
    strength: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Absolute rank correlation: 0 is independent, 1 perfectly sorted."""
    sign: Literal["positive", "negative"] = "positive"
    """Sign of the rank correlation."""
    night_start: Annotated[float, Field(ge=0, le=24), With("what", "night")] = 0.0
    """With `what = "night"`: hour of the day at which the night begins."""
    night_end: Annotated[float, Field(ge=0, le=24), With("what", "night")] = 6.0
    """With `what = "night"`: hour of the day at which the night ends."""

    def _faults(self) -> Iterable[str]:
        if self.to == "label" and not self.labels:
            yield "to = 'label' needs 'labels', such as labels = [0, 1]"
        if (self.to == "loss") != (self.run is not None):
            yield "to = 'loss' needs 'run', the folder of an earlier run, and nothing else does"
        if self.night_start == self.night_end:
            yield f"night_start and night_end are both {self.night_start:g}: a night must have a length"
