"""Ray starts without the programs that a run does not ask."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fedsim import cluster, lean_ray, stand_in

SAID = ["--session_dir={0}", "--node_id=" + 28 * "ab"]
AGENTS = [
    "--dashboard_agent_command=python agent.py --grpc-port=0",
    "--runtime_env_agent_command=python main.py",
]


@pytest.fixture(autouse=True)
def _loaded() -> None:
    """Ray is imported with the environment that it needs for all later tests of the same process."""
    cluster.load(own=True)


def test_a_raylet_gets_stand_ins_for_its_agents_and_is_told_their_ports(tmp_path: Path) -> None:
    said = [word.format(tmp_path) for word in SAID]
    found = lean_ray.without_agents(["raylet", *said, *AGENTS, "--head"])
    assert (found[:3], found[-1]) == (["raylet", *said], "--head")
    for word, agent in zip(found[3:5], AGENTS, strict=True):
        name, _, command = word.partition("=")
        assert agent.startswith(f"{name}=")
        assert command == f"{sys.executable} -I -S {stand_in.__file__}"
    assert {file.name.rsplit("_", 1)[0]: file.read_text() for file in tmp_path.iterdir()} == {
        "metrics_agent_port": "-1",
        "metrics_export_port": "-1",
        "dashboard_agent_listen_port": "-1",
        "runtime_env_agent_port": "1",
    }


@pytest.mark.parametrize(
    "less", [["raylet", *SAID], ["gcs_server", *AGENTS], ["raylet", *SAID, AGENTS[0]], []]
)
def test_other_commands_stay_as_they_are(less: list[str]) -> None:
    assert lean_ray.without_agents(less) == less


@pytest.mark.parametrize("wait_s", [0, 1])
def test_a_stand_in_ends_with_the_process_that_started_it(wait_s: int) -> None:
    started = (
        "import os, subprocess, sys, time; "
        f"child = subprocess.Popen([sys.executable, {stand_in.__file__!r}], "
        "env={'RAY_RAYLET_PID': str(os.getpid())}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
        f"time.sleep({wait_s}); print(child.pid, child.poll())"
    )
    said = subprocess.run([sys.executable, "-c", started], capture_output=True, check=True, text=True).stdout
    pid, ended = said.split()
    assert ended == "None"
    left = [process for process in psutil.process_iter() if process.pid == int(pid)]
    assert not psutil.wait_procs(left, timeout=10)[1]


@pytest.mark.ray
def test_nothing_but_workers_and_stand_ins_run_below_a_raylet(ray_cluster: None) -> None:
    import ray

    session = ray._private.worker._global_node.get_session_dir_path()
    ours = [p for p in psutil.Process().children(recursive=True) if session in " ".join(p.cmdline())]
    assert {Path(p.cmdline()[0]).name for p in ours} >= {"gcs_server", "raylet"}
    raylet = next(p for p in ours if Path(p.cmdline()[0]).name == "raylet")
    below = [" ".join(p.cmdline()) for p in raylet.children()]
    assert sum(stand_in.__file__ in command for command in below) == 2
    assert not [command for command in below if "agent" in command.lower()]
