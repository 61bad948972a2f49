"""Workers are forked from one process that has imported all, and are what Ray would have started."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fedsim.execution import cluster, ray_forks
from fedsim.execution.ray_forks import Forks, place, program_of

pytestmark = [
    pytest.mark.skipif(not ray_forks.POSSIBLE, reason="workers are not forked here"),
    pytest.mark.xdist_group("forks"),  # one process has the one that imports torch
]
WORKER = """
import json, os, resource, signal, sys
print(json.dumps({
    "argv": sys.argv[1:], "folder": os.getcwd(), "said": os.environ.get("SAID"), "home": os.environ.get("HOME"),
    "group": os.getpgid(0) == os.getpid(), "parent": os.getppid(), "torch": "torch" in sys.modules,
    "extra": os.read(int(sys.argv[1]), 9).decode(), "name": __name__,
    "blocked": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "children": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    "most_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
}), flush=True)
"""
SETUP = """
import sys
print("set up", *sys.argv[1:])
"""
MOST_FILES = 400
CONTEXT = "--serialized-runtime-env-context="


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    made = Forks()
    answered(shlex.split(made.command(""))[-1], b"")  # it has imported all: who asks waits for a while only
    yield made
    made.close()


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command as Ray has it for a worker, which reads from the file that it is told the number of."""
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "setup.py").write_text(SETUP)
    return [sys.executable, str(tmp_path / "setup.py"), str(tmp_path / "worker.py")]


def launched(forks: Forks, words: list[str], place: Path, *given: int, **more: str) -> str:
    """Do what a raylet does, and return what the worker writes."""
    command = shlex.split(forks.command(subprocess.list2cmdline(words)))
    environment = {"SAID": "here", "PATH": os.environ["PATH"]} | more
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2); "
    )
    limited += "os.execv(sys.argv[2], sys.argv[2:])"
    command = [sys.executable, "-c", limited, str(MOST_FILES), *command]
    done = subprocess.run(
        command,
        capture_output=True,
        check=True,
        cwd=place,
        env=environment,
        pass_fds=given,
        text=True,
        timeout=60,
    )
    assert not done.stderr
    return done.stdout


def test_a_worker_is_forked_and_goes_on_as_what_was_started(
    forks: Forks, words: list[str], tmp_path: Path
) -> None:
    reads, writes = (os.dup2(end, 300 + end) for end in os.pipe())
    os.write(writes, b"more")
    found = json.loads(launched(forks, [*words, str(reads), "--language=PYTHON", "--x=1"], tmp_path, reads))
    os.close(reads)
    os.close(writes)
    assert found == {
        "argv": [str(reads), "--x=1"],
        "folder": str(tmp_path),
        "said": "here",
        "home": None,
        "group": True,
        "parent": forks.pid,
        "torch": True,
        "extra": "more",
        "name": "__main__",
        "blocked": True,
        "children": True,
        "most_files": MOST_FILES,
    }


def test_one_with_an_environment_of_its_own_is_started_as_ever(
    forks: Forks, words: list[str], tmp_path: Path
) -> None:
    context = CONTEXT + json.dumps({"command_prefix": [], "env_vars": {"A": "1"}})
    assert launched(forks, [*words, context], tmp_path).startswith(f"set up {words[2]} {CONTEXT}")


def answered(name: str, said: bytes) -> bytes:
    """Say something at the socket of this name, and return what comes back when it was read."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"\0{name}")
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        return peer.recv(1)


def test_who_says_nothing_or_nonsense_disturbs_nobody(forks: Forks, words: list[str], tmp_path: Path) -> None:
    name = shlex.split(forks.command(""))[-1]
    for said in (b"", b"\0\0\0\0\0\0\0\4nope", b"x"):
        assert answered(name, said) == b""
    test_a_worker_is_forked_and_goes_on_as_what_was_started(forks, words, tmp_path)


def test_a_file_that_has_no_place_is_known_before_a_worker_is_promised(
    words: list[str], tmp_path: Path
) -> None:
    forks = Forks()
    psutil.Process(forks.pid).rlimit(psutil.RLIMIT_NOFILE, (256, 256))
    reads, writes = (os.dup2(end, 300 + end) for end in os.pipe())
    assert launched(forks, [*words, str(reads)], tmp_path, reads) == f"set up {words[2]} {reads}\n"
    os.close(reads)
    os.close(writes)
    forks.close()


def test_without_a_raylet_nothing_is_started(words: list[str], tmp_path: Path) -> None:
    forks = Forks()
    forks.close()
    assert launched(forks, words, tmp_path, RAY_RAYLET_PID="1") == ""


def test_places_of_modules_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, None, 7])
    forks = Forks()
    assert psutil.Process(forks.pid).status() != psutil.STATUS_ZOMBIE
    forks.close()
    assert not psutil.pid_exists(forks.pid)


def test_ray_starts_the_workers_where_none_can_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, "a\0b"])
    monkeypatch.setattr(cluster, "load", lambda own: None)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    assert cluster.begun(own=True) is None


def test_an_interrupt_while_ray_is_imported_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(own: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "load", interrupted)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    before = psutil.Process().children()
    with pytest.raises(KeyboardInterrupt) as told:
        cluster.begun(own=True)
    assert told.value
    assert psutil.Process().children() == before


def test_without_the_process_workers_are_started_as_ever(words: list[str], tmp_path: Path) -> None:
    forks = Forks()
    os.kill(forks.pid, signal.SIGKILL)
    forks._process.wait()
    forks.prepare(1)
    assert launched(forks, [*words, "7"], tmp_path) == f"set up {words[2]} 7\n"
    forks.close()


def test_the_process_ends_with_the_one_that_began_it_and_does_not_hear_ctrl_c() -> None:
    began = (
        "import signal, time; from fedsim.execution.ray_forks import Forks; forks = Forks(); "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "print(forks.pid, forks.command(''), flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", began], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            pid, *command = shlex.split(process.stdout.readline())
            forks = psutil.Process(int(pid))
            os.killpg(process.pid, signal.SIGINT)
            assert answered(command[-1], b"x") == b"", "it still listens"
        finally:
            process.kill()
    assert not psutil.wait_procs([forks], timeout=20)[1]


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["python", "setup.py", "worker.py", "--a=1", "--language=PYTHON"], ["worker.py", "--a=1"]),
        (["python", "setup.py", "-S", "-s", "worker.py", "-S"], ["worker.py", "-S"]),
        (["python", "setup.py", "worker.py", CONTEXT + "{}"], ["worker.py"]),
        (["python", "setup.py", "worker.py", CONTEXT + '{"env_vars": {}}'], ["worker.py"]),
    ],
)
def test_the_program_is_what_is_left_of_the_command(words: list[str], program: list[str]) -> None:
    assert program_of(words) == program


def test_files_get_their_numbers_though_others_have_them() -> None:
    pipes = [os.pipe() for _ in range(3)]
    for number, (_, writes) in enumerate(pipes):
        os.write(writes, bytes([number]))
    (a, _), (b, _), (c, _) = pipes
    free = max(max(pipe) for pipe in pipes) + 5
    place({a: b, b: c, free: a})
    assert [os.read(number, 1) for number in (a, b, free)] == [b"\1", b"\2", b"\0"]
    for number in (a, b, free, *(writes for _, writes in pipes)):
        os.close(number)


def test_what_is_imported_has_no_threads_and_asks_no_gpu() -> None:
    tried = (
        "import os, torch\n"
        "def asked(*_): raise AssertionError('a GPU was asked for')\n"
        "torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = asked\n"
        "import fedsim.execution.workers, fedsim.execution.ray_actors\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = os.environ | ray_forks._ONE_THREAD
    done = subprocess.run(
        [sys.executable, "-c", tried], capture_output=True, check=True, env=environment, text=True
    )
    assert done.stdout == "1\n"
