"""Branches of runs, and their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from fedsim.runs.fork import At, fork
from fedsim.runs.result import Result

PEACEFUL = {"scenario": "churn", "horizon": "10h", "options": {"mean_on": "1000h", "mean_off": "1min"}}
ALL_KEPT = {"checkpoint": {"every_steps": 1, "keep": "all"}}


def branch(parent: Path, at: At, *sets: str, out: Path, **options: Any) -> Result:
    return fork(parent, at, sets, out=out, **({"workers": 0} | options))


def table(folder: Path, name: str) -> pd.DataFrame:
    return pq.read_table(folder / f"{name}.parquet").to_pandas()
