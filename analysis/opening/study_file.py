"""Open the folder of a study: read `study.json` and `results.csv`, and check what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fedsim.analysis.opening.study import Cell, Study, Test
from fedsim.common import arguments
from fedsim.common.errors import ConfigError, FolderError, closest
from fedsim.common.files import from_json
from fedsim.common.paths import as_path
from fedsim.config.errors import validated
from fedsim.config.section import Count
from fedsim.config.study.compare import Point, parse_target
from fedsim.config.study.published import PublishedSection
from fedsim.config.study.tune import TuneSection
from fedsim.records.file_names import MANIFEST, STUDY
from fedsim.records.study_results import RESULTS, LastEvaluation, read_results

FORMAT = 1


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Cell(_Part):
    levels: dict[str, str]
    seed: int
    folder: str
    status: Literal["done", "running", "failed", "interrupted", "pending"]
    digest: str | None = None
    error: str | None = None


class _Compare(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    axis: str | None = None
    baseline: str | None = None
    metrics: list[str] | None = None
    at: list[Point] | None = None
    last: Count | None = None
    split: str | None = None
    group: str | None = None
    target: str | None = None
    test: Test | None = None


class _Study(_Part):
    format: int
    name: str
    description: str = ""
    axes: dict[str, list[str]]
    seeds: list[int]
    compare: _Compare = _Compare()
    tune: TuneSection | None = None
    published: PublishedSection | None = None
    cells: list[_Cell]


@arguments.checked
def is_study(folder: str | Path) -> bool:
    """Return whether a folder is the folder of a study."""
    return (Path(folder) / STUDY).is_file()


def open_study(path: str | Path) -> Study:
    """Open the folder of a study. Raises FolderError that names the folder, the file, the key or the cell."""
    folder = as_path(path, "path")
    return _opened(folder, _read(folder))


def study_of(path: Path, content: Mapping[str, Any]) -> Study:
    """Return the study that `open_study` opens once `content` is written to `study.json`. Raises as it does."""
    return _opened(path, _checked(content, path / STUDY))


def _opened(folder: Path, content: _Study) -> Study:
    file = folder / STUDY
    axes = {axis: tuple(levels) for axis, levels in content.axes.items()}
    _check(content, axes, file)
    results = read_results(folder)
    cells = tuple(
        _cell(cell, axes, folder, f"{file}: cells.{i}", results) for i, cell in enumerate(content.cells)
    )
    _check_results(cells, [cell.digest for cell in content.cells], folder / RESULTS)
    return Study(
        folder,
        content.name,
        content.description,
        axes,
        tuple(content.seeds),
        content.compare.model_dump(exclude_none=True),
        cells,
        published=content.published,
        tune=content.tune,
    )


def _read(folder: Path) -> _Study:
    """Read `study.json`. Raises FolderError for a file that is missing, damaged or of another format."""
    file = folder / STUDY
    try:
        raw = from_json(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        run = "; it is the folder of a run" if (folder / MANIFEST).is_file() else ""
        raise FolderError(f"{folder} is not the folder of a study: {STUDY} is missing{run}") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{file}: cannot be read: {error}") from error
    if isinstance(raw, dict) and raw.get("format", FORMAT) != FORMAT:
        raise FolderError(f"{file}: format: expected {FORMAT}, found {raw['format']!r}")
    return _checked(raw, file)


def _checked(raw: Any, file: Path) -> _Study:
    try:
        return validated(_Study, raw, file)
    except ConfigError as error:
        raise FolderError(str(error)) from error


def _check(content: _Study, axes: dict[str, tuple[str, ...]], file: Path) -> None:
    for key, name in _named_metrics(content.compare, file):
        if ":" in name:  # opening a folder must not run code that the folder names
            raise FolderError(f"{file}: compare.{key}: expected names of installed metrics, found {name!r}")
    cells: dict[tuple[object, ...], int] = {}
    for number, cell in enumerate(content.cells):
        first = cells.setdefault((*sorted(cell.levels.items()), cell.seed), number)
        if first != number:
            raise FolderError(f"{file}: cells.{number}: it has the levels and the seed of cells.{first}")
    if content.published is not None and (faults := list(content.published.faults_with(axes))):
        raise FolderError("\n".join(f"{file}: {fault}" for fault in faults))


def _check_results(cells: Sequence[Cell], digests: Sequence[str | None], file: Path) -> None:
    """Raise FolderError for results of another run than a cell's, and for a split that only other seeds have."""
    by_levels: dict[tuple[str, ...], tuple[Cell, set[str]]] = {}
    for cell, digest in zip(cells, digests, strict=True):
        for line in cell.results:
            if digest is not None and line.digest != digest:
                raise FolderError(
                    f"{file}: {cell.name}: expected the digest {digest} of {STUDY}, found {line.digest}"
                )
        if not (splits := {line.split for line in cell.results}):
            continue
        first, expected = by_levels.setdefault(tuple(cell.levels.values()), (cell, splits))
        if splits != expected:
            raise FolderError(
                f"{file}: {cell.name}: expected evaluations on the splits of seed {first.seed}, "
                f"{', '.join(sorted(expected))}, found {', '.join(sorted(splits))}"
            )


def _named_metrics(compare: _Compare, file: Path) -> Iterator[tuple[str, str]]:
    for name in compare.metrics or ():
        yield "metrics", name
    if compare.target is not None:
        try:
            yield "target", parse_target(compare.target)[0]
        except ValueError as error:
            raise FolderError(f"{file}: compare.target: {error}") from error


def _cell(
    cell: _Cell,
    axes: dict[str, tuple[str, ...]],
    folder: Path,
    where: str,
    results: Mapping[str, Sequence[LastEvaluation]],
) -> Cell:
    if set(cell.levels) != set(axes):
        raise FolderError(
            f"{where}.levels: expected a level of each axis ({', '.join(axes)}), found {cell.levels}"
        )
    for axis, level in cell.levels.items():
        if level not in axes[axis]:
            raise FolderError(f"{where}.levels.{axis}: unknown level {level!r}{closest(level, axes[axis])}")
    inside = Path(cell.folder)
    if inside.is_absolute() or ".." in inside.parts:
        raise FolderError(f"{where}.folder: expected a folder within the study, found {cell.folder!r}")
    levels = {axis: cell.levels[axis] for axis in axes}
    stored = () if (folder / inside).exists() else tuple(results.get(cell.folder, ()))
    return Cell(levels, cell.seed, folder / inside, cell.status, cell.error, stored)
