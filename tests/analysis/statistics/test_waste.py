"""What clients spent, against numbers added up by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from fedsim import analysis
from fedsim.analysis.statistics.waste import (
    FATES,
    MEASURES,
    OPEN,
    USED,
    WASTED,
    total_waste,
    waste,
    waste_by_status,
    waste_table,
)
from fedsim.engine.record_words import STATUSES
from small import run as run_small
from small import small
from synthetic_runs import US, jobs_table, write_run

JOBS: dict[str, list[Any]] = {
    "client": [4, 4, 4, 7, 7, 9, 9],
    "status": ["aggregated", "lost", "remembered", "late", "stale", "unfinished", "aggregated"],
    "dispatch_us": [0, 100 * US, 200 * US, 0, 50 * US, 10 * US, 0],
    "end_us": [60 * US, 130 * US, 300 * US, 40 * US, 70 * US, 15 * US, 2_500_000],
    "computing_us": [20 * US, 5 * US, 70 * US, 40 * US, 0, 3 * US, 1_500_000],
    "download_bytes": [1000, 1000, 1000, 1000, 1000, 700, 1000],
    "upload_bytes": [1000, 0, 1000, 0, 1000, 0, 1000],
}


@pytest.fixture
def run(tmp_path: Path) -> analysis.Run:
    return analysis.open_run(write_run(tmp_path / "x", tables={"jobs": jobs_table(**JOBS)}))


def test_each_client_has_what_it_spent_by_fate(run: analysis.Run) -> None:
    found = waste(run)
    assert found.index.tolist() == [4, 7, 9]
    assert found.index.name == "client"
    expected = pd.DataFrame(
        {
            "jobs_used": [2, 0, 1],
            "jobs_wasted": [1, 2, 0],
            "jobs_unfinished": [0, 0, 1],
            "device_s_used": [160.0, 0.0, 2.5],
            "device_s_wasted": [30.0, 60.0, 0.0],
            "device_s_unfinished": [0.0, 0.0, 5.0],
            "computing_s_used": [90.0, 0.0, 1.5],
            "computing_s_wasted": [5.0, 40.0, 0.0],
            "computing_s_unfinished": [0.0, 0.0, 3.0],
            "bytes_used": [4000, 0, 2000],
            "bytes_wasted": [1000, 3000, 0],
            "bytes_unfinished": [0, 0, 700],
            "wasted_share": [30 / 190, 1.0, 0.0],
        },
        index=pd.Index([4, 7, 9], name="client", dtype="int32"),
    )
    pd.testing.assert_frame_equal(found, expected)


def test_each_status_has_what_its_jobs_cost(run: analysis.Run) -> None:
    found = waste_by_status(run)
    assert found.index.tolist() == ["aggregated", "remembered", "late", "lost", "stale", "unfinished"]
    assert found.loc["aggregated"].tolist() == [2, 62.5, 21.5, 4000]
    assert found.loc["late"].tolist() == [1, 40.0, 40.0, 1000]


def test_the_table_gives_totals_and_the_share_for_nothing(run: analysis.Run) -> None:
    table = waste_table(run)
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == [
        ("jobs", "3", "3", "1", "50.0"),
        ("device time", "00:02:42", "00:01:30", "5.000 s", "35.6"),
        ("computing time", "00:01:31", "45.000 s", "3.000 s", "33.0"),
        ("traffic", "5.9 KiB", "3.9 KiB", "700 B", "40.0"),
    ]
    assert total_waste(run)["device_s"] == pytest.approx((162.5, 90, 5, 100 * 90 / 252.5))
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "what x spent" in text
    assert "00:01:30" in text


def test_every_status_has_one_fate() -> None:
    assert sorted((*USED, *WASTED, *OPEN)) == sorted(STATUSES)
    assert WASTED == ("late", "lost", "stale", "void", "nonfinite")


def test_a_run_without_jobs_spent_nothing(tmp_path: Path) -> None:
    empty = analysis.open_run(write_run(tmp_path / "x"))
    assert waste(empty).empty
    assert waste(empty).columns.tolist()[:3] == ["jobs_used", "jobs_wasted", "jobs_unfinished"]
    assert waste_by_status(empty).empty
    assert [next(iter(column.cells)) for column in waste_table(empty).columns] == ["jobs", "0", "0", "0", "–"]


def test_only_unfinished_jobs_have_no_share(tmp_path: Path) -> None:
    jobs = jobs_table(status=["unfinished"], dispatch_us=[0], end_us=[US])
    found = waste(analysis.open_run(write_run(tmp_path / "x", tables={"jobs": jobs})))
    assert found.wasted_share.isna().all()
    assert found.device_s_unfinished.tolist() == [1.0]


def test_a_real_run_adds_up(tmp_path: Path) -> None:
    pacing = {"preset": "fedbuff", "concurrency": 6, "buffer": 3, "max_staleness": 1}
    config = small(pacing=pacing, dropout={"chance": 0.2}, stop={"steps": 12}, algorithm={"name": "fedavg"})
    opened = analysis.open_run(run_small(config, tmp_path).folder)
    jobs, found = opened.frame("jobs"), waste(opened)
    totals = {measure: sum(found[f"{measure}_{fate}"].sum() for fate in FATES) for measure in MEASURES}
    assert totals["jobs"] == len(jobs)
    assert totals["bytes"] == (jobs.download_bytes + jobs.upload_bytes).sum()
    assert totals["device_s"] == pytest.approx((jobs.end_us - jobs.dispatch_us).sum() / US)
    assert totals["computing_s"] <= totals["device_s"]
    assert found.device_s_wasted.sum() > 0
    by_status = waste_by_status(opened)
    assert by_status.jobs.to_dict() == opened.manifest["jobs"]
    assert by_status.device_s.sum() == pytest.approx(totals["device_s"])


def test_the_report_shows_each_run_what_its_clients_spent(run: analysis.Run, tmp_path: Path) -> None:
    text = analysis.write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "What clients spent" in text
    assert '<tr><th scope="row">device time, h</th><td>0.04514</td><td>0.025</td>' in text
    none = analysis.open_run(write_run(tmp_path / "none"))
    text = analysis.write_report([none], tmp_path / "none.html").read_text(encoding="utf-8")
    assert "What clients spent" not in text
