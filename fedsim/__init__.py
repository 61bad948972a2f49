"""fedsim: an asynchronous, actor-based federated-learning simulator with realistic client dynamics.

    import fedsim

    configs = fedsim.load_config("examples/quickstart.toml")
    results = fedsim.simulate(configs, workers=0)
    print(results[0].folder, results[0].digest)

These names are the public interface; docs/api.md lists them. They are imported when first used, so `import fedsim`
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedsim import analysis
    from fedsim.analysis import open as open_run
    from fedsim.analysis import open_study
    from fedsim.common.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        Error,
        FolderError,
        RunError,
        SolverError,
        SomeFailed,
        TraceError,
    )
    from fedsim.config.load import load as load_config
    from fedsim.config.run import RunConfig
    from fedsim.data.federated_data import FederatedData, Task
    from fedsim.engine.selector import Selector, View
    from fedsim.runs.fork import At, fork
    from fedsim.runs.plan import PlannedRun, plan
    from fedsim.runs.replay import replay
    from fedsim.runs.result import Result
    from fedsim.runs.resume import resume
    from fedsim.runs.simulate import simulate
    from fedsim.runs.verify import verify
    from fedsim.server.combine import Combined, combine
    from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless
    from fedsim.studies.run import study
    from fedsim.training.attack import Attack
    from fedsim.training.client_method import ClientMethod, Local, Trained
    from fedsim.worlds.importer import Imported, Importer, Source, import_trace
    from fedsim.worlds.scenario import Clock, Me, Place, Scenario, make_trace
    from fedsim.worlds.trace import Trace, read_trace
    from fedsim.worlds.world import World

__version__ = "0.1.0"

_HOMES = {
    "fedsim.analysis": ("open_study",),
    "fedsim.common.errors": (
        "CheckpointError",
        "ConfigError",
        "DataError",
        "Error",
        "FolderError",
        "RunError",
        "SolverError",
        "SomeFailed",
        "TraceError",
    ),
    "fedsim.config.run": ("RunConfig",),
    "fedsim.data.federated_data": ("FederatedData", "Task"),
    "fedsim.engine.selector": ("Selector", "View"),
    "fedsim.runs.fork": ("At", "fork"),
    "fedsim.runs.plan": ("PlannedRun", "plan"),
    "fedsim.runs.replay": ("replay",),
    "fedsim.runs.result": ("Result",),
    "fedsim.runs.resume": ("resume",),
    "fedsim.runs.simulate": ("simulate",),
    "fedsim.runs.verify": ("verify",),
    "fedsim.server.combine": ("Combined", "combine"),
    "fedsim.server.rule": ("Algorithm", "Direction", "Needs", "Stack", "stateless"),
    "fedsim.studies.run": ("study",),
    "fedsim.training.attack": ("Attack",),
    "fedsim.training.client_method": ("ClientMethod", "Local", "Trained"),
    "fedsim.worlds.importer": ("Imported", "Importer", "Source", "import_trace"),
    "fedsim.worlds.scenario": ("Clock", "Me", "Place", "Scenario", "make_trace"),
    "fedsim.worlds.trace": ("Trace", "read_trace"),
    "fedsim.worlds.world": ("World",),
}
"""The modules of the public names."""
_RENAMED = {"load_config": ("fedsim.config.load", "load"), "open_run": ("fedsim.analysis", "open")}

__all__ = [
    "Algorithm",
    "At",
    "Attack",
    "CheckpointError",
    "ClientMethod",
    "Clock",
    "Combined",
    "ConfigError",
    "DataError",
    "Direction",
    "Error",
    "FederatedData",
    "FolderError",
    "Imported",
    "Importer",
    "Local",
    "Me",
    "Needs",
    "Place",
    "PlannedRun",
    "Result",
    "RunConfig",
    "RunError",
    "Scenario",
    "Selector",
    "SolverError",
    "SomeFailed",
    "Source",
    "Stack",
    "Task",
    "Trace",
    "TraceError",
    "Trained",
    "View",
    "World",
    "analysis",
    "combine",
    "fork",
    "import_trace",
    "load_config",
    "make_trace",
    "open_run",
    "open_study",
    "plan",
    "read_trace",
    "replay",
    "resume",
    "simulate",
    "stateless",
    "study",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "analysis":
        return importlib.import_module("fedsim.analysis")
    places = _RENAMED | {name: (home, name) for home, names in _HOMES.items() for name in names}
    if name not in places:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    home, attribute = places[name]
    value = globals()[name] = getattr(importlib.import_module(home), attribute)
    return value
