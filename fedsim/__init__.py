"""fedsim: an asynchronous, actor-based federated-learning simulator with realistic client dynamics.

    import fedsim

    configs = fedsim.load_config("examples/quickstart.toml")
    results = fedsim.simulate(configs, workers=0)
    print(results[0].folder, results[0].digest)

Names are imported when first used, so `import fedsim` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim.combining import Combined, combine
    from fedsim.config import RunConfig
    from fedsim.config import load as load_config
    from fedsim.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        Error,
        RunError,
        SolverError,
        SomeFailed,
        TraceError,
    )
    from fedsim.simulation import Result, simulate
    from fedsim.stack import Algorithm, Direction, Needs, Stack, stateless
    from fedsim.trace import Trace, read_trace
    from fedsim.world import World

__version__ = "0.1.0"

_HOMES = {
    "fedsim.combining": ("Combined", "combine"),
    "fedsim.config": ("RunConfig",),
    "fedsim.errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "Error",
        "RunError",
        "SolverError",
        "SomeFailed",
        "TraceError",
    ),
    "fedsim.simulation": ("Result", "simulate"),
    "fedsim.stack": ("Algorithm", "Direction", "Needs", "Stack", "stateless"),
    "fedsim.trace": ("Trace", "read_trace"),
    "fedsim.world": ("World",),
}

__all__ = [
    "Algorithm",
    "CheckpointError",
    "Combined",
    "ConfigError",
    "DataError",
    "Direction",
    "Error",
    "Needs",
    "Result",
    "RunConfig",
    "RunError",
    "SolverError",
    "SomeFailed",
    "Stack",
    "Trace",
    "TraceError",
    "World",
    "combine",
    "load_config",
    "read_trace",
    "simulate",
    "stateless",
]


def __getattr__(name: str) -> Any:
    if name == "load_config":
        return importlib.import_module("fedsim.config").load
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
