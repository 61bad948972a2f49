from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from typer.testing import CliRunner, Result

import fedsim
from fedsim import analysis
from fedsim.analysis.drawing.picture import INK, arm_keys
from fedsim.analysis.plots.accuracy_histogram import accuracy_histogram
from fedsim.analysis.report.document import Column, Table, slugs
from fedsim.analysis.report.report import run_document
from fedsim.analysis.report.report_files import _add_legend, as_csv, as_latex, write_figures, write_tables
from fedsim.analysis.tables.closing import ACCURACIES, closing
from fedsim.cli.main import app
from fedsim.common.errors import ConfigError
from synthetic_runs import evals_table, jobs_table, write_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that were evaluated and lost jobs."""
    root, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    made = []
    for name in ("fedavg", "fedfv"):
        jobs = jobs_table(
            dispatch_us=[0, 0], end_us=[5, 9], status=["lost", "aggregated"], phase=["upload", ""]
        )
        tables = {"jobs": jobs, "evals": evals_table(rng.uniform(size=(3, 8)))}
        made.append(write_run(root / name, tables=tables))
    return made


def reported(folders: list[Path], *options: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, (*folders, *options))])


@pytest.mark.parametrize(("kind", "magic"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_figure_is_written_in_each_format_with_its_legend(
    folders: list[Path], tmp_path: Path, kind: str, magic: bytes
) -> None:
    chosen = ("--only", "accuracy-by-client", "--format", kind)
    found = reported(folders, "--figures", tmp_path / "out", *chosen)
    assert found.exit_code == 0, found.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"accuracy-by-client.{kind}"]
    data = (tmp_path / "out" / f"accuracy-by-client.{kind}").read_bytes()
    assert data.startswith(magic)
    again = reported(folders, "--figures", tmp_path / "again", *chosen)
    assert again.exit_code == 0
    assert (tmp_path / "again" / f"accuracy-by-client.{kind}").read_bytes() == data
    if kind == "svg":
        assert b"<!-- fedavg -->" in data
        assert b"<!-- fedfv -->" in data


def test_a_figure_stands_on_paper_whatever_is_behind_it(folders: list[Path], tmp_path: Path) -> None:
    content = run_document(analysis.open_all(folders))
    written, refused = write_figures(content, tmp_path, "png", ["accuracy-histogram"])
    assert refused == []
    assert Image.open(written[0]).convert("RGBA").getpixel((0, 0)) == (255, 255, 255, 255)


def test_a_dark_figure_has_light_ink_and_no_dark_one(folders: list[Path], tmp_path: Path) -> None:
    options = ("--figures", tmp_path, "--format", "svg", "--only", "accuracy-by-client")
    for theme in ("light", "dark"):
        assert reported(folders, *options, "--theme", theme).exit_code == 0
    light, dark = ((tmp_path / f"accuracy-by-client-{t}.svg").read_text() for t in ("light", "dark"))
    assert INK in light
    assert INK not in dark
    assert "#e6edf3" in dark
    assert "fill: #0d1117" in dark
    drawn = [re.findall(r' d="M[^"]*"', text) for text in (light, dark)]
    assert drawn[0] == drawn[1], "only colours differ"
    assert reported(folders, *options).exit_code == 0
    assert (tmp_path / "accuracy-by-client.svg").read_text().count("<path") == light.count("<path")


@pytest.mark.parametrize(("option", "value"), [("--theme", "dark"), ("--format", "pdf")])
def test_the_look_of_figures_needs_figures(
    folders: list[Path], tmp_path: Path, option: str, value: str
) -> None:
    for more in ((), ("--tables", tmp_path)):
        found = reported(folders, option, value, *more)
        assert isinstance(found.exception, ConfigError)
        assert f"{option}: expected --figures" in str(found.exception)


def test_figures_are_pdf_by_default(folders: list[Path], tmp_path: Path) -> None:
    assert reported(folders, "--figures", tmp_path, "--only", "accuracy-by-client").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["accuracy-by-client.pdf"]


def test_the_pictures_of_the_readme_are_small_and_can_be_made_anew(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    configs = fedsim.load_config(root / "examples/quickstart.toml", ("stop.time=1h",))
    done = [result.folder for result in fedsim.simulate(configs, out=tmp_path / "runs", workers=0)]
    for theme in ("light", "dark"):
        options = ("--only", "participation", "--format", "svg", "--theme", theme)
        assert reported(done, "--figures", tmp_path, *options).exit_code == 0
        made, kept = ((folder / f"participation-{theme}.svg") for folder in (tmp_path, root / "docs/images"))
        for file in (made, kept):
            assert 10_000 < file.stat().st_size < 200_000
        words = [re.findall(r"<!-- (.*?) -->", file.read_text()) for file in (made, kept)]
        names = {"offline", "online, idle", "in a job", "fedavg", "fedfv", "fedlf"}
        assert all(names <= set(each) for each in words)
    page = (root / "docs/report.md").read_text()
    assert page.count("--figures docs/images --format svg --only participation --theme ") == 2


def test_a_figure_that_cannot_be_drawn_is_told_and_the_others_are_written(
    folders: list[Path], tmp_path: Path
) -> None:
    only = ["--only", "fedavg-clients", "--only", "lost-jobs", "--format", "svg"]
    found = reported(folders, "--figures", tmp_path / "out", *only)
    assert found.exit_code == 0
    assert "not drawn: fedavg-clients:" in found.output.replace("\n", "")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["lost-jobs.svg"]


def test_tables_hold_the_numbers_of_the_runs_to_the_last_digit(folders: list[Path], tmp_path: Path) -> None:
    runs = analysis.open_all(folders)
    write_tables(run_document(runs), tmp_path, ["summary"])
    with (tmp_path / "summary.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, run in zip(rows, runs, strict=True):
        found = closing(run)
        assert row["run"] == found.label
        assert {name: float(row[name]) for name in ACCURACIES} == {
            name: found.metrics[metric] for name, metric in ACCURACIES.items()
        }
        assert (int(row["jobs"]), int(row["jobs lost"])) == (found.jobs, found.lost)
    tex = (tmp_path / "summary.tex").read_text(encoding="utf-8")
    assert tex.count(r"\\") == 3
    for word in (
        r"\usepackage{booktabs}",
        r"\toprule",
        r"mean \%",
        f"{closing(runs[0]).metrics['mean_percent']:.2f}",
    ):
        assert word in tex


def test_latex_says_what_the_words_say() -> None:
    columns = (Column("name_"), Column("a, %", 1), Column("b", 2, signed=True))
    table = Table("t", r"50 % & \more", columns, (("x_1 ~^<>{}$#", 1.25, None), ("y", float("nan"), 2.0)))
    tex = as_latex(table)
    assert r"\caption{50 \% \& \textbackslash{}more}" in tex
    assert r"\begin{tabular}{lrr}" in tex
    assert r"name\_ & a, \% & b \\" in tex
    assert r"x\_1 \textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\{\}\$\# & 1.2 & -- \\" in tex
    assert r"y & -- & +2.00 \\" in tex
    assert as_csv(table).splitlines()[1:] == ["x_1 ~^<>{}$#,1.25,", "y,,2.0"]


def test_latex_has_commands_for_greek_letters_and_signs_and_a_minus_for_numbers() -> None:
    words = "α = −1, λ ≤ Λ ≥ ς, seed-1 × 1e-05"
    table = Table("t", words, (Column("x"), Column("y", 2)), (("a", -0.41),))
    tex = as_latex(table)
    caption = r"$\alpha$ = $-$1, $\lambda$ $\leq$ $\Lambda$ $\geq$ $\sigma$, seed-1 $\times$ 1e-05"
    assert rf"\caption{{{caption}}}" in tex
    assert r"a & $-$0.41 \\" in tex
    assert tex.isascii()


def test_what_clients_spent_is_numbers(folders: list[Path], tmp_path: Path) -> None:
    run = analysis.open_run(folders[0])
    write_tables(run_document([run]), tmp_path, ["spent"])
    with (tmp_path / "spent.csv").open(encoding="utf-8") as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    by_status = analysis.waste_by_status(run)
    used = by_status[by_status.index.isin(["aggregated", "remembered"])].sum()
    assert float(rows["jobs"]["used"]) == used["jobs"] > 0
    assert float(rows["device time, h"]["used"]) == used["device_s"] / 3600
    assert float(rows["traffic, GiB"]["used"]) == used["bytes"] / 2**30


def test_files_alone_leave_the_page_and_with_out_write_it(folders: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert reported(folders, "--tables", tmp_path / "t", "--only", "pairs").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["pairs.csv", "pairs.tex"]
    assert not (folders[0].parent / "report.html").exists()
    assert reported(folders, "--tables", tmp_path / "t", "--out", page).exit_code == 0
    assert "pairs" in {path.stem for path in (tmp_path / "t").iterdir()}
    assert page.is_file()


def test_wrong_asks_name_what_is_there(folders: list[Path], tmp_path: Path) -> None:
    wrong = reported(folders, "--tables", tmp_path, "--only", "sumary")
    assert isinstance(wrong.exception, ConfigError)
    assert "no figure or table 'sumary'; did you mean 'summary'" in str(wrong.exception)
    assert not wrong.output  # before the closing table
    unlike = str(reported(folders, "--tables", tmp_path, "--only", "xyz").exception).split("known: ")[1]
    names = unlike.split(", ")
    assert len(set(names)) == len(names)
    alone = reported(folders, "--only", "summary")
    assert "expected --figures or --tables" in str(alone.exception)
    study = tmp_path / "study.toml"
    study.write_text("kept", encoding="utf-8")
    out = reported(folders, "--out", study)
    assert "study.toml: expected a name that ends in .html, .htm" in str(out.exception)
    assert study.read_text(encoding="utf-8") == "kept"
    each = reported(folders, "--each")
    assert "--each: expected the folder of a study" in str(each.exception)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456, "0.1235"), (7.0, "7"), (404628.93, "404,629"), (float("nan"), "–"), (3, "3")],
)
def test_numbers_of_any_magnitude_are_short(value: float, text: str) -> None:
    assert Column("x", None).show(value) == text


def test_names_are_plain_and_different() -> None:
    found = slugs(["FedAvg (a/b)", "fedavg a b", "../..", "é", "x" * 90, "<b>"])
    assert len(set(found)) == 6
    assert found[:2] == ["fedavg-a-b", "fedavg-a-b-2"]
    assert slugs(["fedavg-2", "fedavg", "fedavg", "fedavg"]) == ["fedavg-2", "fedavg", "fedavg-3", "fedavg-4"]
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and len(name) < 64 for name in found)


def test_legends_are_whole_whatever_runs_are_called() -> None:
    labels = ("fedavg", "fedfv", "mifa", "a-rule-with-a-rather-long-name-of-fifty-characters", "x" * 100)
    for names in (labels[:3], labels[:4], labels):
        canvas = accuracy_histogram(dict.fromkeys(names)).figure
        before = canvas.get_size_inches()[1]
        _add_legend(canvas, arm_keys(names))
        renderer = FigureCanvasAgg(canvas).get_renderer()
        canvas.draw(renderer)
        (legend,) = canvas.legends
        found = legend.get_window_extent(renderer)
        assert [text.get_text().replace("\n", "") for text in legend.get_texts()] == list(names)
        assert 0 <= found.x0 <= found.x1 <= canvas.bbox.width
        assert 0 <= found.y0 <= found.y1 <= canvas.bbox.height
        assert found.height <= (canvas.get_size_inches()[1] - before + 0.15) * canvas.dpi
