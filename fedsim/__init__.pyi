from . import analysis
from .analysis.opening.run import open_run
from .analysis.opening.study_file import open_study
from .common.errors import (
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
from .config.load import load_config
from .config.run import RunConfig
from .data.federated_data import FederatedData, Task
from .engine.selector import Selector, View
from .execution.actor_pool import RayPool
from .runs.fork import At, fork
from .runs.plan.plan import PlannedRun, plan
from .runs.replay import replay
from .runs.result import Result
from .runs.resume import resume
from .runs.simulate import simulate
from .runs.verify import verify
from .server.combine import Combined, combine
from .server.rule import Algorithm, Direction, Needs, Stack, stateless
from .studies.run import study
from .training.attack import Attack
from .training.client_method import ClientMethod, Local, Trained
from .worlds.importer import Imported, Importer, Source, import_trace
from .worlds.scenario import Clock, Me, Place, Scenario, make_trace
from .worlds.trace import Trace, read_trace
from .worlds.world import World

__version__: str

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
    "RayPool",
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
