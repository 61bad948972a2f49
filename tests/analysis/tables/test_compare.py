from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fedsim import analysis
from fedsim.analysis.tables.closing import closing
from fedsim.analysis.tables.compare import Comparison, comparison_table
from fedsim.common.errors import RunError
from fedsim.worlds.trace import Trace
from synthetic_runs import evals_table, jobs_table, steps_table, world_table, write_run


def shown(printable: object, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(printable)
    return console.export_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tables = {
        "jobs": jobs_table(
            dispatch_us=[0, 0, 0, 0], end_us=[1, 2, 3, 4], status=["aggregated", "lost", "late", "aggregated"]
        ),
        "steps": steps_table(time_us=[10, 20, 30], status=["applied", "empty", "applied"]),
        "evals": evals_table([[0.2, 0.4, 0.6]]),
    }
    return write_run(tmp_path / "first", tables=tables)


def test_closing_numbers_come_from_the_tables(folder: Path) -> None:
    found = closing(analysis.open_run(folder))
    assert (found.steps, found.jobs, found.lost, found.late, found.empty_steps) == (3, 4, 1, 1, 1)
    assert found.metrics["mean_percent"] == pytest.approx(40)
    assert found.metrics["worst5_percent"] == pytest.approx(20)
    cells = found.cells()
    assert cells[:3] == ["first", "40.00", "16.33"]
    assert cells[7:] == ["3", "1 (25%)", "1", "1", "2.00", "12.5"]


def test_the_closing_table_has_a_row_per_run_and_says_which_is_not_done(folder: Path, tmp_path: Path) -> None:
    bare = write_run(tmp_path / "bare", status="interrupted", wall_s=None, virtual_us=None, label="bare [x]")
    text = shown(analysis.closing_table(analysis.open_all([folder, bare])))
    lines = [line for line in text.splitlines() if line.startswith(("first", "bare"))]
    assert len(lines) == 2
    assert "40.00" in lines[0]
    assert "bare [x] [interrupted]" in lines[1]
    assert "–" in lines[1]
    assert "test split" in text


def test_the_closing_table_fits_eighty_columns_without_breaking_numbers(folder: Path) -> None:
    text = shown(analysis.closing_table([analysis.open_run(folder)] * 3), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert all(text.split().count(number) == 3 for number in ("40.00", "16.33", "0.388", "(25%)", "12.5"))


def test_an_interrupted_run_has_the_last_recorded_time(folder: Path, tmp_path: Path) -> None:
    table = jobs_table(dispatch_us=[0], end_us=[1_800_000_000])
    run = analysis.open_run(
        write_run(tmp_path / "cut", tables={"jobs": table}, status="running", virtual_us=None)
    )
    assert closing(run).virtual_us == 1_800_000_000


def pair(tmp_path: Path, first: object, second: object, *, n: object = 20, **manifest: object) -> Comparison:
    a = write_run(tmp_path / "a", tables={"evals": evals_table([first])})
    b = write_run(tmp_path / "b", tables={"evals": evals_table([second], n=n)}, **manifest)
    return analysis.compare(analysis.open_run(a), analysis.open_run(b))


def test_compare_pairs_clients(tmp_path: Path) -> None:
    found = pair(tmp_path, [0.2, 0.4, 0.6, 0.5], [0.3, 0.4, 0.5, 0.8])
    np.testing.assert_allclose(found.difference_percent, [10, 0, -10, 30], atol=1e-12)
    assert (found.gained, found.lost, found.equal) == (2, 1, 1)
    assert found.mean_percent == pytest.approx(7.5)
    assert found.standard_error_percent == pytest.approx(np.std([10, 0, -10, 30], ddof=1) / 2)
    text = shown(found)
    assert "b against a" in text
    assert "+7.50 ± 8.54" in text
    assert "world of one run not kept" in found.note()


def test_compare_says_which_run_is_not_done(tmp_path: Path) -> None:
    found = pair(tmp_path, [0.2, 0.4], [0.3, 0.4], status="interrupted")
    assert (found.first, found.second) == ("a", "b [interrupted]")
    assert "b [interrupted] against a" in shown(found)


def test_compare_leaves_out_clients_without_samples(tmp_path: Path) -> None:
    tables = [{"evals": evals_table([[value, np.nan]], n=[10, 0])} for value in (0.5, 0.6)]
    runs = [analysis.open_run(write_run(tmp_path / str(i), tables=t)) for i, t in enumerate(tables)]
    found = analysis.compare(*runs)
    assert list(found.client) == [0]
    assert np.isnan(found.standard_error_percent)
    for text in (shown(found), shown(comparison_table([replace(found, points=((1, 2, 3), (1, 2, 3)))]))):
        assert "+10.00 ± –" in text


def test_compare_says_whether_the_world_was_the_same(tmp_path: Path) -> None:
    runs = []
    for index, end in enumerate((10, 10, 9)):
        folder = write_run(tmp_path / str(index), tables={"evals": evals_table([[0.5, 0.6]])})
        pq.write_table(world_table([(0, 0, end)], clients=2, horizon_us=10), folder / "world.parquet")
        runs.append(analysis.open_run(folder))
    assert analysis.compare(runs[0], runs[1]).same_world is True
    assert analysis.compare(runs[0], runs[2]).same_world is False


def test_compare_says_that_the_samples_differ(tmp_path: Path) -> None:
    tables = {"evals": evals_table([[0.5, 0.6]])}
    folders = [write_run(tmp_path / str(i), tables=tables, data=data) for i, data in enumerate("aab")]
    runs = [analysis.open_run(folder) for folder in folders]
    assert "different samples" not in shown(analysis.compare(runs[0], runs[1]))
    assert "different samples" in shown(analysis.compare(runs[0], runs[2]))


@pytest.mark.parametrize(("key", "value"), [("after_end", "repeat"), ("horizon_us", 20)])
def test_a_world_that_ends_otherwise_is_another(key: str, value: object, tmp_path: Path) -> None:
    runs = []
    for index, facts in enumerate(({}, {key: value})):
        folder = write_run(tmp_path / str(index), tables={"evals": evals_table([[0.5, 0.6]])})
        pq.write_table(
            world_table([(0, 0, 5)], **({"clients": 2, "horizon_us": 10} | facts)), folder / "world.parquet"
        )
        runs.append(analysis.open_run(folder))
    assert analysis.compare(*runs).same_world is False


@pytest.mark.parametrize("known", [True, False])
def test_the_policy_for_unknown_stretches_makes_another_world_only_if_there_are_some(
    known: bool, tmp_path: Path
) -> None:
    trace = Trace.of(
        [0, 1], [0, 0], [5, 5], ["online", "online" if known else "unknown"], clients=2, horizon_us=10
    )
    runs = []
    for unknown in ("offline", "online"):
        folder = write_run(tmp_path / unknown, tables={"evals": evals_table([[0.5, 0.6]])})
        trace.write(folder / "world.parquet")
        config = folder / "config.resolved.toml"
        text = config.read_text(encoding="utf-8")
        config.write_text(text.replace("[world]\n", f'[world]\nunknown = "{unknown}"\n'), encoding="utf-8")
        runs.append(analysis.open_run(folder))
    assert analysis.compare(*runs).same_world is known


def test_arms_with_the_same_label_keep_their_own_numbers(tmp_path: Path) -> None:
    values = {"base": 0.2, "x/fedfv": 0.4, "y/fedfv": 0.6}
    runs = [
        analysis.open_run(write_run(tmp_path / name, tables={"evals": evals_table([[value, value]])}))
        for name, value in values.items()
    ]
    assert [run.label for run in runs] == ["base", "fedfv", "fedfv"]
    rows = [line.split()[:3] for line in shown(analysis.arms_table(runs)).splitlines() if "fedfv" in line]
    assert rows == [["fedfv", "(x/fedfv)", "40.00"], ["fedfv", "(y/fedfv)", "60.00"]]
    assert analysis.findings(runs) == analysis.findings(analysis.open_all([run.folder for run in runs]))


def test_unlike_runs_are_refused_by_client(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="client 2 was evaluated in only one"):
        pair(tmp_path / "x", [0.5, 0.5], [0.5, 0.5, 0.5])
    with pytest.raises(RunError, match="client 1 has 20 samples in the first, 30 in the second"):
        pair(tmp_path / "y", [0.5, 0.5], [0.5, 0.5], n=[20, 30])
    with pytest.raises(
        RunError, match="different data, of data seeds 3 and 4; to compare over seeds, run a study"
    ):
        pair(tmp_path / "z", [0.5, 0.5], [0.5, 0.5], seed=4)
    with pytest.raises(RunError, match="no client has samples"):
        analysis.compare(*[_unsampled(tmp_path / name) for name in "ab"])


def _unsampled(folder: Path) -> analysis.Run:
    return analysis.open_run(write_run(folder, tables={"evals": evals_table([[np.nan]], n=0)}))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=30))
def test_swapping_the_runs_turns_the_signs(counts: list[tuple[int, int]]) -> None:
    accuracy = np.array(counts) / 20
    there = _comparison(accuracy[:, 0], accuracy[:, 1])
    back = _comparison(accuracy[:, 1], accuracy[:, 0])
    assert (there.gained, there.lost, there.equal) == (back.lost, back.gained, back.equal)
    assert there.gained + there.lost + there.equal == len(counts)
    assert there.mean_percent == pytest.approx(-back.mean_percent, abs=1e-12)
    assert there.standard_error_percent == pytest.approx(back.standard_error_percent, abs=1e-12)


def _comparison(first: np.ndarray, second: np.ndarray) -> Comparison:
    clients = np.arange(len(first))
    return Comparison("a", "b", "test", clients, 100 * (second - first), {}, True)


def test_a_client_without_an_accuracy_is_neither_better_nor_worse_nor_equal(tmp_path: Path) -> None:
    found = pair(tmp_path, [0.2, 0.4, 0.6, 0.8], [np.nan, 0.5, 0.5, 0.8])
    assert (found.gained, found.lost, found.equal, found.unknown) == (1, 1, 1, 1)
    assert found.rows()[-1] == ("clients without a number", "", "", "1")
    assert pair(tmp_path / "more", [0.2], [0.2]).rows()[-1][0] == "clients equal"
