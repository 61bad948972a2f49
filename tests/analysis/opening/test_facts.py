"""What a run was, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim import analysis
from fedsim.analysis.opening.facts import facts
from synthetic_runs import write_run


def test_a_run_says_how_jobs_were_lost_and_who_attacked(tmp_path: Path) -> None:
    run = analysis.open_run(write_run(tmp_path / "run"))
    attacks = [{"name": "zero", "share": 0.2}, {"name": "scale", "factor": 3}]
    run.config.update({"dropout": {"leave": "abort", "chance": 0.1}, "adversary": attacks})
    told = facts(run)
    assert ("dropout", "leave = abort, chance = 0.1") in told
    assert [text for name, text in told if name == "adversary"] == ["zero, share = 0.2", "scale, factor = 3"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"workers": 2, "threads": 1}, "cpu, 2 workers"),
        ({"workers": 0, "threads": 1}, "cpu, in one process"),
        ({"workers": 0, "threads": 4}, "cpu, in one process with 4 threads"),
        ({"workers": 0, "threads": None}, "cpu, in one process"),
        ({"workers": None, "threads": None}, "cpu"),
    ],
)
def test_a_run_says_on_what_it_was_computed(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", device="cpu", hardware={"cores": 8}, **said)
    assert dict(facts(analysis.open_run(folder)))["computed on"] == f"{words}, 8 cores"
