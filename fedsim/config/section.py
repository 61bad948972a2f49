"""Base classes of the tables of a configuration, their common types, and the names of runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, ClassVar, Self

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fedsim import plugins
from fedsim.common.errors import ConfigError, shown
from fedsim.common.option_requirements import without
from fedsim.common.units import US, duration_us, size_bytes
from fedsim.config.suggestions import name_hint, option_hint
from fedsim.plugins.options import NO_NUMBER, counted

AMOUNT = pydantic.WithJsonSchema(
    {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\s*[0-9.]"}]}
)
"""In a JSON schema: a number, or text with units."""
Size = Annotated[int, BeforeValidator(size_bytes), AMOUNT]
"""A size such as `"20 MB"`, or a number of bytes."""
Duration = Annotated[
    int,
    BeforeValidator(duration_us),
    pydantic.PlainSerializer(lambda us: us / US, return_type=float),
    AMOUNT,
]
"""A duration such as `"90s"`, or a number of seconds, as microseconds."""

MOST, LARGEST = 2**31 - 1, 1e9
"""Largest count, and largest factor or rate with which times and weights stay finite."""
Count = Annotated[int, Field(gt=0, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


def clients_in(share: float, clients: int) -> int:
    """Return the number of `clients` that a share of them stands for: rounded down and at least 1, or 0 for none.

    A whole number stands for itself.
    """
    if isinstance(share, int) or not share:
        return int(share)
    return max(math.floor(round(share * clients, 9)), 1)


LONGEST_NAME = 100
_PART = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
_RESERVED = {"con", "prn", "aux", "nul", *(f"{device}{i}" for device in ("com", "lpt") for i in range(1, 10))}
"""Device names of Windows, which are reserved with any file extension."""
_FILES = {"arms.json", "manifest.json", "report.html", "results.csv", "study.json", "study.toml"}
"""Files that fedsim may write beside the folder of a run."""


def run_name(name: str) -> str:
    """Return `name` if it is a valid name of a run. Raises ValueError otherwise."""
    parts = name.split("/")
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError(
            f"expected letters, digits, '.', '_' and '-', at most {LONGEST_NAME} and a letter or digit first, and "
            f"at most one '/' between an experiment and an arm, found {name!r}"
        )
    for part in parts:
        if part.endswith(".") or part.partition(".")[0].lower() in _RESERVED:
            raise ValueError(f"{part!r} is not a name for a folder on every system")
        if part.lower() in _FILES:
            raise ValueError(f"{part!r} is the name of a file that fedsim writes beside the folders of runs")
    return name


def check_distinct(names: Iterable[str], plural: str) -> None:
    """Raise ConfigError for names whose folders are equal or nested on a file system that ignores case."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.get(name.lower())) is not None:
            same = "the same folder" if other == name else "one folder where file names ignore case"
            raise ConfigError(f"{plural} {other!r} and {name!r} would have {same}: rename one of them")
        known[name.lower()] = name
    for name in known.values():
        experiment, slash, _ = name.partition("/")
        if slash and experiment.lower() in known:
            raise ConfigError(
                f"{plural} {name!r} would be in the folder of {known[experiment.lower()]!r}: rename one of them"
            )


RunName = Annotated[str, AfterValidator(run_name)]
"""The name of a run and of its folder: `run` or `experiment/arm`."""


def installed(kind: str, name: str) -> str:
    """Return `name` if there is such a plug-in. Raises ValueError otherwise."""
    try:
        plugins.factory(kind, name)
    except ConfigError as error:
        unknown = ":" not in name and not name.endswith(".py") and name not in plugins.names(kind)
        hint = name_hint(kind, name) if unknown else ""
        raise ValueError(f"there is no {kind} {name!r}{hint}" if hint else str(error)) from error
    return name


Scenario = Annotated[str, AfterValidator(partial(installed, "scenario"))]


def no_whole_float(value: Any) -> Any:
    """Refuse whole numbers written as fractions, such as 1.0, which could be meant as a share or as a number."""
    if isinstance(value, float) and value >= 1 and value.is_integer():
        raise ValueError(f"expected a whole number such as {int(value)}, or a share below 1, found {value}")
    return value


NumberOrShare = Annotated[Count | Annotated[float, Field(gt=0, lt=1)], BeforeValidator(no_whole_float)]
"""A number of at least 1, or a share above 0 and below 1."""


class Section(BaseModel):
    """A table with a fixed set of keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def _faults(self) -> Iterable[str]:
        """Return a message for each fault of keys together; may also raise ConfigError or ValueError."""
        return ()

    @pydantic.field_validator("*", mode="wrap")
    @classmethod
    def _refuse_truth_for_numbers(cls, value: Any, parse: pydantic.ValidatorFunctionWrapHandler) -> Any:
        parsed = parse(value)
        if counted(value, parsed):
            raise ValueError(f"{NO_NUMBER}, found {shown(value)}")
        return parsed

    @pydantic.model_validator(mode="after")
    def _check_faults(self) -> Self:
        try:
            lines = list(self._faults())
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if lines:
            raise ValueError("\n".join(lines))
        return self


class PluginSection(Section):
    """A table that names a plug-in and holds the plug-in's options beside the name."""

    model_config = ConfigDict(extra="allow")
    kind: ClassVar[str]
    name: str
    """Name of the plug-in, or `path/to/file.py:factory`."""

    @property
    def supplied(self) -> tuple[str, ...]:
        """The parameters of the plug-in that are no options."""
        return plugins.KINDS[self.kind].supplied

    @property
    def options(self) -> dict[str, Any]:
        """The plug-in's options as written."""
        return dict(self.model_extra or {})

    def _faults(self) -> Iterable[str]:
        installed(self.kind, self.name)
        others = type(self).model_fields
        plugins.check(self.kind, self.name, self.options, self.supplied, others, suggest=option_hint)
        return ()

    def idle_options(self) -> list[tuple[str, str]]:
        """Return the options that depend on another one, and what each lacks to have an effect, or ""."""
        return plugins.idle_options(self.kind, self.name, self.options, self.supplied)

    def working_options(self) -> dict[str, Any]:
        """Return the options that have an effect."""
        return without(self.options, [place for place, lacks in self.idle_options() if lacks])

    def resolved(self) -> dict[str, Any]:
        """Return the table with the default of every option."""
        fixed = self.model_dump(mode="json", exclude_none=True, exclude={"wrap", *self.options})
        return fixed | plugins.resolved(self.kind, self.name, self.options, self.supplied)
