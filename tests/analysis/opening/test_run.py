from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim import analysis
from fedsim.common.errors import ConfigError, RunError
from synthetic_runs import MANIFEST, evals_table, jobs_table, steps_table, world_table, write_run

ACCURACY = np.array([[0.1, 0.1, 0.1], [0.5, 0.2, 0.9]])


@pytest.fixture
def tables() -> dict[str, object]:
    return {
        "jobs": jobs_table(
            dispatch_us=[0, 10, 20], end_us=[5, 15, 99], status=["aggregated", "lost", "late"]
        ),
        "steps": steps_table(time_us=[5, 50]),
        "evals": evals_table(ACCURACY),
    }


def test_a_finished_run_shows_manifest_config_and_tables(tmp_path: Path, tables: dict[str, object]) -> None:
    run = analysis.open_run(write_run(tmp_path / "x", tables=tables, label="FedAvg, 3 clients"))
    assert run.done
    assert run.label == "FedAvg, 3 clients"
    assert run.config["algorithm"] == {"name": "fedavg"}
    assert run.manifest["digest"] == MANIFEST["digest"]
    assert run.jobs["status"].to_pylist() == ["aggregated", "lost", "late"]
    assert list(run.frame("steps")["time_us"]) == [5, 50]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_read_like_the_merged_files(tmp_path: Path, tables: dict[str, object], parts: int) -> None:
    merged = analysis.open_run(write_run(tmp_path / "merged", tables=tables))
    split = analysis.open_run(write_run(tmp_path / "split", tables=tables, parts=parts, status="running"))
    for name in ("jobs", "steps", "evals"):
        assert split.frame(name).astype(str).equals(merged.frame(name).astype(str))


def test_merged_files_win_over_leftover_parts(tmp_path: Path, tables: dict[str, object]) -> None:
    folder = write_run(tmp_path / "x", tables=tables)
    (folder / "parts").mkdir()
    (folder / "parts" / "jobs-00000.parquet").write_bytes(b"left over")
    assert len(analysis.open_run(folder).jobs) == 3


def test_a_gap_between_parts_is_an_error(tmp_path: Path, tables: dict[str, object]) -> None:
    folder = write_run(tmp_path / "x", tables=tables, parts=3, status="running")
    (folder / "parts" / "evals-00001.parquet").unlink()
    with pytest.raises(RunError, match=r"evals-00001.parquet is missing"):
        _ = analysis.open_run(folder).evals


def test_a_run_killed_before_its_first_part_has_empty_tables(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", status="running")
    for name in ("jobs", "steps", "evals"):
        (folder / f"{name}.parquet").unlink()
    run = analysis.open_run(folder)
    assert (len(run.jobs), len(run.steps), len(run.evals)) == (0, 0, 0)
    assert run.evaluations() == []
    assert len(run.history()) == 0
    assert "worst10_percent" in run.history().columns


def test_final_is_the_last_evaluation_by_client(tmp_path: Path, tables: dict[str, object]) -> None:
    final = analysis.open_run(write_run(tmp_path / "x", tables=tables)).final()
    assert (final.step, final.time_us, final.split) == (1, 3600 * 10**6, "test")
    np.testing.assert_array_equal(final.accuracy, ACCURACY[1])
    np.testing.assert_array_equal(final.correct, [10, 4, 18])
    np.testing.assert_array_equal(final.client, [0, 1, 2])
    assert final.summary(["min_percent"]) == {"min_percent": pytest.approx(20.0)}


def test_evaluations_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    table = evals_table(np.linspace(0, 1, 12).reshape(4, 3))
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    run = analysis.open_run(write_run(tmp_path / "x", tables={"evals": shuffled}))
    np.testing.assert_allclose(
        np.stack([e.accuracy for e in run.evaluations()]), np.linspace(0, 1, 12).reshape(4, 3)
    )


def test_two_evaluations_at_one_time_stay_apart_and_the_later_step_is_final(tmp_path: Path) -> None:
    run = analysis.open_run(write_run(tmp_path / "x", tables={"evals": evals_table(ACCURACY, every_us=0)}))
    assert [e.step for e in run.evaluations()] == [0, 1]
    assert run.final().step == 1


def test_history_has_a_row_per_evaluation_and_a_column_per_metric(
    tmp_path: Path, tables: dict[str, object]
) -> None:
    history = analysis.open_run(write_run(tmp_path / "x", tables=tables)).history()
    assert list(history["step"]) == [0, 1]
    assert list(history["mean_percent"]) == pytest.approx([10, 100 * 1.6 / 3])
    assert history["angle_rad"][0] == pytest.approx(0, abs=1e-12)
    assert list(history["loss"]) == pytest.approx([0.9, 1 - 1.6 / 3])


def test_clients_without_samples_count_in_no_metric(tmp_path: Path) -> None:
    evals = evals_table([[0.5, np.nan, 0.7]], n=[10, 0, 10])
    final = analysis.open_run(write_run(tmp_path / "x", tables={"evals": evals})).final()
    assert final.summary(["mean_percent", "min_percent"]) == pytest.approx(
        {"mean_percent": 60, "min_percent": 50}
    )


def test_a_missing_split_says_which_there_are(tmp_path: Path, tables: dict[str, object]) -> None:
    run = analysis.open_run(write_run(tmp_path / "x", tables=tables))
    with pytest.raises(RunError, match="no evaluation on split 'train' was recorded; found test"):
        run.final("train")
    with pytest.raises(RunError, match="did you mean 'test'"):
        run.final("tset")
    with pytest.raises(RunError, match="no table 'job'; did you mean 'jobs'"):
        run.frame("job")
    with pytest.raises(ConfigError, match="did you mean 'jain'"):
        run.history(metrics=["jane"])


def test_the_world_is_read_as_written(tmp_path: Path, tables: dict[str, object]) -> None:
    folder = write_run(tmp_path / "x", tables=tables)
    with pytest.raises(RunError, match=r"world.parquet is missing"):
        _ = analysis.open_run(folder).world
    world = world_table([(0, 0, 10), (1, 5, 9)], clients=3, horizon_us=10)
    pq.write_table(world, folder / "world.parquet")
    run = analysis.open_run(folder)
    assert run.world.schema.metadata[b"fedsim.clients"] == b"3"
    assert list(run.frame("world")["end_us"]) == [10, 9]


def test_the_clients_are_a_table_too(tmp_path: Path, tables: dict[str, object]) -> None:
    folder = write_run(tmp_path / "x", tables=tables)
    with pytest.raises(RunError, match=r"clients.parquet: there is no such file"):
        analysis.open_run(folder).frame("clients")
    pq.write_table(pa.table({"client": [0, 1], "n_samples": [7, 5]}), folder / "clients.parquet")
    run = analysis.open_run(folder)
    assert list(run.frame("clients")["n_samples"]) == [7, 5]
    assert run.names is None
    pq.write_table(
        pa.table({"client": [1, 0], "n_samples": [7, 5], "name": ["b", "a"]}), folder / "clients.parquet"
    )
    run = analysis.open_run(folder)
    assert run.names == ("a", "b")
    assert list(run.frame("clients")["name"]) == ["b", "a"]
    pq.write_table(pa.table({"client": [0], "samples": [7]}), folder / "clients.parquet")
    with pytest.raises(RunError, match=r"clients.parquet: there is no column 'n_samples'.*'samples'"):
        analysis.open_run(folder).frame("clients")


def test_the_labels_of_clients_are_in_the_order_of_the_clients(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x")
    assert analysis.open_run(folder).label_counts is None
    table = {"client": [1, 0], "n_samples": [7, 5]}
    pq.write_table(pa.table(table), folder / "clients.parquet")
    assert analysis.open_run(folder).label_counts is None, "a folder of an earlier commit"
    pq.write_table(pa.table(table | {"label_counts": [[0, 4, 3], [5, 0, 0]]}), folder / "clients.parquet")
    counts = analysis.open_run(folder).label_counts
    assert counts is not None
    assert counts.tolist() == [[5, 0, 0], [0, 4, 3]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1, 2], [3]], "expected a count of each label for each client"),
        ([[1, 2], None], "expected a count of each label for each client"),
        ([[1, 2], [3, None]], "expected a count of each label for each client"),
        ([1, 2], "expected lists of whole numbers"),
        ([["a"], ["b"]], "expected lists of whole numbers"),
    ],
)
def test_damaged_labels_of_clients_are_refused(values: list[Any], message: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x")
    table = {"client": [0, 1], "n_samples": [7, 5], "label_counts": values}
    pq.write_table(pa.table(table), folder / "clients.parquet")
    with pytest.raises(RunError, match=rf"clients.parquet: label_counts: {message}"):
        _ = analysis.open_run(folder).label_counts


def test_a_wrong_path_suggests_the_closest_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "quickstart")
    with pytest.raises(RunError, match=r"no run folder .*quickstrt; did you mean 'quickstart'"):
        analysis.open_run(tmp_path / "quickstrt")


def test_a_file_is_not_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(RunError, match="is a file; expected the folder of a run"):
        analysis.open_run(tmp_path / "x")


def test_a_foreign_folder_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(RunError, match=r"not a run folder: manifest.json is missing; found \['notes.txt'\]"):
        analysis.open_run(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("manifest.json", b"{", "manifest.json: cannot be read"),
        ("manifest.json", b"[1]", "manifest.json: expected an object"),
        ("config.resolved.toml", b"= 3", "config.resolved.toml: cannot be read"),
        ("config.resolved.toml", b"\xff", "config.resolved.toml: cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    folder = write_run(tmp_path / "x")
    (folder / file).write_bytes(content)
    with pytest.raises(RunError, match=message):
        analysis.open_run(folder)


def test_a_truncated_table_is_named(tmp_path: Path, tables: dict[str, object]) -> None:
    folder = write_run(tmp_path / "x", tables=tables)
    path = folder / "jobs.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    run = analysis.open_run(folder)
    with pytest.raises(RunError, match=r"jobs.parquet: not a readable Parquet file"):
        _ = run.jobs
    assert len(run.steps) == 2


def test_a_missing_table_or_column_is_named(tmp_path: Path, tables: dict[str, object]) -> None:
    folder = write_run(tmp_path / "x", tables=tables)
    (folder / "jobs.parquet").unlink()
    pq.write_table(pq.read_table(folder / "steps.parquet").drop(["lost"]), folder / "steps.parquet")
    run = analysis.open_run(folder)
    with pytest.raises(RunError, match=r"jobs.parquet is missing"):
        _ = run.jobs
    with pytest.raises(RunError, match=r"steps.parquet: missing column lost"):
        _ = run.steps


def test_open_all_expands_a_folder_of_arms_in_their_order(tmp_path: Path) -> None:
    for arm in ("fedlf", "fedavg"):
        write_run(tmp_path / "quick" / arm)
    write_run(tmp_path / "single")
    (tmp_path / "quick" / "arms.json").write_text(json.dumps({"arms": ["fedlf", "fedavg"]}))
    runs = analysis.open_all([tmp_path / "quick", tmp_path / "single"])
    for alone in (tmp_path / "quick", str(tmp_path / "quick")):
        assert [run.label for run in analysis.open_all(alone)] == [run.label for run in runs[:-1]]
    assert [run.label for run in runs] == ["fedlf", "fedavg", "single"]
    with pytest.raises(RunError, match=r"holds several runs \(fedavg, fedlf\): name one of these folders"):
        analysis.open_run(tmp_path / "quick")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"arms": ["there", "gone"]}', "lists 'gone', but its folder is missing; those present: .*there"),
        ('{"arms": "there"}', "expected .* found 'there'"),
        ("[]", "expected .* found None"),
        ('{"arms": ["../elsewhere"]}', r"expected .* found \['../elsewhere'\]"),
    ],
)
def test_a_wrong_list_of_arms_is_named(tmp_path: Path, content: str, message: str) -> None:
    write_run(tmp_path / "there")
    (tmp_path / "arms.json").write_text(content)
    with pytest.raises(RunError, match=message):
        analysis.open_all([tmp_path])


def test_a_folder_of_run_folders_stands_for_all_of_them(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_run(tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes").mkdir()
    assert [run.label for run in analysis.open_all([tmp_path / "runs"])] == ["a", "b"]
    with pytest.raises(RunError, match=r"holds several runs \(a, b\)"):
        analysis.open_run(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "b")
    with pytest.raises(
        RunError, match=f"is not a run folder, but holds one: name {tmp_path / 'runs' / 'a'}$"
    ):
        analysis.open_run(tmp_path / "runs")


def test_the_split_is_that_of_the_configuration(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "x", tables={"evals": evals_table(ACCURACY, split="valid")})
    with pytest.raises(RunError, match="no evaluation on split 'test' was recorded; found valid"):
        analysis.open_run(folder).final()
    (folder / "config.resolved.toml").write_text('[evaluate]\nsplit = "valid"\n')
    assert analysis.open_run(folder).final().split == "valid"
    assert len(analysis.open_run(folder).history()) == 2


def test_labels_are_made_distinct(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, label="fedavg") for name in ("one", "two")]
    again = [
        *folders,
        write_run(tmp_path / "more" / "one", label="fedavg"),
        write_run(tmp_path / "x", label="other"),
    ]
    labels = [run.label for run in analysis.open_all(again)]
    assert labels == ["fedavg (one)", "fedavg (two)", "fedavg (more/one)", "other"]
    twice = [run.label for run in analysis.open_all([folders[0], folders[0]])]
    assert twice == ["fedavg (one) #1", "fedavg (one) #2"]
