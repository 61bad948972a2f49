from __future__ import annotations

import io
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedsim import analysis
from fedsim.analysis.opening.study import Study
from fedsim.analysis.report.document import Text
from fedsim.cli.main import app, main
from synthetic_runs import evals_table
from synthetic_studies import write_study

PUBLISHED = {
    "source": "A. Uthor (2020), table 3",
    "runs": 5,
    "clients": {"shirt": 1},
    "rows": [
        {"levels": {"rule": "fedavg"}, "values": {"mean_percent": [50.0, 0.5], "shirt": 55.25}},
        {"levels": {"rule": "fedfv"}, "values": {"mean_percent": [70.0, 0.5]}},
    ],
    "claims": {
        "FedFV is better": "mean_percent: fedfv > fedavg",
        "but less even": "std_percent: fedfv > fedavg",
    },
}


def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
    mean = {"fedavg": 50, "fedfv": 60}[levels["rule"]] + 0.1 * (-1) ** seed
    return {"evals": evals_table(np.array([[mean - 5, mean + 5 + 0.01 * seed]]) / 100, n=1000)}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("published") / "table3"
    axes = {"rule": ("fedavg", "fedfv")}
    return write_study(folder, made, axes=axes, seeds=range(1, 9), published=PUBLISHED)


def shown(tables: Any) -> str:
    console = Console(width=140, file=io.StringIO(), record=True)
    for table in tables:
        console.print(table)
    return " ".join(console.export_text().split())


@pytest.mark.parametrize(("columns", "lines"), [(120, 2), (30, 3)])
def test_intervals_lie_below_the_means_in_a_terminal_that_is_too_narrow(
    columns: int, lines: int, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    cells = [*analysis.published_tables(study)[0].columns[1].cells]
    assert [str(cell).count("\n") + 1 for cell in cells] == [lines] * 2


def test_without_enough_seeds_the_table_says_that_nothing_is_tested(tmp_path: Path) -> None:
    axes = {"rule": ("fedavg", "fedfv")}
    few = write_study(tmp_path / "few", made, axes=axes, seeds=range(1, 3), published=PUBLISHED)
    assert "Fewer than 3 seeds have no interval, and no value is tested." in shown(
        analysis.published_tables(few)
    )


@pytest.mark.parametrize("runs", [None, 1])
def test_a_spread_of_no_known_number_of_runs_is_said_not_to_be_tested(
    tmp_path: Path, runs: int | None
) -> None:
    published = {key: value for key, value in PUBLISHED.items() if key != "runs"}
    published |= {} if runs is None else {"runs": runs}
    axes = {"rule": ("fedavg", "fedfv")}
    study = write_study(tmp_path / "table3", made, axes=axes, seeds=range(1, 9), published=published)
    found = "is missing" if runs is None else "is 1"
    words = f"2 values with ± are not tested: published.runs, the number of runs behind a value, {found}, and a test"
    assert words in shown(analysis.published_tables(study)[:1])


def test_the_tables_show_ours_theirs_and_the_verdicts(study: Study) -> None:
    text = shown(analysis.published_tables(study))
    assert "table3 beside A. Uthor (2020), table 3" in text
    assert "50 [49.9, 50.1]" in text
    assert " 50 ± 0.5" in text
    assert "≠ 70 ± 0.5" in text
    assert "≠ 50" not in text
    assert "55.25" in text
    assert "≠ marks the 1 of 2 values that differ" in text
    assert "FedFV is better holds 1 / 0 / 0" in text
    assert "but less even cannot be told 0 / 0 / 1" in text


def swinging(levels: dict[str, str], seed: int) -> dict[str, Any]:
    """Return a run of two evaluations, the last one 10 points above the one before."""
    mean = {"fedavg": 50, "fedfv": 60}[levels["rule"]] + 0.1 * (-1) ** seed
    return {"evals": evals_table(np.array([[mean - 10, mean - 10], [mean, mean]]) / 100, n=1000)}


def test_the_title_says_that_evaluations_are_averaged(tmp_path: Path) -> None:
    study = write_study(
        tmp_path / "t", swinging, axes={"rule": ("fedavg", "fedfv")}, seeds=(1, 2, 3, 4), published=PUBLISHED
    )
    averaged = study.asked({"last": 2})
    text = shown(analysis.published_tables(averaged))
    assert "t, averaged over the last 2 evaluations, beside A. Uthor (2020), table 3" in text
    assert "45 [44.8, 45.2]" in text
    assert "50 [49.8, 50.2]" in shown(analysis.published_tables(study))
    told = CliRunner().invoke(app, ["compare", str(tmp_path / "t"), "--published", "--last", "2"]).output
    assert "45 [44.8, 45.2]" in told
    page = analysis.write_page(
        analysis.study_document(averaged, tmp_path / "report.html"), tmp_path / "report.html"
    )
    document = unescape(page.read_text(encoding="utf-8"))
    assert "Means over seeds, averaged over the last 2 evaluations, with 95 % t intervals" in document
    assert "higher minus lower, averaged over the last 2 evaluations" in document


def test_pairs_that_were_not_run_are_counted_apart(tmp_path: Path) -> None:
    claims = {
        "FedFV is better": "mean_percent: fedavg < fedfv, fedlf",
        "FedLF first": "mean_percent: fedfv < fedlf",
    }
    study = write_study(
        tmp_path / "part",
        lambda levels, seed: None if levels["rule"] == "fedlf" else made(levels, seed),
        axes={"rule": ("fedavg", "fedfv", "fedlf")},
        seeds=range(1, 9),
        published={"source": "A. Uthor (2020)", "claims": claims},
    )
    text = shown(analysis.published_tables(study))
    assert "FedFV is better cannot be told 1 / 0 / 0 mean percent: +10" in text
    assert "1 not run fedavg < fedfv" in text
    assert "FedLF first not run 1 not run pairs:" in text
    assert "corrected for 1 pair (Holm)" in text


@pytest.mark.parametrize(
    ("done", "note"),
    [
        (
            {"fedavg"},
            "4 published rows were not run: rule=fedfv, rule=fedlf, rule=fedlf lr=high and 1 more.",
        ),
        ({"fedavg", "fedlf"}, "2 published rows were not run: rule=fedfv, rule=afl."),
        ({"fedavg", "fedlf", "fedfv"}, "1 published row was not run: rule=afl."),
        (set(), "5 published rows were not run: rule=fedavg, rule=fedfv, rule=fedlf and 2 more."),
    ],
)
def test_published_rows_that_were_not_run_are_named(tmp_path: Path, done: set[str], note: str) -> None:
    rules = ("fedavg", "fedfv", "fedlf", "afl")

    def partly(levels: dict[str, str], seed: int) -> dict[str, Any] | None:
        mean = 0.5 + 0.001 * seed
        return {"evals": evals_table([[mean, mean]], n=1000)} if levels["rule"] in done else None

    places = [{"rule": "fedavg"}, {"rule": "fedfv"}, {"rule": "fedlf"}]
    places += [{"rule": "fedlf", "lr": "high"}, {"rule": "afl"}]
    values = [{"mean_percent": 50.0} if "lr" not in place else {"std_percent": 1.0} for place in places]
    rows = [{"levels": place, "values": value} for place, value in zip(places, values, strict=True)]
    study = write_study(
        tmp_path / "part",
        partly,
        axes={"rule": rules, "lr": ("high",)},
        seeds=(1, 2, 3),
        published={"source": "A. Uthor (2020)", "rows": rows},
    )
    (table,) = analysis.published_tables(study)
    assert str(table.caption).endswith(note)
    texts = [
        block.text for block in analysis.study_document(study, tmp_path).blocks if isinstance(block, Text)
    ]
    assert (note in texts) == bool(done)


def test_frames_hold_what_the_tables_show(study: Study) -> None:
    frames = analysis.published_frames(study)
    values, claims = frames["published.values"], frames["published.claims"]
    assert values[["rule", "metric", "published"]].to_numpy().tolist() == [
        ["fedavg", "mean_percent", 50.0],
        ["fedavg", "shirt", 55.25],
        ["fedfv", "mean_percent", 70.0],
    ]
    assert values["mean"].tolist() == pytest.approx([50.0225, 55.045, 60.0225])
    assert claims[["claim", "verdict", "lower", "higher"]].to_numpy().tolist() == [
        ["FedFV is better", "holds", "fedavg", "fedfv"],
        ["but less even", "cannot be told", "fedavg", "fedfv"],
    ]


def test_the_command_shows_them_alone(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["compare", str(study.folder), "--published"])
    out = capsys.readouterr().out
    assert "beside A. Uthor" in out
    assert "mean ± standard deviation over seeds" not in out


@pytest.mark.parametrize("more", [["--metric", "gini"], ["--axis", "rule"]])
def test_the_command_takes_no_other_question_beside_it(
    study: Study, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["compare", str(study.folder), "--published", *more])
    assert "--published: it compares one study with its paper" in capsys.readouterr().err


def test_the_report_has_both(study: Study, tmp_path: Path) -> None:
    page = analysis.write_page(
        analysis.study_document(study, tmp_path / "report.html"), tmp_path / "report.html"
    )
    text = unescape(re.sub("<[^>]+>", " ", page.read_text(encoding="utf-8")))
    text = " ".join(text.split())
    assert "The study repeats A. Uthor (2020), table 3." in text
    assert re.search(r"fedfv 8 60\.0\d+ [\d.]+ [\d.]+ 70", text)
    assert re.search(r"FedFV is better holds", text)
