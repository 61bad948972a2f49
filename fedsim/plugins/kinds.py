"""The kinds of plug-ins, and the names of those that are installed."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import importlib.metadata


@dataclass(frozen=True, slots=True)
class Kind:
    """Where plug-ins of one kind come from, and what they make."""

    package: str
    """The package of the plug-ins that fedsim ships."""
    group: str
    """The group of the entry points of other distributions."""
    product: str
    """The return type of a factory (a metric is itself the function)."""
    purpose: str
    """What plug-ins of the kind do, in a few words."""
    supplied: tuple[str, ...] = ()
    """Parameters of all factories of the kind that fedsim passes itself; the others are options."""


KINDS = {
    "rule": Kind("fedsim.algorithms", "fedsim.rules", "Algorithm", "how updates become a step of the server"),
    "wrapper": Kind(
        "fedsim.algorithms.wrappers",
        "fedsim.wrappers",
        "Algorithm",
        "change a rule: clip, discount, remember",
        supplied=("rule",),
    ),
    "client": Kind("fedsim.algorithms.clients", "fedsim.clients", "ClientMethod", "how a client trains"),
    "selector": Kind(
        "fedsim.algorithms.selection", "fedsim.selectors", "Selector", "which clients the server asks"
    ),
    "scenario": Kind(
        "fedsim.scenarios", "fedsim.scenarios", "Scenario", "who is online, how fast, when clients fail"
    ),
    "importer": Kind(
        "fedsim.scenarios.importers", "fedsim.importers", "Importer", "read published traces as worlds"
    ),
    "task": Kind(
        "fedsim.data.tasks", "fedsim.tasks", "Task", "data sets", supplied=("clients", "seed", "data_dir")
    ),
    "model": Kind("fedsim.models", "fedsim.models", "Module", "networks", supplied=("in_shape", "n_classes")),
    "partitioner": Kind(
        "fedsim.data.partitioners",
        "fedsim.partitioners",
        "Partition",
        "how samples are divided among clients",
    ),
    "metric": Kind(
        "fedsim.analysis.metrics", "fedsim.metrics", "float", "numbers over the accuracies of clients"
    ),
    "adversary": Kind(
        "fedsim.training.attacks",
        "fedsim.adversaries",
        "Attack",
        "what malicious clients do to data and updates",
    ),
}


def names(kind: str) -> list[str]:
    """Return the sorted names of the plug-ins of a kind (a key of `KINDS`), shipped and of entry points."""
    return sorted(shipped(kind) | entry_points(kind).keys())


def shipped(kind: str) -> set[str]:
    """Return the names of the plug-ins in the folder of a kind; modules that start with `_` are private."""
    modules = pkgutil.iter_modules(importlib.import_module(KINDS[kind].package).__path__)
    return {m.name for m in modules if not m.ispkg and not m.name.startswith("_")}


@cache
def entry_points(kind: str, *, taken: bool = False) -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
    """Return the entry points of other distributions by name, except for names of shipped plug-ins.

    With `taken`, those with names of shipped plug-ins, which no configuration can use by name.
    """
    import importlib.metadata  # slow: reads the metadata of all installed distributions

    points: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=KINDS[kind].group):
        if (point.name in shipped(kind)) == taken:
            points.setdefault(point.name, []).append(point)
    return points


def installed_file(name: str) -> Path | None:
    """Return the file with the function of an installed package that a plug-in names, and run none of its code.

    None for a shipped plug-in, and if there is no such file.

    Args:
        name: that of an entry point, or `package.module:function`.
    """
    if any(name in shipped(kind) for kind in KINDS):
        return None
    points = [] if ":" in name else [point for kind in KINDS for point in entry_points(kind).get(name, ())]
    values = [name] if ":" in name else [point.value for point in points]
    found = (_file_of(value.partition(":")[0]) for value in values)
    return next((file for file in found if file is not None), None)


def _file_of(module: str) -> Path | None:
    """Return the file of a module, looked up without an import of the packages that it is in."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not inner:
        return None if spec is None or spec.origin is None else Path(spec.origin)
    places = [Path(place).joinpath(*inner) for place in spec.submodule_search_locations or ()]
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next((file for file in files if file.is_file()), None)


def distribution(kind: str, name: str) -> str | None:
    """Return the distribution whose entry point names a plug-in; None for a shipped plug-in."""
    points = entry_points(kind).get(name, ())
    return ", ".join(str(point.dist and point.dist.name) for point in points) or None
