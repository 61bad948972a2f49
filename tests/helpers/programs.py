"""Programs in processes of their own, forked from one that has imported what takes seconds and done nothing else."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_WRITTEN = ("out", "err")


@dataclass(frozen=True)
class Done:
    """How a program ended, and what it wrote."""

    code: int | None
    out: str
    err: str


def python(code: str, place: Path) -> Done:
    """Run `code` in the folder `place` as `python -W error -c` would."""
    return _run(code, [], place, {})


def fedsim(*arguments: str, place: Path, **environment: str) -> Done:
    """Run the command `fedsim` in the folder `place`, with more variables of the environment."""
    return _run("from fedsim.cli.main import main\nmain()", ["fedsim", *arguments], place, environment)


def _run(code: str, argv: list[str], place: Path, environment: dict[str, str]) -> Done:
    _CONTEXT.set_forkserver_preload(["fedsim.studies.cell", "fedsim.analysis.report.report"])
    with tempfile.TemporaryDirectory() as folder:
        given = (code, argv, place, environment, Path(folder))
        process = _CONTEXT.Process(target=_child, args=given)
        process.start()
        process.join()
        return Done(process.exitcode, *((Path(folder) / name).read_text() for name in _WRITTEN))


def _child(code: str, argv: list[str], place: Path, environment: dict[str, str], written: Path) -> None:
    for stream, name in enumerate(_WRITTEN, start=1):
        with (written / name).open("w") as file:
            os.dup2(file.fileno(), stream)
    os.fsync = lambda handle: None  # as in `conftest.py`
    os.chdir(place)
    os.environ.update(environment)
    if argv:
        sys.argv = argv
    else:
        warnings.simplefilter("error")
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
