"""`fedsim clients`: who is worst off, and how they took part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim import analysis
from fedsim.cli.main import main
from fedsim.data.federated_data import Task
from fedsim.runs.simulate import simulate

DRAWS = np.random.default_rng(0)
TOWN = np.repeat(["york", "bonn", "oslo"], [20, 40, 60])
TASK = Task.from_arrays(DRAWS.normal(size=(120, 4)), DRAWS.integers(2, size=120), TOWN)
TABLES: dict[str, Any] = {
    "name": "towns",
    "pacing": {"preset": "sync", "clients": 2},
    "stop": {"steps": 4},
    "world": {"scenario": "diurnal"},
}


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[object, list[str]]:
    with pytest.raises(SystemExit) as ended:
        main(["clients", *map(str, words)])
    told = capsys.readouterr()
    return ended.value.code, (told.out + told.err).splitlines()


def test_the_worst_off_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [result] = simulate(TABLES, task=TASK, out=tmp_path, workers=0)
    final, jobs = result.run.final(), result.run.frame("jobs")
    code, lines = printed(capsys, result.folder)
    assert code == 0
    assert lines[0].startswith("towns: clients, worst off first on the test split")
    rows = [line.split() for line in lines if line.split()[:1] in (["0"], ["1"], ["2"])]
    assert [row[:5] for row in rows] == [
        [
            str(k),
            ("bonn", "oslo", "york")[k],
            f"{100 * final.accuracy[k]:.3g}",
            str(final.n[k]),
            str((jobs["client"] == k).sum()),
        ]
        for k in np.argsort(final.accuracy, kind="stable").tolist()
    ]
    code, lines = printed(capsys, result.folder, "-n", 1, "--split", "test")
    assert lines[0].startswith("towns: clients, the 1 worst off of 3 on the test split")
    assert sum(line.split()[:1] in (["0"], ["1"], ["2"]) for line in lines) == 1
    assert list(analysis.run_clients(result.run)["name"]) == ["bonn", "oslo", "york"]


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, tmp_path / "none")[0] == 2
    [result] = simulate(TABLES, task=TASK, out=tmp_path, workers=0)
    code, lines = printed(capsys, result.folder, "--split", "valid")
    assert code == 2
    assert "no evaluation on split 'valid' was recorded; found test" in " ".join(lines)
