"""Starting Ray with no more programs than a run asks: each of the others is a Python process that imports Ray first.

`ray.init` has no options for it, so some of what it calls is replaced meanwhile. A version of Ray that does not have
what is replaced here starts all of its programs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedsim.execution import stand_in
from fedsim.execution.ray_forks import Forks

_NEEDLESS = ("start_monitor", "start_log_monitor", "start_api_server")
"""What starts the autoscaler, the follower of log files, and what is behind the dashboard."""
_AGENTS = ("--dashboard_agent_command", "--runtime_env_agent_command")
"""A raylet starts these two itself, and its first worker when it has heard of their ports: for seconds, nothing."""
_WORKER = "--python_worker_command="
_PORTS = {
    "METRICS_AGENT_PORT_NAME": -1,
    "METRICS_EXPORT_PORT_NAME": -1,
    "DASHBOARD_AGENT_LISTEN_PORT_NAME": -1,
    "RUNTIME_ENV_AGENT_PORT_NAME": 1,
}
"""-1 says that there is no such service. The last must be a port; only actors with packages of their own call there."""


@contextmanager
def fewer_helpers(forks: Forks | None) -> Iterator[None]:
    """Let `ray.init` start the head of a cluster and its store of objects, and nothing besides; `forks` has workers."""
    from ray._private import services
    from ray._private.node import Node

    with ExitStack() as patches:
        for name in _NEEDLESS:
            if hasattr(Node, name):
                patches.enter_context(patch.object(Node, name, lambda *given, **named: None))
        start = getattr(services, "start_ray_process", None)
        if start is not None:

            def lean(command: list[str], *given: Any, **named: Any) -> Any:
                found = start(with_forks(without_agents(command), forks), *given, **named)
                if forks is not None and any(word.startswith(_WORKER) for word in command):
                    forks.prepare(found.process.pid)
                return found

            patches.enter_context(patch.object(services, "start_ray_process", lean))
        yield


def without_agents(command: list[str]) -> list[str]:
    """Return a raylet's command with stand-ins for its agents, whose ports it finds said; any other as it is."""
    import ray

    raylet: Any = ray._raylet  # what is compiled has no types
    said = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
    known = all(hasattr(raylet, name) for name in ("persist_port", *_PORTS))
    if not known or not {"--session_dir", "--node_id", *_AGENTS} <= said.keys():
        return command
    for name, port in _PORTS.items():
        raylet.persist_port(said["--session_dir"], said["--node_id"], getattr(raylet, name), port)
    idle = subprocess.list2cmdline([sys.executable, "-I", "-S", str(Path(stand_in.__file__))])
    return [f"{name}={idle}" if (name := word.partition("=")[0]) in _AGENTS else word for word in command]


def with_forks(command: list[str], forks: Forks | None) -> list[str]:
    """Return a raylet's command with workers that are forked; any other as it is."""
    if forks is None:
        return command
    return [
        _WORKER + forks.command(word.removeprefix(_WORKER)) if word.startswith(_WORKER) else word
        for word in command
    ]
