"""Join two runs, or two studies, into one study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedsim.analysis.opening.run import Run
from fedsim.analysis.opening.study import Cell, Study
from fedsim.common import arguments
from fedsim.common.errors import FolderError


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
    compared on the split of the first study, by default that of its runs. Raises FolderError if the axes differ, or if
    both are the same study.
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
    compare = first.compare | {"axis": "study", "baseline": names[0], "split": _split(first)}
    seeds = tuple(dict.fromkeys((*first.seeds, *second.seeds)))
    return Study(Path(first.folder), " and ".join(names), "", axes, seeds, compare, tuple(cells))


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
