"""What Python and notebooks show of one run."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from fedsim import analysis
from fedsim.analysis.opening.run import Run
from fedsim.analysis.report.report import run_document
from fedsim.common.errors import ConfigError
from fedsim.runs.result import Result
from synthetic_runs import evals_table, jobs_table, world_table, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    jobs = jobs_table(dispatch_us=[0, 0], end_us=[5, 9], status=["lost", "aggregated"], phase=["upload", ""])
    tables = {"jobs": jobs, "evals": evals_table(np.random.default_rng(0).uniform(size=(3, 8)))}
    folder = write_run(tmp_path_factory.mktemp("shown") / "a<b", tables=tables)
    pq.write_table(world_table([(0, 0, 5)], clients=8, horizon_us=9), folder / "world.parquet")
    return analysis.open_run(folder)


def test_every_picture_of_the_report_can_be_drawn_by_its_name(run: Run) -> None:
    names = run_document([run]).figures.keys()
    assert {"accuracy-over-time", "lost-jobs", "clients", "participation"} <= names
    for name in names:
        figure = run.plot(name)
        assert isinstance(figure, Figure)
        assert figure.get_facecolor() == (1, 1, 1, 1)
        assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_one_picture_shows_several_runs(run: Run) -> None:
    figure = analysis.plot([run, replace(run, label="other")], "accuracy-over-time")
    shown = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert {run.label, "other"} <= shown


def test_a_picture_of_another_name_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="there is no picture 'lost_jobs'; did you mean 'lost-jobs'"):
        run.plot("lost_jobs")


class Tags(HTMLParser):
    """Checks that each tag is closed, and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_notebook_shows_the_closing_table_and_accuracy(run: Run) -> None:
    page = run._repr_html_()
    parsed = Tags()
    parsed.feed(page)
    assert not parsed.open
    mean = run.final().summary(["mean_percent"])["mean_percent"]
    assert f"{mean:.2f}" in parsed.text
    assert "a<b" in parsed.text
    assert page.count("<svg class=") == 1
    assert "currentColor" in page
    assert len(page) < 100_000
    assert Result(run.folder, "done", None, 0.5)._repr_html_() == page


def test_its_style_is_that_of_the_summary_alone(run: Run) -> None:
    style = re.search(r"<style>(.*?)</style>", run._repr_html_(), re.DOTALL)
    assert style is not None
    selectors = [s for rule in re.findall(r"([^{}]+)\{", style[1]) for s in rule.split(",")]
    assert all(s.strip().startswith(".fedsim-run") for s in selectors)


def test_a_run_without_evaluations_says_so(tmp_path: Path) -> None:
    page = analysis.open_run(
        write_run(tmp_path / "early", status="failed", error="OSError: full")
    )._repr_html_()
    assert "the run is not complete (status failed: OSError: full)" in page
    assert "Not drawn: " in page


def test_a_result_opens_its_run(run: Run) -> None:
    assert (
        Result(run.folder, "done", None, 0.5).run.final().accuracy.tolist() == run.final().accuracy.tolist()
    )
