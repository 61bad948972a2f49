"""The axes of a study, and the keys of a run's configuration that their levels set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from fedsim import plugins

COLUMNS = (
    "at", "axis", "baseline", "better", "by", "bytes", "client", "clients", "detectable", "family", "faster", "folder",
    "from", "group", "high", "least", "level", "low", "mean", "median", "metric", "missing", "most", "n", "p_holm",
    "reached", "samples", "seed", "seeds", "size", "speed_up", "std", "step", "study", "test", "time_us", "to", "worse",
)  # fmt: skip
"""Columns of a study's tables, beside those of metrics; an axis is a column too, and needs another name."""
STUDY_KEYS = ("name", "seed", "arms", "parent")
"""Keys of a run's configuration that the study sets for each run."""
_LEVEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Levels = dict[str, str]
"""The level on each axis, in the order of the file."""


def _without_study_keys(tables: dict[str, Any]) -> dict[str, Any]:
    for key in STUDY_KEYS:
        if key in tables:
            raise ValueError(f"{key}: the study sets it for each run; leave it out here")
    return tables


Tables = Annotated[dict[str, Any], AfterValidator(_without_study_keys)]
"""Tables of a run's configuration (docs/config.md)."""


def _run_key(key: str) -> str:
    table, _, rest = key.partition(".")
    if table == "run" and rest:
        raise ValueError(f"expected a key of [run] without run. before it, {rest}, found {key!r}")
    if table in STUDY_KEYS:
        raise ValueError(
            f"expected a key of [run], such as train.lr, found {key!r}, which the study sets for each run"
        )
    return key


RunKey = Annotated[str, AfterValidator(_run_key)]
"""A key of a run's configuration, such as `train.lr`."""


def faults_in_axes(axes: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """Yield a message for each axis and level whose name cannot be one."""
    for axis, levels in axes.items():
        if not axis.isidentifier():
            yield f"axes.{axis}: expected letters, digits and '_', no digit first, found {axis!r}"
        if axis in COLUMNS or axis in plugins.names("metric"):
            yield f"axes.{axis}: a column of the study's tables has this name: choose another name"
        if not levels:
            yield f"axes.{axis}: expected a table for each level, such as [axes.{axis}.high], found none"
        for level in levels:
            if not _LEVEL.fullmatch(level):
                yield (
                    f"axes.{axis}.{level}: expected letters, digits, '.', '_' and '-', and a letter or digit "
                    f"first, found {level!r}"
                )


def levels_in(levels: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return one level, or several, as a tuple."""
    return (levels,) if isinstance(levels, str) else levels
