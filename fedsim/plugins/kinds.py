"""The kinds of plug-ins, and the names of those that are installed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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


def distribution(kind: str, name: str) -> str | None:
    """Return the distribution whose entry point names a plug-in; None for a shipped plug-in."""
    points = entry_points(kind).get(name, ())
    return ", ".join(str(point.dist and point.dist.name) for point in points) or None
