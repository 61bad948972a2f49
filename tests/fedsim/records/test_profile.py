"""Wall time by part in the manifest, the closing table and the trace; the parts add up to it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from fedsim import analysis
from fedsim.analysis.tables.closing import profile, profile_table
from fedsim.cli.main import main
from fedsim.common.stopwatch import DRIVER, ENGINE, IDLE, SERVER, Spans, Times
from fedsim.execution.actor_pool import RayPool
from fedsim.execution.inline_trainer import InlineTrainer
from fedsim.records.profile import seconds_by_process, write_profile
from small import run, small


def times(label: str, origin_s: float = 0.0, spans: Spans | None = None, **seconds: float) -> Times:
    """Return the measurements of a stopwatch."""
    rest = ENGINE if label == DRIVER else IDLE
    return Times(label, origin_s, sum(seconds.values()), seconds, rest, spans)


def test_server_driver_and_workers_are_distinguished() -> None:
    driver = times(DRIVER, engine=1, train=5, gram=2)
    assert seconds_by_process(driver, []) == {"server_wall_s": {"gram": 2}, "workers_wall_s": []}
    others = [times(SERVER, idle=5, gram=2, absorb=1), times("worker 0", train=7, idle=1)]
    assert seconds_by_process(driver, others) == {
        "server_wall_s": {"absorb": 1, "gram": 2, "idle": 5},
        "workers_wall_s": [{"train": 7, "idle": 1}],
    }


def test_spans_of_all_processes_share_a_time_axis(tmp_path: Path) -> None:
    inner = Spans(
        ("train", "transfer"),
        np.array([1, 0], dtype=np.int16),
        np.array([1, 0], dtype=np.int16),
        np.array([0.25, 0.25]),
        np.array([0.125, 0.5]),
        2e-5,
    )
    tracks = [
        times(DRIVER, 1000.0, engine=3.0),
        times("worker 0", 1001.0, inner, train=0.375, transfer=0.125),
    ]
    write_profile(tmp_path, "made-up", tracks)
    found = json.loads((tmp_path / "profile.json").read_text())
    spans = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in spans] == [
        ("train", 1_250_000, 500_000),
        ("transfer", 1_250_000, 125_000),
    ]
    assert names(found) == {1: DRIVER, 2: "worker 0"}
    assert {e["pid"] for e in spans} == {2}
    said = {p["name"]: p["seconds"] for p in found["otherData"]["processes"]}
    assert said == {DRIVER: {"engine": 3.0}, "worker 0": {"train": 0.375, "transfer": 0.125}}


def names(trace: dict[str, Any]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}


def check_trace(folder: Path) -> dict[str, Any]:
    """Check that spans lie within the run and within each other; return the trace."""
    found: dict[str, Any] = json.loads((folder / "profile.json").read_text())
    by_track: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            by_track[event["pid"]].append(event)
    total_us = 1e6 * found["otherData"]["processes"][0]["total_s"]
    for spans in by_track.values():
        open_until = [math.inf]
        for span in spans:
            while open_until[-1] <= span["ts"]:
                open_until.pop()
            assert span["ts"] + span["dur"] <= open_until[-1]
            open_until.append(span["ts"] + span["dur"])
            assert 0 <= span["ts"] <= span["ts"] + span["dur"] <= total_us + 1
    return found


def test_the_parts_add_up_to_the_wall_time_within_five_percent(tmp_path: Path) -> None:
    config = small(stop={"steps": 200}, world={"scenario": "always_on"})
    started = perf_counter()
    result = run(config, tmp_path, profile=True)
    took = perf_counter() - started
    opened = analysis.open_run(result.folder)
    driver = profile(opened)["driver"]
    assert sum(driver.values()) == pytest.approx(took, rel=0.05)
    assert {"start", "select", "world", "train", "gram", "solve", "combine", "evaluate", "record"} <= set(
        driver
    )
    assert min(driver.values()) >= 0
    server = opened.manifest["server_wall_s"]
    assert server.items() <= driver.items()
    spans = [e for e in check_trace(result.folder)["traceEvents"] if e["ph"] == "X"]
    train_us = sum(e["dur"] for e in spans if e["name"] == "train")
    assert train_us / 1e6 == pytest.approx(driver["train"], rel=0.2)


def test_waiting_for_an_evaluation_counts_as_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers evaluate while the run continues, and the recorder waits for their results."""
    evaluate = InlineTrainer.evaluate

    def later(trainer: InlineTrainer, split: str, *, personal: bool = False) -> Any:
        found = evaluate(trainer, split, personal=personal)

        def waited() -> Any:
            sleep(0.05)
            return found()

        return waited

    monkeypatch.setattr(InlineTrainer, "evaluate", later)
    seconds = analysis.open_run(run(small(evaluate={"every_steps": 1}), tmp_path).folder).manifest["wall_s"]
    assert seconds["evaluate"] > 9 * 0.05
    assert seconds["record"] > 0


def test_profiling_changes_no_result_and_is_written_only_on_request(tmp_path: Path) -> None:
    plain, profiled = run(small(), tmp_path / "a"), run(small(), tmp_path / "b", profile=True)
    assert plain.digest == profiled.digest
    assert not (plain.folder / "profile.json").exists()
    assert (profiled.folder / "profile.json").exists()


@pytest.mark.ray
def test_in_ray_each_process_has_a_track(tmp_path: Path, two_workers: RayPool) -> None:
    result = run(small(), tmp_path, workers=two_workers, profile=True)
    assert names(check_trace(result.folder)) == {1: DRIVER, 2: SERVER, 3: "worker 0", 4: "worker 1"}
    found = profile(analysis.open_run(result.folder))
    assert found.keys() == {"driver", "server", "2 workers"}
    assert found["2 workers"]["train"] > 0
    assert found["server"]["gram"] > 0
    assert "train" not in found["server"]
    total = sum(found["driver"].values())
    assert sum(found["server"].values()) < total
    assert sum(found["2 workers"].values()) < 2 * total


def test_the_table_divides_by_steps_and_jobs(tmp_path: Path) -> None:
    opened = analysis.open_run(run(small(), tmp_path).folder)
    said = {"train": 3.0, "engine": 1.0, "total": 4.0}
    opened.manifest.update(wall_s=said, steps=8, jobs={"aggregated": 30, "lost": 2})
    opened.manifest.update(
        server_wall_s={"gram": 0.5, "idle": 1.5}, workers_wall_s=[{"train": 1.0, "idle": 2.0}] * 2
    )
    rows = [line.split() for line in shown(opened).splitlines()[3:]]
    assert rows[:3] == [
        ["driver", "4.000", "100.0", "%", "500.000", "125000.0"],
        ["train", "3.000", "75.0", "%", "375.000", "93750.0"],
        ["engine", "1.000", "25.0", "%", "125.000", "31250.0"],
    ]
    assert [row[:-2] for row in rows[3:]] == [
        ["server", "2.000", "100.0", "%"],
        ["idle", "1.500", "75.0", "%"],
        ["gram", "0.500", "25.0", "%"],
        ["2", "workers", "6.000", "100.0", "%"],
        ["idle", "4.000", "66.7", "%"],
        ["train", "2.000", "33.3", "%"],
    ]


def test_a_run_without_wall_times_has_an_empty_table(tmp_path: Path) -> None:
    opened = analysis.open_run(run(small(), tmp_path).folder)
    opened.manifest.update(wall_s=None)
    assert profile(opened) == {}
    text = shown(opened)
    assert "where the time went: small" in text
    assert "train" not in text


def shown(opened: analysis.Run) -> str:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(profile_table(opened))
    return captured.get()


def test_the_command_shows_the_table_and_writes_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(tomli_w.dumps(small().resolved()))
    arguments = ["run", str(file), "--out", str(tmp_path), "--workers", "0", "--quiet", "--profile"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out = capsys.readouterr().out
    assert (ended.value.code or 0) == 0
    assert "where the time went: small" in out
    assert "the parts add up to" in out
    assert (tmp_path / "small" / "profile.json").is_file()


def test_resume_shows_the_table_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(small(), tmp_path).folder
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"status": "interrupted"}))
    with pytest.raises(SystemExit) as ended:
        main(["resume", str(folder), "--workers", "0", "--quiet", "--profile"])
    out = capsys.readouterr().out
    assert not ended.value.code
    assert "where the time went: small" in out
    assert "the parts add up to" in out
    assert (folder / "profile.json").is_file()
