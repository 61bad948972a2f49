from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fedsim import analysis
from fedsim.analysis.drawing.picture import COLOURS
from fedsim.analysis.report.report import run_document
from fedsim.cli.main import app
from fedsim.cli.report import report as report_command
from fedsim.common.errors import ConfigError, RunError
from pages import Page
from small import run, small
from synthetic_runs import US, evals_table, jobs_table, steps_table, world_table, write_run

HORIZON_US = 7200 * US


FIGURES = [
    "participation",
    "accuracy-over-time",
    "accuracy-over-steps",
    "accuracy-by-client",
    "accuracy-histogram",
    "participation-groups",
    "lost-jobs",
    "staleness",
    "clients",
]
"""Those of a run that has everything but steps with updates."""


def figures(page: Page) -> list[str]:
    """Return the names of the figures, as the commands below them say."""
    return re.findall(r"--only (\S+) --figures", page.text)


def full_run(folder: Path, *, k: int = 30, seed: int = 0, stale: bool = False, **options: Any) -> Path:
    rng = np.random.default_rng(seed)
    n = 120
    dispatch = np.sort(rng.integers(0, HORIZON_US // 2, n))
    status = rng.choice(["aggregated", "lost", "late"], n, p=[0.8, 0.15, 0.05])
    tables = {
        "jobs": jobs_table(
            client=rng.integers(0, k, n),
            dispatch_us=dispatch,
            end_us=dispatch + rng.integers(1, HORIZON_US // 2, n),
            status=status,
            phase=np.where(status == "lost", "upload", ""),
            staleness=np.where(status == "aggregated", rng.integers(0, 4 if stale else 1, n), -1),
        ),
        "steps": steps_table(time_us=np.arange(10) * 600 * US),
        "evals": evals_table(rng.integers(0, 21, (4, k)) / 20),
    }
    write_run(folder, tables=tables, **options)
    sessions = [(client, 0, HORIZON_US - client) for client in range(k - 1)]
    pq.write_table(world_table(sessions, clients=k, horizon_us=HORIZON_US), folder / "world.parquet")
    return folder


def page_of(*folders: Path) -> Page:
    out = analysis.write_report(analysis.open_all(folders), folders[0].parent / "report.html")
    return Page(out.read_text(encoding="utf-8"))


pytestmark = pytest.mark.xdist_group("report")  # one process writes the pages that many tests look at


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of a run that has everything, and its page."""
    folder = full_run(tmp_path_factory.mktemp("single") / "fedavg", stale=True)
    out = analysis.write_report([analysis.open_run(folder)], folder.parent / "report.html")
    return folder, out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def three_arms(tmp_path_factory: pytest.TempPathFactory) -> Page:
    root = tmp_path_factory.mktemp("arms")
    return page_of(*(full_run(root / name, seed=i) for i, name in enumerate(("fedavg", "fedfv", "fedlf"))))


def test_one_run_tells_what_was_run_and_how_it_went(single: tuple[Path, str]) -> None:
    folder, text = single
    page = Page(text)
    assert page.text.startswith("fedsim: fedavg")
    for words in ("Summary", "scenario = churn", "seed 3", "ab" * 32, "torch 2.8.0", "ended by steps"):
        assert words in page.text
    assert f"fedsim run {folder}/config.resolved.toml" in page.text
    assert 'scenario = "churn"' in page.text
    assert figures(page) == FIGURES
    assert page.all("p", "warning") == []


def test_the_summary_says_how_much_std_an_equal_model_would_show(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "noisy", tables={"evals": evals_table([[0.4, 0.6]], n=10)})
    note = (
        "A perfectly equal model would show a std of 11.2 points on these test sets; observed: 10.0. std_true"
    )
    assert note in page_of(folder).text


def test_every_figure_has_a_description_and_axes_with_units(three_arms: Page) -> None:
    plots = three_arms.all("svg", "plot")
    assert len(plots) == len(three_arms.all("figure")) == len(three_arms.all("figcaption"))
    ids = {a["id"] for _, a in three_arms.elements if "id" in a}
    for plot in plots:
        named = (plot["aria-labelledby"] or "").split()
        assert plot["role"] == "img"
        assert len(named) == 2
        assert set(named) <= ids
    assert three_arms.text.count(" --only ") == len(plots)
    for label in ("virtual time, minutes", "server steps", "accuracy of the client, %", "angle, rad"):
        assert label in three_arms.text


def test_the_page_refers_to_nothing_outside(single: tuple[Path, str]) -> None:
    text = single[1]
    assert not re.search(r"https?:|//[a-z]|@import|<script|<link", text)
    ids = {a["id"] for _, a in Page(text).elements if "id" in a}
    for _, attributes in Page(text).elements:
        source = attributes.get("src") or attributes.get("href") or "#"
        assert source.startswith("data:") or source == "#" or source[1:] in ids
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= ids


def test_ids_are_unique_across_figures(three_arms: Page) -> None:
    ids = [a["id"] for _, a in three_arms.elements if "id" in a]
    assert len(ids) == len(set(ids))


def test_equal_runs_give_equal_pages(single: tuple[Path, str], tmp_path: Path) -> None:
    again = analysis.write_report([analysis.open_run(single[0])], tmp_path / "again.html")
    assert again.read_text(encoding="utf-8") == single[1]


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script> & $title'
    folder = full_run(
        tmp_path / "a", label=evil, error=evil, rule=evil, status="failed", versions={evil: evil}
    )
    other = full_run(tmp_path / "b", seed=1)
    config = f"name = '{evil}'\n[task]\nname = '{evil}'\n"
    (folder / "config.resolved.toml").write_text(config, encoding="utf-8")
    page = page_of(folder, other)
    assert page.all("script") == []
    assert page.text.count('alert("x")') > 5
    assert "$title" in page.text


def test_arms_are_overlaid_with_one_style_each(three_arms: Page) -> None:
    strokes = [
        a["stroke"] for tag, a in three_arms.elements if tag == "path" and a.get("stroke-width") == "3"
    ]
    per_figure = np.array(strokes).reshape(-1, 3)
    assert len(set(per_figure[0])) == 3
    assert (per_figure == per_figure[0]).all()
    assert "Client by client against fedavg" in three_arms.text
    assert "mean difference, %" in three_arms.text


def test_an_arm_without_evaluations_leaves_the_styles_of_the_others_alone(tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare", status="failed", error="no luck", virtual_us=0)
    page = page_of(bare, full_run(tmp_path / "a", stale=True), full_run(tmp_path / "b", seed=1))
    assert "Client by client against a" in page.text
    assert "Not compared:" in page.text
    curves = [
        a["style"]
        for tag, a in page.elements
        if tag == "path" and "stroke-width: 1.6" in (a.get("style") or "")
    ]
    colours = {re.search(r"stroke: (#\w+)", style or "").group(1) for style in curves}  # type: ignore[union-attr]
    assert colours == set(COLOURS[1:3])


def test_runs_that_cannot_be_paired_say_why(tmp_path: Path) -> None:
    page = page_of(full_run(tmp_path / "a", k=30), full_run(tmp_path / "b", k=20))
    assert "Not compared:" in page.text
    assert "client 20 was evaluated in only one of them" in page.text


def test_an_empty_interrupted_run_still_gives_a_report_that_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", status="interrupted", virtual_us=0, digest=None)
    for words in (
        "the run is not complete (status interrupted)",
        "x: no job was recorded",
        "x: no evaluation on the test split was recorded",
        "No job was recorded.",
        "Not drawn:",
    ):
        assert words in page_of(folder).text


def test_a_bare_manifest_is_enough(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x")
    (folder / "manifest.json").write_text('{"status": "running", "wall_s": null, "memory": null}')
    for path in folder.glob("*.parquet"):
        path.unlink()
    assert "status killed" in page_of(folder).text


def test_parts_alone_give_the_same_figures(tmp_path: Path) -> None:
    parts = full_run(tmp_path / "x", stale=True, parts=3, status="running", error="killed")
    found = page_of(parts)
    assert figures(found) == FIGURES
    assert "status killed: killed" in found.text


def test_a_run_without_evaluations_or_without_losses_leaves_these_figures_out(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "x")
    jobs = pq.read_table(folder / "jobs.parquet")
    kept = jobs.filter(pa.compute.equal(jobs["status"].cast(pa.string()), "aggregated"))
    pq.write_table(kept, folder / "jobs.parquet")
    pq.write_table(evals_table(np.zeros((0, 3))), folder / "evals.parquet")
    page = page_of(folder)
    assert len(page.all("figure")) == 1
    assert "No job was lost." in page.text
    assert "No evaluation was recorded." in page.text


def test_an_unreadable_world_is_reported_not_fatal(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "x")
    (folder / "world.parquet").write_bytes(b"PAR1 but not really")
    page = page_of(folder)
    assert "Not drawn:" in page.text
    assert "world.parquet" in page.text


def test_a_broken_table_is_fatal_and_named(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "x")
    (folder / "jobs.parquet").write_bytes(b"")
    with pytest.raises(RunError, match=r"jobs\.parquet"):
        page_of(folder)
    assert not (tmp_path / "report.html").exists()


def test_a_large_run_gives_a_small_page(tmp_path: Path) -> None:
    k, n = 3000, 60_000
    rng = np.random.default_rng(0)
    dispatch = rng.integers(0, HORIZON_US - 1, n)
    jobs = jobs_table(client=rng.integers(0, k, n), dispatch_us=dispatch, end_us=dispatch + 1)
    folder = write_run(
        tmp_path / "big", tables={"jobs": jobs, "evals": evals_table(rng.uniform(size=(5, k)))}
    )
    sessions = [(client, 0, HORIZON_US) for client in range(k)]
    pq.write_table(world_table(sessions, clients=k, horizon_us=HORIZON_US), folder / "world.parquet")
    out = analysis.write_report([analysis.open_run(folder)], tmp_path)
    assert out == tmp_path / "report.html"
    assert out.stat().st_size < 1_000_000
    assert len(Page(out.read_text()).elements) < 5000


def test_runs_are_shown_under_their_titles(single: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = single
    name = analysis.open_run(folder).label
    command = ["report", str(folder), "--title", f"{name}=FedMGDA+ <b>", "--out", str(tmp_path / "page.html")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "FedMGDA+ <b>" in result.output
    assert f"--title '{name}=FedMGDA+ <b>'" in Page((tmp_path / "page.html").read_text(encoding="utf-8")).text
    for titles, words in (
        (("other=A",), f"there is no run 'other'.*{name}"),
        (("A",), "--title A: expected NAME=TITLE, such as"),
        ((f"{name}= ",), "expected NAME=TITLE"),
        ((f"{name}=A", f"{name}=B"), f"--title: expected one title for {name}, found two"),
    ):
        options = [word for title in titles for word in ("--title", title)]
        refused = CliRunner().invoke(app, ["report", str(folder), *options])
        assert isinstance(refused.exception, ConfigError)
        assert re.search(words, str(refused.exception))


def test_a_report_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="at least one run"):
        analysis.write_report([], tmp_path)


def test_the_command_writes_beside_one_run_and_prints_the_closing_table(tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(report_command)
    folder = full_run(tmp_path / "fedavg")
    result = CliRunner().invoke(app, [str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    assert (folder / "report.html").is_file()
    assert "fedavg" in result.output
    assert f"report: {folder / 'report.html'}" in result.output
    elsewhere = tmp_path / "new" / "page.html"
    assert CliRunner().invoke(app, [str(folder), "--out", str(elsewhere)]).exit_code == 0
    assert elsewhere.read_bytes() == (folder / "report.html").read_bytes()
    missing = CliRunner().invoke(app, [str(tmp_path / "fedagv")])
    assert isinstance(missing.exception, RunError)
    assert "did you mean 'fedavg'" in str(missing.exception)


def test_a_page_opens_with_its_findings_and_who_took_part(three_arms: Page) -> None:
    found = three_arms.all("ul", "findings")
    assert len(found) == 1
    start = three_arms.text.index("Findings In mean accuracy, ")
    assert (
        start < three_arms.text.index("--only participation --") < three_arms.text.index("How the runs ended")
    )


def test_the_command_prints_the_sentences_of_the_page(single: tuple[Path, str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(single[0]), "--out", str(tmp_path)], catch_exceptions=False)
    sentences = [each.text for each in analysis.findings(analysis.open_run(single[0]))]
    assert len(sentences) == 5
    for text in sentences:
        assert f"- {text}\n" in done.output
        assert text in Page(single[1]).text


def test_long_tables_are_folded_and_open_by_keyboard(three_arms: Page) -> None:
    rows = [tag for tag, _ in three_arms.elements if tag in ("details", "summary", "tr", "table")]
    text = " ".join(rows).replace("details summary", "folded")
    tables = re.findall(r"(folded )?table((?: tr)+)", text)
    assert len(tables) > 5
    for folded, lines in tables:
        assert bool(folded) == (lines.count("tr") > 11), "ten lines and a head are shown"
    assert any(folded for folded, _ in tables)
    assert "details" not in text, "each opens by its summary, which browsers let the keyboard reach"


def test_figures_without_anything_to_see_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    unknown = np.full(4, -1)  # conflicts of a rule that needs no inner products
    steps = steps_table(time_us=np.arange(4) * US, updates=np.full(4, 3), model_conflicts=unknown)
    jobs = jobs_table(client=np.arange(15) % 5, dispatch_us=np.zeros(15), end_us=np.ones(15))
    tables = {"steps": steps, "jobs": jobs, "evals": evals_table(np.full((3, 5), 0.5))}
    page = page_of(write_run(tmp_path / "still", tables=tables))
    assert figures(page) == ["accuracy-by-client", "accuracy-histogram"]
    for sentence in (
        "Every used update had a staleness of 0",
        "Each step used 3 updates of staleness 0, and none that was remembered",
        "Curves are left out: accuracy was the same at all evaluations",
        "No job was lost.",
    ):
        assert sentence in page.text
    moving = tables | {"steps": steps_table(time_us=np.arange(4) * US, updates=np.arange(1, 5))}
    moving["evals"] = evals_table(np.linspace(0.1, 0.9, 15).reshape(3, 5))
    shown = figures(page_of(write_run(tmp_path / "moving", tables=moving)))
    assert {"memory", "accuracy-over-time", "accuracy-over-steps"} <= set(shown)


def test_prose_says_updates_where_updates_are_meant() -> None:
    """A row is a line of a table; texts for readers of reports say what it stands for."""
    root = Path(analysis.__file__).parent
    for file in [*(root / "plots").glob("*.py"), *(root / "report").glob("*.py")]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in documented]
        for text in texts:
            words = text.value if isinstance(text.value, str) else ""
            prose = words.replace('scope="row"', "")
            assert not re.search(r"\brows? | rows?\b", prose), f"{file}:{text.lineno}"


def test_unseen_clients_have_a_section_if_there_are_some(tmp_path: Path, single: tuple[Path, str]) -> None:
    assert "Unseen clients" not in Page(single[1]).text
    folders = [full_run(tmp_path / name) for name in ("fedavg", "ditto", "none")]
    for folder, splits in zip(folders, (["unseen"], ["unseen", "unseen_personal"], []), strict=True):
        tables = [pq.read_table(folder / "evals.parquet")]
        for split in splits:
            of_unseen = evals_table(np.full((4, 5), 0.25 if split == "unseen" else 0.75), split=split)
            client = pa.array(np.asarray(of_unseen["client"]) + 30, pa.int32())
            at = of_unseen.schema.get_field_index("client")
            tables.append(of_unseen.set_column(at, "client", client))
        pq.write_table(pa.concat_tables(tables).unify_dictionaries(), folder / "evals.parquet")
    page = page_of(*folders)
    assert "Unseen clients The model on clients that never trained, at the end" in page.text
    assert {"unseen-over-steps", "adapted-over-steps"} <= set(figures(page))
    assert "Unseen clients, with the global model. Accuracy and fairness over server steps" in page.text
    assert "Unseen clients, after they adapted the model. Accuracy" in page.text
    document = analysis.run_document(analysis.open_all(folders))
    for name, drawn in (("unseen-over-steps", ["fedavg", "ditto"]), ("adapted-over-steps", ["ditto"])):
        assert [key.label for key in document.figures[name].draw().keys] == drawn
    rows = [row[:4] for row in document.tables["unseen"].rows]
    assert rows == [
        ("fedavg", "unseen", 5, 25.0),
        ("ditto", "unseen", 5, 25.0),
        ("ditto", "adapted", 5, 75.0),
    ]
    assert "unseen" not in analysis.run_document(analysis.open_all(folders[2:])).tables


def test_choices_are_compared_with_those_of_a_clairvoyant(tmp_path: Path) -> None:
    """By the same measure for all runs; the fastest are the best where speeds are constant."""
    calm = {"world": {"scenario": "stragglers", "horizon": "10h"}, "cost": {"payload": 1000}}
    names = ("uniform", "fastest_first")
    folders = [run(small(name=name, **calm, selection={"name": name}), tmp_path).folder for name in names]
    content = run_document(analysis.open_all(folders))
    found = {row[0]: row for row in content.tables["selection"].rows}
    assert set(found) == set(names)
    assert found["fastest_first"][2:4] == (0.0, 0.0)
    assert found["uniform"][2] > 0
    assert found["uniform"][4] < found["fastest_first"][4], "uniform chooses more evenly"
    picture = content.figures["selection-regret"].draw()
    assert "fastest_first ends at 0.000" in picture.alt
    assert [key.label for key in picture.keys] == list(names)
    alone = page_of(folders[1])
    assert "No choice could have been faster among its candidates." in alone.text
    assert "selection-regret" not in figures(alone)


def test_the_data_of_clients_are_drawn_once_for_each_division(tmp_path: Path) -> None:
    same = [run(small(name=name, stop={"steps": 2}), tmp_path).folder for name in ("a", "b")]
    other = run(small(name="c", stop={"steps": 2}, partition={"name": "iid"}), tmp_path).folder
    assert [name for name in figures(page_of(*same)) if name.endswith("labels")] == ["labels"]
    page = page_of(*same, other)
    assert [name for name in figures(page) if name.endswith("labels")] == ["a-labels", "c-labels"]
    assert "a, b:" in page.text
    pq.write_table(pa.table({"client": [0], "label_counts": [1]}), other / "clients.parquet")
    page = page_of(same[0], other)
    assert [name for name in figures(page) if name.endswith("labels")] == ["labels"]
    assert "c: not shown: " in page.text


def test_a_report_says_why_choices_are_not_compared(tmp_path: Path) -> None:
    folder = run(small(cost={"payload": "5 MB", "reference_flops": 1000.0}), tmp_path).folder
    assert "Not shown: cost.reference_flops: times depend" in page_of(folder).text
    (folder / "clients.parquet").unlink()
    assert "reference_flops: times" not in page_of(folder).text
