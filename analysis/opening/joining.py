"""Join two runs, or two studies, into one study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.study import Cell, Study
from fedsim.common import arguments
from fedsim.common.errors import FolderError, shown
from fedsim.common.files import flat

_SHOWN = 5
"""How many keys are named that two studies have with different values."""


def join_runs(first: Run, second: Run) -> Study:
    """Return a study of two runs that form one pair: an axis `run` with their labels, and one seed."""
    labels = [first.label, second.label]
    if labels[0] == labels[1]:
        labels = [f"{label} #{i}" for i, label in enumerate(labels, start=1)]
    seed = first.manifest.get("seed") or 0
    sides = list(zip(labels, (first, second), strict=True))
    cells = tuple(Cell({"run": label}, seed, run.folder, "done") for label, run in sides)
    runs = {run.folder: run for _, run in sides}
    compare = {"axis": "run", "baseline": labels[0]}
    return Study(first.folder, " and ".join(labels), "", {"run": (*labels,)}, (seed,), compare, cells, runs)


@arguments.checked
def join_studies(first: Study, second: Study) -> Study:
    """Return two studies as one with a new axis `study`, of which the first study is the baseline.

    Runs are paired by seed within equal levels of all axes; levels and seeds of one study alone have no pair. Both are
    compared on the split of the first study, by default that of its runs. The description names the keys of the
    configuration that differ. Raises FolderError if the axes differ, if both are the same study, or if they have no
    run of equal levels and seed.
    """
    if set(first.axes) != set(second.axes):
        raise FolderError(
            f"{first.folder} and {second.folder}: expected studies with the same axes, "
            f"found {', '.join(first.axes) or 'none'} and {', '.join(second.axes) or 'none'}"
        )
    names = _names(first, second)
    axes = {"study": names} | {
        axis: tuple(dict.fromkeys((*levels, *second.axes[axis]))) for axis, levels in first.axes.items()
    }
    cells = [
        replace(cell, levels={"study": name} | {axis: cell.levels[axis] for axis in first.axes})
        for name, study in zip(names, (first, second), strict=True)
        for cell in study.cells
    ]
    pairs = _pairs(first, second)
    if not pairs:
        raise FolderError(
            f"{first.folder} and {second.folder}: expected runs of the same levels and seed in both, found none; "
            f"seeds {_listed(first.seeds)} and {_listed(second.seeds)}"
        )
    compare = first.compare | {"axis": "study", "baseline": names[0], "split": _split(first)}
    seeds = tuple(dict.fromkeys((*first.seeds, *second.seeds)))
    title, told = " and ".join(names), _different_keys(first, second, pairs)
    return Study(Path(first.folder), title, told, axes, seeds, compare, tuple(cells))


def _pairs(first: Study, second: Study) -> list[tuple[Cell, Cell]]:
    """Return the cells of equal levels and seed."""
    there = {_place(cell): cell for cell in second.cells}
    return [(cell, there[_place(cell)]) for cell in first.cells if _place(cell) in there]


def _place(cell: Cell) -> tuple[object, ...]:
    return (cell.seed, *sorted(cell.levels.items()))


def _different_keys(first: Study, second: Study, pairs: Sequence[tuple[Cell, Cell]]) -> str:
    """Return the keys that runs of equal levels and seed have with different values, in words."""
    found: dict[str, set[tuple[str, str]]] = {}
    for a, b in pairs:
        if {a.status, b.status} == {"done"} and not a.results and not b.results:
            ours, theirs = (dict(flat(study.run(cell).config)) for study, cell in ((first, a), (second, b)))
            for key in ours | theirs:
                if key != "name" and ours.get(key) != theirs.get(key):
                    found.setdefault(key, set()).add((_written(ours, key), _written(theirs, key)))
    told = [
        f"{key} ({' and '.join(min(values)) if len(values) == 1 else 'in several ways'})"
        for key, values in found.items()
    ]
    more = f" and {len(told) - _SHOWN} more keys" if len(told) > _SHOWN else ""
    return f"The studies differ in {', '.join(told[:_SHOWN])}{more}." if told else ""


def _written(values: Mapping[str, object], key: str) -> str:
    return shown(values[key]) if key in values else "nothing"


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _split(study: Study) -> str | None:
    """Return the split that a study's runs are compared on; None if their configurations name several."""
    if study.split is not None:
        return study.split
    each = {cell.results[0].split if cell.results else study.run(cell).split for cell in study.finished}
    return each.pop() if len(each) == 1 else None


def _names(first: Study, second: Study) -> tuple[str, str]:
    for names in ((first.name, second.name), (str(first.folder), str(second.folder))):
        if names[0] != names[1]:
            return names
    raise FolderError(f"{first.folder}: expected two different studies, found the same one twice")
