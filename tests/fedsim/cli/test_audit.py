"""`fedsim audit` says of runs and of studies what their memory was worth."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from fedsim import analysis
from fedsim.analysis.statistics.audit import audit_frame, by_age
from fedsim.analysis.tables.audit_tables import advice, age_rows, audit_groups
from fedsim.cli.main import app
from fedsim.common.errors import RunError
from fedsim.common.files import write_json
from small import run, small

AUDIT = {"every": 2, "clients": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(small(audit=AUDIT), tmp_path_factory.mktemp("runs")).folder


def test_a_run_is_told_by_age(folder: Path) -> None:
    result = CliRunner().invoke(app, ["audit", str(folder)])
    assert result.exit_code == 0
    assert "remembered updates of small, 1 run" in result.output
    assert "what steps of small did to clients" in result.output
    ages = by_age(audit_frame(analysis.open_run(folder)))
    for row in age_rows(ages):
        assert row[0] in result.output
        assert row[2] in result.output


def test_runs_of_a_study_that_differ_by_their_seed_are_one_group(tmp_path: Path) -> None:
    cells = []
    for seed in (1, 2):
        for rule in ("fedavg", "fedfv"):
            config = small(name=f"{rule}-{seed}", seed=seed, algorithm={"name": rule}, audit=AUDIT)
            done = run(config, tmp_path)
            cells.append(
                {
                    "levels": {"rule": rule},
                    "seed": seed,
                    "folder": str(done.folder.relative_to(tmp_path)),
                    "status": "done",
                    "digest": done.digest,
                    "error": None,
                }
            )
    content = {
        "format": 1,
        "name": "two",
        "description": "",
        "axes": {"rule": ["fedavg", "fedfv"]},
        "seeds": [1, 2],
    }
    write_json(tmp_path / "study.json", content | {"compare": {}, "cells": cells})
    groups = audit_groups([tmp_path])
    assert {label: len(runs) for label, runs in groups.items()} == {"fedavg": 2, "fedfv": 2}
    result = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "remembered updates of fedavg, 2 runs" in result.output
    assert "No absent client was remembered" in result.output


def test_runs_and_studies_of_equal_names_stay_apart(folder: Path, tmp_path: Path) -> None:
    other = run(small(seed=9, audit=AUDIT), tmp_path / "other").folder
    assert [runs[0].manifest["seed"] for runs in audit_groups([folder, other]).values()] == [3, 9]
    studies = [tmp_path / name for name in ("one", "two")]
    for study, run_folder in zip(studies, (folder, other), strict=True):
        study.mkdir()
        (study / "small").symlink_to(run_folder)
        cell = {"levels": {"rule": "fedlf"}, "seed": 3, "folder": "small", "status": "done"}
        content = {"format": 1, "name": "same", "axes": {"rule": ["fedlf"]}, "seeds": [3], "cells": [cell]}
        write_json(study / "study.json", content)
    groups = audit_groups([*studies, studies[0]])
    assert {label: len(runs) for label, runs in groups.items()} == {f"{s}: fedlf": 1 for s in studies}


def test_a_study_of_which_nothing_is_done_is_an_error(tmp_path: Path) -> None:
    content = {"format": 1, "name": "none", "axes": {}, "seeds": [1], "cells": []}
    write_json(tmp_path / "study.json", content)
    with pytest.raises(RunError, match="no run is done"):
        audit_groups([tmp_path])


def test_advice_says_what_is_known_beyond() -> None:
    def ages(*lows: float) -> pd.DataFrame:
        return pd.DataFrame({"from_age": range(len(lows)), "to_age": range(len(lows)), "agreement_low": lows})

    older = advice(ages(0.9, 0.8, 0.7, 0.4, 0.9))
    assert older.endswith("up to an age of 2 steps; of older ones it is not certain.")
    assert "up to an age of 2 steps; none was older" in advice(ages(0.9, 0.8, 0.7))
    few = advice(ages(0.9, 0.8, float("nan"), 0.4))
    assert few.endswith("up to an age of 1 step; too few clients had updates of age 2 to tell.")
    assert "not certain at any age" in advice(ages(0.9, 0.5))
    assert "nothing to say" in advice(ages(0.9))
