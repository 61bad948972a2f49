from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from fedsim.analysis.opening.study import Study
from fedsim.analysis.opening.study_file import open_study
from fedsim.analysis.plots.paired_differences import paired_differences
from fedsim.analysis.plots.study_curves import on_one_grid
from fedsim.analysis.report.comparison_blocks import difference_block
from fedsim.analysis.report.report import write_page
from fedsim.analysis.report.report_files import as_csv, as_latex, write_tables
from fedsim.analysis.report.study_findings import study_findings
from fedsim.analysis.report.study_report import study_document
from fedsim.analysis.statistics.paired.differences import differences
from fedsim.analysis.tables.study_tables import study_frames
from fedsim.cli.main import app
from fedsim.common.errors import ConfigError, FolderError
from pages import Page
from synthetic_runs import evals_table, jobs_table
from synthetic_studies import write_study

pytestmark = pytest.mark.xdist_group("study report")  # one process writes the study and its page
AXES = {"rule": ["fedavg", "fedfv"], "dropout": ["none", "high"]}
METRICS = ["mean_percent", "angle_rad"]
EVIL = '<script>alert("x")</script> & $title'


def tables(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table]:
    rng = np.random.default_rng([seed, len(levels.get("dropout", ""))])
    accuracy = rng.uniform(0.2, 0.8, (3, 6)) + (0.1 if levels.get("rule") == "fedfv" else 0)
    clients = rng.integers(0, 6, 20)
    jobs = jobs_table(
        dispatch_us=np.zeros(20), end_us=np.arange(20), client=clients, upload_bytes=np.full(20, 5)
    )
    return {"evals": evals_table(accuracy), "jobs": jobs}


def but_one(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table] | None:
    return None if (levels["rule"], levels["dropout"], seed) == ("fedfv", "high", 4) else tables(levels, seed)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two rules in two worlds over four seeds, one run of which failed."""
    compare = {
        "axis": "rule",
        "baseline": "fedavg",
        "metrics": METRICS,
        "at": ["end", "steps"],
        "group": "used",
    }
    folder = tmp_path_factory.mktemp("studies") / "tiny"
    return write_study(folder, but_one, axes=AXES, seeds=[1, 2, 3, 4], compare=compare)


def page_of(study: Study, out: Path) -> Page:
    return Page(write_page(study_document(study, out), out).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(study, tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (["worst10_percent"], ["For the worst 10 % of clients", "For the worst 5 % of clients"]),
        (["min_percent", "worst10_percent"], ["For the worst client", "For the worst 10 % of clients"]),
        (["angle_rad"], ["In angle", "For the worst 10 % of clients"]),
    ],
)
def test_two_metrics_are_told_of_and_each_once(metrics: list[str], words: list[str], tmp_path: Path) -> None:
    compare = {"axis": "rule", "baseline": "fedavg", "metrics": metrics}
    study = write_study(tmp_path / "s", tables, axes={"rule": AXES["rule"]}, seeds=[1, 2, 3], compare=compare)
    found = {each.topic: each.text for each in study_findings(study)}
    assert found["accuracy"].startswith(words[0])
    assert found["worst-off clients"].startswith(words[1])


def test_the_page_tells_what_was_asked_and_what_became_of_it(page: Page, study: Study) -> None:
    for words in (
        "What was asked made up",
        "axis dropout none, high",
        "15 done, 1 failed",
        "rule=fedfv, dropout=high, seed 4: failed",
        f"fedsim study {study.folder}/study.toml",
        "Pages of single runs are written with --each.",
    ):
        assert words in page.text


def test_every_figure_is_told_in_words_and_says_how_to_draw_it_alone(page: Page, study: Study) -> None:
    plots = page.all("svg", "plot")
    named = re.findall(r"--only (\S+) --figures", page.text)
    assert len(plots) == len(page.all("figure")) == len(named) == len(set(named))
    assert {"difference-end-mean-percent", "difference-steps-angle-rad", "curves-over-time-none"} <= set(
        named
    )
    ids = {a["id"] for _, a in page.elements if "id" in a}
    assert all(set((plot["aria-labelledby"] or "").split()) <= ids for plot in plots)
    assert {a["href"] for a in page.all("a")} <= {f"#{i}" for i in ids}
    assert page.all("caption"), "tables have captions"
    assert len(page.all("caption")) == len(page.all("table")) - len(page.all("table", "facts"))


def test_tables_hold_the_differences_to_the_last_digit(study: Study, tmp_path: Path) -> None:
    write_tables(study_document(study, tmp_path), tmp_path, ["differences-end-mean-percent"])
    with (tmp_path / "differences-end-mean-percent.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = differences(study, "mean_percent")
    assert [row["dropout"] for row in rows] == ["none", "high"]
    for row, each in zip(rows, found, strict=True):
        assert each.interval is not None
        assert float(row["mean difference of mean accuracy, points"]) == each.mean
        assert (float(row["95 % low"]), float(row["95 % high"])) == each.interval
        assert float(row["p rank, not corrected"]) == each.p_value
        assert int(row["seeds"]) == each.n
    assert [row["seeds"] for row in rows] == ["4", "3"]
    tex = (tmp_path / "differences-end-mean-percent.tex").read_text(encoding="utf-8")
    heading, first, *_ = (line.split(" & ") for line in tex.splitlines() if " & " in line)
    columns = ["rule", "dropout", "seeds", "mean difference", "95 \\% low by t", "95 \\% high by t", "p Holm"]
    assert [column in each for column, each in zip(columns, heading, strict=True)] == [True] * 7
    assert first[3] == f"{found[0].mean:+.3f}".replace("-", "−")


def test_a_table_names_the_test_that_decides(study: Study, tmp_path: Path) -> None:
    document = study_document(study.asked({"test": "t"}), tmp_path)
    table = document.tables["differences-end-mean-percent"]
    assert "p t, not corrected" in [column.heading for column in table.columns]


def test_a_small_p_value_is_not_written_as_zero(study: Study, tmp_path: Path) -> None:
    found = replace(differences(study, "mean_percent")[0], sign_p=2.0**-11, p_value=2.0**-13, p_holm=0.0123)
    table = difference_block("small", [found], study)
    shown = dict(zip([column.heading for column in table.columns], next(table.texts()), strict=True))
    assert [shown[f"p {name}"] for name in ("sign, not corrected", "rank, not corrected", "Holm")] == [
        "<0.001",
        "<0.001",
        "0.012",
    ]
    assert r"\textless{}0.001" in as_latex(
        difference_block("smaller", [replace(found, p_holm=2.0**-11)], study)
    )
    assert f",{2.0**-11}," in as_csv(table)


def test_the_picture_of_differences_has_every_seed_and_a_panel_for_each_world(study: Study) -> None:
    found = differences(study, "mean_percent")
    axes = paired_differences(found, AXES["rule"]).figure.axes
    assert [ax.get_title(loc="left") for ax in axes] == ["dropout=none", "dropout=high"]
    for ax, each in zip(axes, found, strict=True):
        drawn = [line.get_xdata() for line in ax.lines]
        points = [float(x[0]) for x in drawn if len(x) == 1]
        assert points == [*each.values.tolist(), each.mean]
        assert tuple(each.interval or ()) in [tuple(x) for x in drawn]


def test_curves_are_taken_where_all_seeds_have_been() -> None:
    import pandas as pd

    one = pd.DataFrame({"step": [0, 10, 20], "x": [1.0, 2.0, 3.0]})
    two = pd.DataFrame({"step": [0, 15, 40], "x": [5.0, 6.0, 7.0]})
    grid, (values,) = on_one_grid([one, two], "step", ["x"])
    assert grid.tolist() == [0, 10, 15, 20]
    assert values.tolist() == [[1, 2, 2, 3], [5, 5, 6, 6]]


def test_a_point_that_runs_do_not_reach_costs_no_other(tmp_path: Path) -> None:
    axes, compare = {"rule": ["fedavg", "fedfv"]}, {"axis": "rule", "at": ["end", "steps=1", "steps=9"]}
    study = write_study(tmp_path / "made", tables, axes=axes, seeds=[1, 2, 3], compare=compare)
    page = page_of(study, tmp_path / "page.html")
    assert "After 1 step" in page.text
    assert re.search(
        "After 9 steps.*Not compared: .*expected evaluations before and after steps=9", page.text, re.DOTALL
    )
    assert {f"levels.{at}" for at in ("end", "steps=1")} < study_frames(study).keys()
    assert "levels.steps=9" not in study_frames(study)
    with pytest.raises(FolderError, match="before and after steps=9"):
        study_frames(study.asked({"at": ["steps=9"]}))


def test_a_metric_in_a_file_of_ones_own_is_compared(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def low_percent(accuracy, n):\n    return 100 * float(accuracy.min())\n")
    metric, tables = f"{file}:low_percent", tmp_path / "tables"
    options = [
        "--metric",
        metric,
        "--metric",
        "gini",
        "--tables",
        str(tables),
        "--out",
        str(tmp_path / "page.html"),
    ]
    result = CliRunner().invoke(app, ["report", str(study.folder), *options])
    assert result.exit_code == 0, result.output
    assert (
        f"--metric {metric} --metric gini" in Page((tmp_path / "page.html").read_text(encoding="utf-8")).text
    )
    names = {path.stem for path in tables.glob("differences-end-*.tex")}
    assert names == {"differences-end-low-percent", "differences-end-gini"}
    frame, plain = (study.asked({"metrics": [name]}).frame([name]) for name in (metric, "min_percent"))
    assert frame[metric].tolist() == plain["min_percent"].tolist()
    with (tables / "ends.csv").open(newline="") as lines:
        assert {row["metric"] for row in csv.DictReader(lines)} == {"low, %", "gini"}
    refused = CliRunner().invoke(app, ["report", str(study.cells[0].folder), "--metric", "gini"])
    assert "--metric: expected the folder of a study" in str(refused.exception)


def test_levels_are_shown_under_their_titles(study: Study, tmp_path: Path) -> None:
    titles = {"fedavg": "FedAvg", "fedfv": "FedFV <α>", "high": "half lost"}
    document = study_document(study, tmp_path, titles=titles)
    page = Page(write_page(document, tmp_path / "page.html").read_text(encoding="utf-8"))
    for words in ("FedAvg", "FedFV <α>", "half lost", "fedsim report", "--title 'fedfv=FedFV <α>'"):
        assert words in page.text
    findings = page.text[: page.text.index("What was asked")]
    assert "fedfv" not in findings.replace("--title 'fedfv=", "")
    write_tables(document, tmp_path / "tables", ["differences-end-mean-percent"])
    with (tmp_path / "tables" / "differences-end-mean-percent.csv").open(newline="") as file:
        assert {row["rule"] for row in csv.DictReader(file)} == {"FedFV <α>"}
    found, plain = (differences(each, "mean_percent") for each in (study.titled(titles), study))
    assert [each.values.tolist() for each in found] == [each.values.tolist() for each in plain]
    wrong = {"no level 'fedfw'; did you mean 'fedfv'": "fedfw", "found 'fedavg' twice": "fedfv"}
    for words, level in wrong.items():
        with pytest.raises(ConfigError, match=words):
            study.titled({level: "fedavg"})


def test_published_values_and_claims_have_the_titles_too(tmp_path: Path) -> None:
    rows = [{"levels": {"rule": rule}, "values": {"mean_percent": 50}} for rule in ("fedavg", "fedfv")]
    paper = {"source": "a paper", "rows": rows, "claims": {"better": "mean_percent: fedavg < fedfv"}}
    axes = {"rule": ["fedavg", "fedfv"]}
    study = write_study(tmp_path / "made", tables, axes=axes, seeds=[1, 2, 3], published=paper)
    content = study_document(study, tmp_path, titles={"fedfv": "FedFV"})
    write_tables(content, tmp_path, ["published-values", "published-claims"])
    with (tmp_path / "published-values.csv").open(newline="") as file:
        assert [row["rule"] for row in csv.DictReader(file)] == ["fedavg", "FedFV"]
    with (tmp_path / "published-claims.csv").open(newline="") as file:
        assert [(row["lower"], row["higher"]) for row in csv.DictReader(file)] == [("fedavg", "FedFV")]


def test_pages_of_runs_are_written_if_all_asks_are_right_and_have_the_titles(tmp_path: Path) -> None:
    study = write_study(tmp_path / "made", tables, axes={"rule": ["fedavg", "fedfv"]}, seeds=[1])
    pages = [cell.folder / "report.html" for cell in study.cells]
    for wrong in (("--metric", "ginni"), ("--title", "fedvf=FedFV"), ("--only", "nothing", "--tables", "t")):
        refused = CliRunner().invoke(app, ["report", str(study.folder), "--each", *wrong])
        assert isinstance(refused.exception, ConfigError)
        assert not any(page.exists() for page in pages)
    asked = ["report", str(study.folder), "--each", "--title", "fedfv=FedFV"]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    titles = [page.read_text(encoding="utf-8").partition("<title>")[2].partition("<")[0] for page in pages]
    assert titles == ["fedsim: fedavg, seed 1", "fedsim: FedFV, seed 1"]


def test_each_writes_a_page_for_every_run_and_links_to_it(tmp_path: Path) -> None:
    study = write_study(tmp_path / "two words", tables, axes={"rule": ["fedavg", "fedfv"]}, seeds=[1])
    done = CliRunner().invoke(app, ["report", str(study.folder), "--each"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "2 pages of runs written" in done.output
    found = Page((study.folder / "report.html").read_text(encoding="utf-8"))
    links = [a["href"] or "" for a in found.all("a") if not (a["href"] or "").startswith("#")]
    assert links == [f"runs/{rule}/seed-1/report.html" for rule in ("fedavg", "fedfv")]
    assert all((study.folder / link).is_file() for link in links)
    elsewhere = tmp_path / "pages" / "study.html"
    text = write_page(study_document(study, elsewhere), elsewhere).read_text(encoding="utf-8")
    assert "../two%20words/runs/fedavg/seed-1/report.html" in text


def test_a_study_without_a_finished_run_says_so(tmp_path: Path) -> None:
    study = write_study(tmp_path / "none", lambda levels, seed: None, axes=AXES, seeds=[1])
    text = page_of(study, tmp_path / "report.html").text
    assert "No run of the study is done, so there is nothing to compare." in text
    assert text.count("failed: no reason was recorded") == 4


@pytest.mark.parametrize("axes", [{}, {"rule": ["fedavg"]}])
def test_a_study_with_nothing_to_compare_shows_its_curves(tmp_path: Path, axes: dict[str, list[str]]) -> None:
    study = write_study(tmp_path / "alone", tables, axes=axes, seeds=[1, 2], compare={"group": "used"})
    page = page_of(study, tmp_path / "report.html")
    assert "ot compared:" in page.text
    assert "--only curves-over-steps" in page.text
    assert "--only difference-" not in page.text


def test_an_interrupted_study_and_hostile_words_are_shown_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    write_study(folder, tables, axes={"rule": ["fedavg", "fedfv"]}, seeds=[1])
    said = json.loads((folder / "study.json").read_text())
    said |= {"name": EVIL, "description": EVIL}
    said["cells"][1] |= {"status": "failed", "error": EVIL}
    (folder / "study.json").write_text(json.dumps(said))
    page = page_of(open_study(folder), tmp_path / "report.html")
    assert page.all("script") == []
    assert page.text.count('alert("x")') >= 4
    said["cells"][1] |= {"status": "interrupted", "error": None}
    (folder / "study.json").write_text(json.dumps(said))
    text = page_of(open_study(folder), tmp_path / "report.html").text
    assert "The study is not complete: 1 interrupted of 2 runs. The page shows the finished runs." in text


def test_a_run_whose_accuracies_are_not_numbers_is_left_out(tmp_path: Path) -> None:
    def diverged(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table]:
        made = dict(tables(levels, seed))
        if (levels["rule"], seed) == ("fedfv", 4):
            made["evals"] = evals_table(np.full((3, 6), np.nan))
        return made

    def failed(levels: dict[str, str], seed: int) -> Mapping[str, pa.Table] | None:
        return None if (levels["rule"], seed) == ("fedfv", 4) else tables(levels, seed)

    found = []
    for made in (diverged, failed):
        axes = {"rule": ["fedavg", "fedfv"]}
        study = write_study(
            tmp_path / made.__name__ / "s", made, axes=axes, seeds=[1, 2, 3, 4], compare={"group": "used"}
        )
        found.append({each.topic: each.text for each in study_findings(study)})
    for topic in ("accuracy", "worst-off clients", "participation"):
        assert found[0][topic] == found[1][topic]
    assert "1 of 4 runs of fedfv end without an accuracy and are left out" in found[0]["doubts"]
    assert "without an accuracy" not in found[1]["doubts"]


def test_a_damaged_file_of_a_study_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    write_study(folder, tables, axes=AXES, seeds=[1])
    (folder / "study.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(FolderError, match=r"study\.toml: cannot be read"):
        study_document(open_study(folder), tmp_path)


def test_a_study_goes_with_nothing_else(study: Study) -> None:
    both = CliRunner().invoke(app, ["report", str(study.folder), str(study.cells[0].folder)])
    assert isinstance(both.exception, ConfigError)
    assert "one study; found 2 folders" in str(both.exception)
