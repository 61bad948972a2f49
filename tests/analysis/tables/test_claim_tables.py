from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedsim import analysis
from fedsim.analysis.opening.study import Study
from fedsim.cli.main import app
from fedsim.common.errors import ConfigError
from synthetic_runs import evals_table
from synthetic_studies import write_study

CLAIMS = ["mean_percent: fedlf > fedavg, fedfv", "std_percent: fedavg = fedfv ± 2"]


def made(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
    """Return a run of two evaluations, the last one 10 points above the one before."""
    if levels == {"rule": "fedlf", "data": "iid"}:
        return None
    mean = {"fedavg": 50, "fedfv": 60, "fedlf": 70}[levels["rule"]] + 0.1 * (-1) ** seed
    spread = 5 + 0.01 * seed * (levels["rule"] == "fedfv")
    ends = np.array([mean - spread, mean + spread])
    return {"evals": evals_table(np.stack([ends - 10, ends]) / 100, n=1000)}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    axes = {"rule": ("fedavg", "fedfv", "fedlf"), "data": ("shards", "iid")}
    return write_study(tmp_path_factory.mktemp("claims") / "rules", made, axes=axes, seeds=range(1, 9))


def shown(table: Any) -> list[str]:
    console = Console(width=140, file=io.StringIO(), record=True)
    console.print(table)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def compared(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)], catch_exceptions=False)
    return " ".join(result.output.split())


def test_each_pair_has_its_difference_its_p_value_and_its_verdict(study: Study) -> None:
    lines = shown(analysis.claim_table(study, CLAIMS))
    assert "mean percent: fedavg < fedlf shards holds +20 [+20, +20] <0.001" in lines
    assert "mean percent: fedavg < fedlf iid not run" in lines
    assert any(
        line.startswith("std percent: fedavg = fedfv ± 2 iid holds +0.045 [+0.0") and line.endswith(" <0.001")
        for line in lines
    )
    assert "Student's t, corrected for 4 pairs (Holm)." in " ".join(lines)


def test_a_claim_table_says_if_pairs_have_different_seeds(tmp_path: Path) -> None:
    def partly(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        return None if levels["rule"] == "fedlf" and seed > 5 else made(levels, seed)

    axes = {"rule": ("fedavg", "fedfv", "fedlf"), "data": ("shards",)}
    study = write_study(tmp_path / "rules", partly, axes=axes, seeds=range(1, 9))
    lines = " ".join(shown(analysis.claim_table(study, ["mean_percent: fedavg < fedfv < fedlf"])))
    assert "Pairs have 5 to 8 seeds, as some runs are missing or have no value: p values are not yet" in lines


def test_the_command_tests_claims_over_the_last_evaluations_too(study: Study) -> None:
    claims = [word for claim in CLAIMS for word in ("--claim", claim)]
    assert "+20 [+20, +20]" in compared(study.folder, *claims)
    text = compared(study.folder, *claims, "--last", "2")
    assert "rules, at the end of each run, averaged over the last 2 evaluations" in text
    (first, *_) = analysis.claim_results(study.asked({"last": 2}), CLAIMS)
    assert first.pairs[0].differences == pytest.approx(np.full(8, 20.0))


@pytest.mark.parametrize(
    "more", [["--metric", "gini"], ["--axis", "rule"], ["--components"], ["--test", "t"]]
)
def test_the_command_takes_no_other_question_beside_claims(study: Study, more: list[str]) -> None:
    with pytest.raises(
        ConfigError, match="--claim: it is about one study at one point, and takes no other study"
    ):
        compared(study.folder, "--claim", CLAIMS[0], *more)
    with pytest.raises(ConfigError, match="--claim: it is about one study at one point"):
        compared(study.folder, study.folder, "--claim", CLAIMS[0])
    with pytest.raises(ConfigError, match="--published: it compares one study with its paper"):
        compared(study.folder, "--claim", CLAIMS[0], "--published")


def test_claims_are_for_studies(study: Study) -> None:
    run = study.cells[0].folder
    with pytest.raises(ConfigError, match="--claim: it is for studies"):
        compared(run, run, "--claim", CLAIMS[0])
