"""The virtual timeline as a trace: it says what the tables say, nests as viewers demand, and can be cut."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim import analysis
from fedsim.analysis.export.perfetto import COLOURS, export_perfetto
from fedsim.cli.main import main
from fedsim.common.errors import RunError
from fedsim.engine.record_words import STATUSES
from small import run, small
from synthetic_runs import US, evals_table, jobs_table, steps_table, write_run

Event = dict[str, Any]


def events(path: Path) -> list[Event]:
    found: list[Event] = json.loads(path.read_text())["traceEvents"]
    return found


def spans(found: list[Event]) -> list[Event]:
    return [e for e in found if e["ph"] == "X"]


def client_of(event: Event, found: list[Event]) -> int:
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in found
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    return int(names[event["pid"], event["tid"]].removeprefix("client "))


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which jobs get lost in every phase."""
    world = {
        "scenario": "churn",
        "horizon": "12h",
        "options": {"mean_on": "3min", "mean_off": "2min"},
    }
    config = small(
        world=world, pacing={"preset": "fedbuff", "concurrency": 6, "buffer": 2}, stop={"steps": 20}
    )
    return run(config, tmp_path_factory.mktemp("runs")).folder


def test_spans_add_up_with_the_tables(lossy: Path, tmp_path: Path) -> None:
    opened = analysis.open_run(lossy)
    done = export_perfetto(opened, tmp_path / "t.json")
    found, jobs = events(tmp_path / "t.json"), opened.frame("jobs")
    by_job: dict[int, list[Event]] = defaultdict(list)
    for span in spans(found):
        by_job[span["args"]["job"]].append(span)
    assert by_job.keys() == set(jobs.job)
    assert {"lost", "aggregated"} <= set(jobs.status)
    for job in jobs.itertuples():
        phases = by_job[job.job]
        assert {client_of(p, found) for p in phases} == {job.client}
        assert phases[0]["ts"] == job.dispatch_us
        assert all(a["ts"] + a["dur"] == b["ts"] for a, b in pairwise(phases))
        assert sum(p["dur"] for p in phases) == job.end_us - job.dispatch_us
        assert {p["name"].split()[1] for p in phases} == {job.status}
        assert [p["cat"] for p in phases] == ["download", "compute", "upload"][: len(phases)]
        if job.status == "lost":
            assert phases[-1]["cat"] == job.phase
    assert (done.jobs, done.clients) == (len(jobs), jobs.client.nunique())


def test_steps_and_evaluations_are_instants_of_the_server(lossy: Path, tmp_path: Path) -> None:
    opened = analysis.open_run(lossy)
    done = export_perfetto(opened, tmp_path / "t.json")
    found = events(tmp_path / "t.json")
    instants = [e for e in found if e["ph"] == "i"]
    steps = [e for e in instants if e["name"].startswith("step")]
    assert [e["ts"] for e in steps] == opened.frame("steps").time_us.tolist()
    assert [e["args"]["updates"] for e in steps] == opened.frame("steps").updates.tolist()
    accuracy = [e["args"]["mean_percent"] for e in instants if e["name"] == "evaluation test"]
    assert accuracy == opened.history(metrics=["mean_percent"]).mean_percent.tolist()
    assert (done.steps, done.evaluations) == (len(steps), len(accuracy))
    online = [e["args"]["online"] for e in found if e["ph"] == "C" and e["name"] == "clients"]
    assert online == opened.frame("steps").online.tolist()


def test_no_track_has_spans_that_overlap(lossy: Path, tmp_path: Path) -> None:
    """Viewers refuse overlapping spans on a track, and take thread and process 0 for something else."""
    export_perfetto(analysis.open_run(lossy), tmp_path / "t.json")
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for span in spans(events(tmp_path / "t.json")):
        tracks[span["pid"], span["tid"]].append(span)
    assert max(map(len, tracks.values())) > 1
    for track, on_it in tracks.items():
        assert min(track) > 0
        on_it.sort(key=lambda e: (e["ts"], e["dur"]))
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(on_it))


def made_up(folder: Path, n: int = 12, clients: int = 4) -> Path:
    """Jobs of 10 s each, one after the other; client 0 has most."""
    start = np.arange(n) * 10 * US
    jobs = jobs_table(
        job=np.arange(n),
        client=np.where(np.arange(n) % 2, 0, np.arange(n) // 2 % clients),
        dispatch_us=start,
        download_us=start + US,
        compute_us=start + 9 * US,
        end_us=start + 10 * US,
    )
    steps = steps_table(time_us=start + 10 * US, mean_staleness=np.full(n, np.nan))
    tables = {"jobs": jobs, "steps": steps, "evals": evals_table(np.full((2, 3), 0.5), every_us=40 * US)}
    return write_run(folder, tables=tables)


def test_a_stretch_of_time_holds_what_happened_in_it(tmp_path: Path) -> None:
    opened = analysis.open_run(made_up(tmp_path / "made-up"))
    done = export_perfetto(opened, tmp_path / "t.json", from_us=35 * US, to_us=55 * US)
    found = events(tmp_path / "t.json")
    assert sorted({e["args"]["job"] for e in spans(found)}) == [3, 4, 5]
    assert [e["ts"] / US for e in found if e["ph"] == "i"] == [40, 50, 40]
    assert (done.jobs, done.steps, done.evaluations) == (3, 2, 1)


def test_clients_with_names_are_named(tmp_path: Path) -> None:
    folder = made_up(tmp_path / "made-up")
    clients = {"client": range(4), "n_samples": [1] * 4, "name": ["bonn", "oslo", "rome", "york"]}
    table = pa.table({name: list(values) for name, values in clients.items()})
    pq.write_table(table, folder / "clients.parquet")
    export_perfetto(analysis.open_run(folder), tmp_path / "t.json")
    named = {e["args"]["name"] for e in events(tmp_path / "t.json") if e["name"] == "thread_name"}
    assert {"client 0, bonn", "client 2, rome"} <= named


def test_few_clients_are_those_with_the_most_jobs(tmp_path: Path) -> None:
    opened = analysis.open_run(made_up(tmp_path / "made-up"))
    done = export_perfetto(opened, tmp_path / "t.json", clients=2)
    found = events(tmp_path / "t.json")
    assert {client_of(e, found) for e in spans(found)} == {0, 1}
    assert (done.clients, done.steps) == (2, 12)
    assert export_perfetto(opened, tmp_path / "t.json", clients=99).clients == 4


def test_nothing_to_write_is_an_error(tmp_path: Path) -> None:
    opened = analysis.open_run(made_up(tmp_path / "made-up"))
    with pytest.raises(RunError, match="no job and no step to write, of 12 and 12"):
        export_perfetto(opened, tmp_path / "t.json", from_us=10**12)
    with pytest.raises(RunError, match="expected a stretch of time"):
        export_perfetto(opened, tmp_path / "t.json", from_us=2, to_us=1)
    assert not (tmp_path / "t.json").exists()


def test_every_outcome_has_a_colour() -> None:
    assert COLOURS.keys() == set(STATUSES)


def test_large_runs_take_no_longer_per_job(tmp_path: Path) -> None:
    sizes = (2000, 16_000)
    opened = [analysis.open_run(made_up(tmp_path / str(n), n=n, clients=100)) for n in sizes]
    assert [len(each.jobs) for each in opened] == list(sizes)
    took: dict[int, list[float]] = defaultdict(list)
    for _ in range(3):
        for n, each in zip(sizes, opened, strict=True):
            started = perf_counter()
            export_perfetto(each, tmp_path / "t.json")
            took[n].append(perf_counter() - started)
    assert min(took[16_000]) < 3 * 8 * min(took[2000])


def test_the_command_writes_beside_the_run_or_where_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_up(tmp_path / "made-up")

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["export", "perfetto", str(folder), *arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    code, said = call()
    assert (code, len(spans(events(folder / "perfetto.json")))) == (0, 36)
    assert "12 jobs of 4 clients, 12 steps, 2 evaluations" in said
    out = tmp_path / "cut.json"
    assert call("--out", str(out), "--clients", "1", "--from", "15s", "--to", "1min")[0] == 0
    assert {e["args"]["job"] for e in spans(events(out))} == {1, 3, 5}
    table = folder / "jobs.parquet"
    before = table.read_bytes()
    code, said = call("--out", str(table))
    assert (code, table.read_bytes()) == (2, before)
    assert "jobs.parquet: expected a name that ends in .json" in said
    before = (folder / "manifest.json").read_bytes()
    code, said = call("--out", str(folder / "manifest.json"))
    assert (code, (folder / "manifest.json").read_bytes()) == (2, before)
    assert "manifest.json: this is the name of a file that describes runs" in said
    code, said = call("--from", "soon")
    assert (code, said.split(",")[0]) == (2, "error: --from: expected a duration such as '90s'")
    assert call("--clients", "0")[0] == 2
