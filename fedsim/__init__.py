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
    from fedsim.common.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        Error,
        RunError,
        SolverError,
        SomeFailed,
        TraceError,
    )
    from fedsim.config.load import load as load_config
    from fedsim.config.run import RunConfig
    from fedsim.runs.simulate import Result, simulate
    from fedsim.server.combine import Combined, combine
    from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless
    from fedsim.worlds.trace import Trace, read_trace
    from fedsim.worlds.world import World

__version__ = "0.1.0"

_HOMES = {
    "fedsim.server.combine": ("Combined", "combine"),
    "fedsim.config.run": ("RunConfig",),
    "fedsim.common.errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "Error",
        "RunError",
        "SolverError",
        "SomeFailed",
        "TraceError",
    ),
    "fedsim.runs.simulate": ("Result", "simulate"),
    "fedsim.server.rule": ("Algorithm", "Direction", "Needs", "Stack", "stateless"),
    "fedsim.worlds.trace": ("Trace", "read_trace"),
    "fedsim.worlds.world": ("World",),
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
        return importlib.import_module("fedsim.config.load").load
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
