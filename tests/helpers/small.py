"""A small run that ends in a second or two: digits, 12 clients, a churning world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsim.config.load import parse
from fedsim.config.run import RunConfig
from fedsim.runs.inputs import InputCache
from fedsim.runs.result import Result
from fedsim.runs.simulate import simulate


def small(**changes: Any) -> RunConfig:
    """Return the small run's configuration with some tables or keys replaced."""
    raw: dict[str, Any] = {
        "name": "small",
        "seed": 3,
        "task": {"name": "digits", "clients": 12},
        "model": {"name": "mlp", "hidden": [8]},
        "partition": {"name": "pathological", "classes": 2},
        "world": {"scenario": "churn", "horizon": "2h", "options": {"mean_on": "10min", "mean_off": "10min"}},
        "cost": {"payload": "5 MB", "compute_scale": 10},
        "pacing": {"preset": "sync", "clients": 4},
        "train": {"batch_size": 10},
        "algorithm": {"name": "fedlf"},
        "stop": {"steps": 8},
        "evaluate": {"every_steps": 3},
    }
    return parse(raw | changes, "small.toml", "small")[0]


_CACHE = InputCache()


def run(config: RunConfig, out: Path, **options: Any) -> Result:
    """Run a configuration in this process unless told otherwise; runs that follow each other share data and world."""
    return simulate(config, out=out, **({"workers": 0, "cache": _CACHE} | options))[0]
