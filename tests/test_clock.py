"""What a run computes does not depend on when and where it is made: another day, another time zone, another process."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

from fedsim.manifest import read_manifest
from small import run, small

LATER = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
import fedsim.run
from small import run, small

now = time.time
time.time = lambda: now() + 400 * 86400
time.time_ns = lambda: int(time.time() * 1e9)

class Later(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

fedsim.run.datetime = SimpleNamespace(datetime=Later, UTC=UTC)  # not for all: compiled modules want the class itself
print(run(small(), Path(sys.argv[1])).digest)
"""


def test_a_run_made_four_hundred_days_later_is_the_same(root: Path, tmp_path: Path) -> None:
    today = run(small(), tmp_path / "today")
    done = subprocess.run(
        [sys.executable, "-c", LATER, tmp_path / "later"],
        env=os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}", "TZ": "Pacific/Kiritimati"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    before, after = (_written(tmp_path / day / "small") for day in ("today", "later"))
    assert timedelta(days=399) < after - before < timedelta(days=401), "the clock did go wrong"
    assert done.stdout.strip() == today.digest


def _written(folder: Path) -> datetime:
    return datetime.fromisoformat(str(read_manifest(folder)["started"]))
