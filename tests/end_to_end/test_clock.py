"""What a run computes does not depend on when and where it is made: another day, another time zone, another process."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import programs
from fedsim.records.manifest import read_manifest
from small import run, small

LATER = """
import os, time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
import fedsim.runs.session
from small import run, small

os.environ["TZ"] = "Pacific/Kiritimati"
time.tzset()
now = time.time
time.time = lambda: now() + 400 * 86400
time.time_ns = lambda: int(time.time() * 1e9)

class Later(datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

fedsim.runs.session.datetime = SimpleNamespace(datetime=Later, UTC=UTC)
print(time.strftime("%z"), run(small(), Path("later")).digest)
"""


def test_a_run_made_four_hundred_days_later_is_the_same(tmp_path: Path) -> None:
    today = run(small(), tmp_path / "today")
    done = programs.python(LATER, tmp_path)
    assert done.code == 0, done.err[-2000:]
    before, after = (_written(tmp_path / day / "small") for day in ("today", "later"))
    assert timedelta(days=399) < after - before < timedelta(days=401), "the clock did go wrong"
    assert done.out.split() == ["+1400", today.digest]


def _written(folder: Path) -> datetime:
    return datetime.fromisoformat(str(read_manifest(folder)["started"]))
