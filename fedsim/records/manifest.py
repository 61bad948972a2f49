"""Reads the manifest of a run folder, which may be damaged, foreign or malicious."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fedsim.common.errors import ConfigError, FolderError, closest
from fedsim.common.files import from_json
from fedsim.config.errors import validated
from fedsim.records.file_names import MANIFEST, STUDY

FORMAT = 1
"""The format of a run folder; it changes when columns or keys change their meaning."""

Seconds = dict[str, float]
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A whole number from 0 on that fits into 64 bits, which JSON does not ensure."""


class _Section(BaseModel):
    """The types of the keys that fedsim reads; each may be missing, and others are allowed."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class _Memory(_Section):
    asked: dict[str, Any] | None = None
    predicted_bytes: dict[str, Count] | None = None
    peak_bytes: Count | None = None


class _Hardware(_Section):
    cpu: str | None = None
    vendor: str | None = None
    instructions: str | None = None
    blas: str | None = None
    cores: Count | None = None
    memory_bytes: Count | None = None
    gpu: str | None = None


class _Adversary(_Section):
    name: str
    clients: list[Count]


class _Manifest(_Section):
    format: int = FORMAT
    name: str | None = None
    label: str | None = None
    status: str | None = None
    error: str | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    adversaries: list[_Adversary] | None = None
    rule: str | None = None
    selector: str | None = None
    pacing: str | None = None
    started: str | None = None
    digest: str | None = None
    ended_by: str | None = None
    warning: str | None = None
    device: str | None = None
    workers: Count | None = None
    threads: Count | None = None
    virtual_us: Count | None = None
    steps: Count | None = None
    accuracy: float | None = None
    waits: Count | None = None
    jobs: dict[str, Count] | None = None
    resumed: list[dict[str, Any]] | None = None
    versions: dict[str, str] | None = None
    code: dict[str, str] | None = None
    world_files: dict[str, str] | None = None
    data: str | None = None
    given: dict[str, str] | None = None
    memory: _Memory | None = None
    hardware: _Hardware | None = None
    wall_s: Seconds | float | None = None
    server_wall_s: Seconds | None = None
    workers_wall_s: list[Seconds] | None = None


def existing(folder: Path) -> Path:
    """Return `folder` if it exists. Raises FolderError with the closest name beside it otherwise."""
    if folder.is_dir():
        return folder
    if folder.exists():
        raise FolderError(f"{folder} is a file; expected the folder of a run")
    parent = folder.parent
    siblings = [p.name for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
    raise FolderError(f"there is no run folder {folder}{closest(folder.name, siblings)}")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run folder. Raises FolderError that names the file, the key and the fault."""
    path = existing(folder) / MANIFEST
    try:
        manifest = from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _without_manifest(folder) from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path}: cannot be read: {error}") from error
    if not isinstance(manifest, dict):
        raise FolderError(f"{path}: expected an object with named values, found {type(manifest).__name__}")
    if manifest.get("format", FORMAT) != FORMAT:
        raise FolderError(
            f"{path}: format: written by another version of fedsim: expected {FORMAT}, found {manifest['format']!r}"
        )
    try:
        validated(_Manifest, manifest, path)
    except ConfigError as error:
        raise FolderError(str(error)) from error
    return manifest


def runs_in(folder: Path) -> list[str]:
    """Return the names of the runs directly in a folder."""
    return sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))


def _without_manifest(folder: Path) -> FolderError:
    names = sorted(p.name for p in folder.iterdir())
    runs = runs_in(folder)
    if len(runs) == 1:
        return FolderError(f"{folder} is not a run folder, but holds one: name {folder / runs[0]}")
    if runs:
        return FolderError(f"{folder} holds several runs ({', '.join(runs)}): name one of these folders")
    if STUDY in names:
        return FolderError(
            f"{folder} is the folder of a study: name one of its runs, or continue it with fedsim study"
        )
    return FolderError(f"{folder} is not a run folder: {MANIFEST} is missing; found {names or 'nothing'}")
