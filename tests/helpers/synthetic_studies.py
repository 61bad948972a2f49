"""Study folders made up for tests: `study.json` and run folders of tables written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedsim.analysis.opening.study import Study
from fedsim.analysis.opening.study_file import open_study
from synthetic_runs import write_run

Made = Callable[[dict[str, str], int], Mapping[str, pa.Table] | None]


def write_study(
    folder: Path,
    made: Made,
    *,
    axes: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    compare: Mapping[str, Any] | None = None,
    published: Mapping[str, Any] | None = None,
) -> Study:
    """Write a study whose cells have the tables `made(levels, seed)`; None stands for a cell that failed."""
    cells = []
    for levels in (dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())):
        for seed in seeds:
            inside = f"runs/{'.'.join(levels.values()) or 'only'}/seed-{seed}"
            tables = made(levels, seed)
            if tables is not None:
                write_run(folder / inside, tables=tables, seed=seed, virtual_us=None)
            status = "failed" if tables is None else "done"
            cells.append({"levels": levels, "seed": seed, "folder": inside, "status": status, "error": None})
    said = {
        "format": 1,
        "name": folder.name,
        "description": "made up",
        "axes": {axis: list(levels) for axis, levels in axes.items()},
        "seeds": list(seeds),
        "compare": dict(compare or {}),
        "published": published,
        "cells": cells,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(said), encoding="utf-8")
    return open_study(folder)
