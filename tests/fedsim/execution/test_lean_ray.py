"""Ray starts without the programs that a run does not ask."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fedsim.execution import cluster, lean_ray, ray_launch, stand_in
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.ray_forks import POSSIBLE, Forks

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


def test_a_raylet_has_its_workers_forked() -> None:
    words = ["raylet", "--python_worker_command=python setup.py", "--java_worker_command=java"]
    assert lean_ray.with_forks(words, None) == words
    forks = Forks()
    assert lean_ray.with_forks(words, forks) == [
        words[0],
        f"--python_worker_command={forks.command('python setup.py')}",
        words[2],
    ]
    forks.close()


def below(process: psutil.Process) -> list[tuple[psutil.Process, str]]:
    """Return the processes that a process started, and their commands."""
    found = []
    for child in process.children():
        with suppress(psutil.Error):  # it has ended meanwhile
            found.append((child, " ".join(child.cmdline())))
    return found


@pytest.mark.ray
def test_nothing_but_stand_ins_run_below_a_raylet(ray_cluster: None, two_workers: RayPool) -> None:
    import ray

    there = two_workers.processes()
    ray.get([process.call.remote([], "ready") for process in (*there.clients, there.server)])
    session = ray._private.worker._global_node.get_session_dir_path()
    ours = {command: process for process, command in below(psutil.Process()) if session in command}
    names = {Path(command.split()[0]).name: process for command, process in ours.items()}
    assert names.keys() >= {"gcs_server", "raylet"}
    started = [command for _, command in below(names["raylet"]) if ray_launch.__file__ not in command]
    assert sum(stand_in.__file__ in command for command in started) == 2
    if POSSIBLE:
        assert len(started) == 2, started
        [forks] = [process for process, command in below(psutil.Process()) if "ray_forks" in command]
        assert sum("ray::" in command for _, command in below(forks)) >= 3, "two clients and a server"
    else:
        assert not [command for command in started if "agent.py" in command]
