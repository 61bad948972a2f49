from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.text import Text
from scipy import stats

from fedsim import analysis
from fedsim.analysis.plots.paired_differences import paired_differences
from fedsim.analysis.plots.participation_groups import participation_groups
from fedsim.analysis.statistics.correlation import correlations, pearson, spearman
from fedsim.analysis.statistics.participation import (
    availability,
    groupings,
    groups,
    held_labels,
    in_order,
    label_counts,
    label_sets,
    losses,
    run_clients,
    worst_group,
)
from fedsim.analysis.tables.group_tables import (
    participation_differences,
    participation_frames,
    participation_tables,
    run_participation_tables,
)
from fedsim.common.errors import ConfigError, RunError, TraceError
from fedsim.worlds.trace import Trace, read_trace
from fedsim.worlds.world import World
from small import run as simulated
from small import small
from synthetic_runs import evals_table, jobs_table, write_run
from synthetic_studies import write_study

ACCURACY = [0.9, 0.7, 0.5, 0.3, 0.8]


def made_trace(after_end: Any = "repeat", **more: Any) -> Trace:
    """Client k is online for k hours of 10; client 4 twice, 2 h and 3 h. Client k computes k + 1 samples per second."""
    client, start, end = [1, 2, 3, 4, 4], [0, 1, 2, 0, 5], [1, 3, 5, 2, 8]
    kinds = ["online"] * 5 + ["compute"] * 5
    rows = {
        "client": [*client, *range(5)],
        "start_us": [*start, *[0] * 5],
        "end_us": [*end, *[10] * 5],
        "value": [*[1.0] * 5, *(1 / (k + 1) for k in range(5))],
    }
    about = more.pop(
        "about", pa.table({"region": ["north", "south", "north", "south", None], "n": [1, 2, 3, 4, 5]})
    )
    columns = (rows["client"], np.array(rows["start_us"]), np.array(rows["end_us"]))
    return Trace.of(
        *columns,
        kinds,
        np.array(rows["value"]),
        clients=5,
        horizon_us=10,
        after_end=after_end,
        about=about,
        **more,
    )


@pytest.fixture
def run(tmp_path: Path) -> analysis.Run:
    jobs = jobs_table(
        dispatch_us=np.zeros(8),
        end_us=np.ones(8),
        client=[0, 1, 1, 2, 2, 2, 3, 3],
        status=["aggregated", "aggregated", "lost", "remembered", "late", "lost", "lost", "lost"],
    )
    tables = {"jobs": jobs, "evals": evals_table([ACCURACY], n=[10, 10, 10, 10, 40])}
    folder = write_run(tmp_path / "run", tables=tables, virtual_us=20)
    made_trace().write(folder / "world.parquet")
    return analysis.open_run(folder)


def test_clients_are_told_by_what_became_of_them(run: analysis.Run) -> None:
    frame = run_clients(run)
    assert frame.index.name == "client"
    assert frame["accuracy_percent"].tolist() == pytest.approx([90, 70, 50, 30, 80])
    assert frame["jobs"].tolist() == [1, 2, 3, 2, 0]
    assert frame["used"].tolist() == [1, 1, 1, 0, 0]
    assert frame["lost"].tolist() == [0, 1, 1, 2, 0]
    assert frame["availability"].tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.5])
    assert frame["compute"].tolist() == pytest.approx([1, 2, 3, 4, 5])
    assert frame["about_n"].tolist() == [1, 2, 3, 4, 5]
    assert groupings(frame) == ["availability", "compute", "used", "lost", "region", "about_n"]


def test_facts_that_are_named_like_labels_or_columns_are_kept_apart(run: analysis.Run) -> None:
    facts = pa.table(
        {
            "label": [*"abcde"],
            "labels": [1, 2, 3, 4, 5],
            "label_quality": ["good", "bad", "good", "bad", None],
            "n": [1, 2, 3, 4, 5],
            "about_n": [*"vwxyz"],
        }
    )
    made_trace(about=facts).write(run.folder / "world.parquet")
    frame = run_clients(run)
    names = ["about_label", "about_labels", "about_label_quality", "about_n", "about_about_n"]
    assert set(names) <= set(groupings(frame))
    assert not {"label", "labels", "label_quality"} & set(frame)
    assert (frame["n"].tolist(), frame["about_n"].tolist()) == ([10, 10, 10, 10, 40], [*"vwxyz"])
    assert frame["about_about_n"].tolist() == [1, 2, 3, 4, 5]
    assert label_sets(frame) is None
    assert groups(frame, "about_label_quality")["clients"].tolist() == [2, 2, 1]
    assert analysis.run_participation(run)["groups"]["by"].isin(names).any()


def test_a_run_without_its_world_still_knows_its_jobs(run: analysis.Run) -> None:
    (run.folder / "world.parquet").unlink()
    frame = run_clients(run)
    assert "availability" not in frame
    assert groupings(frame) == ["used", "lost"]
    with pytest.raises(ConfigError, match="clients cannot be grouped by 'use'; did you mean 'used'"):
        groups(frame, "use")
    with pytest.raises(ConfigError, match="without labels"):
        groups(frame, "label")


@pytest.mark.parametrize(
    ("after_end", "end", "expected"),
    [
        ("repeat", 10, [0, 0.1, 0.2, 0.3, 0.5]),
        ("repeat", 12, [0, 2 / 12, 3 / 12, 3 / 12, 7 / 12]),
        ("stop", 20, [0, 0.05, 0.1, 0.15, 0.25]),
        ("stop", 2, [0, 0.5, 0.5, 0, 1]),
    ],
)
def test_availability_is_the_share_of_the_runs_time(after_end: str, end: int, expected: list[float]) -> None:
    assert availability(made_trace(after_end), end).tolist() == pytest.approx(expected)


def test_availability_where_nothing_is_known() -> None:
    trace = Trace.of(
        [0, 1], [0, 5], [5, 10], ["online", "unknown"], clients=2, horizon_us=10, after_end="stop"
    )
    assert availability(trace, 10).tolist() == [0.5, 0]
    assert availability(trace, 10, "online").tolist() == [0.5, 0.5]
    with pytest.raises(TraceError, match="nothing is known"):
        availability(trace, 10, "error")
    assert np.isnan(availability(trace, 0)).all()


def test_groups_say_range_size_and_both_means(run: analysis.Run) -> None:
    found = groups(run_clients(run), "availability").set_index("group")
    assert found["clients"].tolist() == [2, 1, 1, 1]
    first = found.iloc[0]
    assert (first["from"], first["to"], first["samples"], first["min_percent"]) == (0, 0.1, 20, 70)
    assert (first["mean_percent"], first["std_percent"]) == pytest.approx((80, 10))
    regions = groups(run_clients(run), "region").set_index("group")
    assert regions.index.tolist() == ["north", "south", "unknown"]
    assert regions["mean_percent"].tolist() == pytest.approx([70, 50, 80])
    assert groups(run_clients(run), "used")["group"].tolist() == ["0", "1"]


def test_weights_decide_between_clients_and_samples() -> None:
    frame = pd.DataFrame({"n": [10, 30], "accuracy_percent": [80.0, 40.0], "region": ["x", "x"]})
    (row,) = groups(frame, "region").to_dict("records")
    assert (row["mean_percent"], row["mean_over_samples_percent"]) == pytest.approx((60, 50))
    found = pd.DataFrame({"mean_percent": [60.0, 55.0], "mean_over_samples_percent": [50.0, 58.0]})
    assert worst_group(found).name == 1
    assert worst_group(found, weighted=True).name == 0


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([16.119559012, 45.79976195, 117.095], ["16.12", "45.8", "117.1"]),
        ([1.00001, 1.00002, 2.0], ["1.00001", "1.00002", "2"]),
        ([3, 1, 2], ["1", "2", "3"]),
        (["b", "a", "c"], ["a", "b", "c"]),
    ],
)
def test_few_numbers_are_written_as_short_as_tells_them_apart(values: list[Any], names: list[str]) -> None:
    frame = pd.DataFrame({"n": [1] * 3, "accuracy_percent": [1.0] * 3, "by": values})
    assert groups(frame, "by", intervals=False)["group"].tolist() == names


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=60))
def test_quarters_hold_everybody_once_and_keep_equals_together(values: list[int]) -> None:
    accuracy = 100.0 * np.arange(len(values)) / len(values)
    frame = pd.DataFrame({"n": 1, "accuracy_percent": accuracy, "used": values})
    found = groups(frame, "used", intervals=False)
    assert found["clients"].sum() == len(values)
    assert (found["to"].to_numpy()[:-1] < found["from"].to_numpy()[1:]).all()
    assert np.average(found["mean_percent"], weights=found["clients"]) == pytest.approx(accuracy.mean())


def test_survivors_and_victims(run: analysis.Run) -> None:
    found = losses(run_clients(run)).set_index("group")
    assert found["clients"].to_dict() == {
        "none lost": 1,
        "some lost": 3,
        "up to the median": 3,
        "above the median": 1,
        "no job": 1,
    }
    assert found["mean_percent"].to_dict() == pytest.approx(
        {"none lost": 90, "some lost": 50, "up to the median": 70, "above the median": 30, "no job": 80}
    )
    assert np.isnan(found.loc["none lost", "low"])
    assert found.loc["some lost", "low"] == pytest.approx(30)


def test_the_median_of_lost_jobs_is_that_of_clients_with_a_job() -> None:
    """Of those with a job half lost more than two; seven clients without a job, which lost none, do not count."""
    lost = [1, 2, 3, 4, *[0] * 7]
    frame = pd.DataFrame({"n": 1, "accuracy_percent": 50.0, "jobs": [5] * 4 + [0] * 7, "lost": lost})
    found = losses(frame, intervals=False).set_index("group")["clients"]
    assert (found["up to the median"], found["above the median"], found["no job"]) == (2, 2, 7)


pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 20), st.integers(1, 4)), min_size=3, max_size=30)


@settings(max_examples=60, deadline=None)
@given(pairs)
def test_correlations_are_scipys_and_a_weight_counts_as_so_many_clients(
    rows: list[tuple[int, int, int]],
) -> None:
    x, y, weights = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    each = weights.astype(int)
    for statistic, theirs in ((pearson, stats.pearsonr), (spearman, stats.spearmanr)):
        for w, a, b in ((np.ones(len(x)), x, y), (weights, np.repeat(x, each), np.repeat(y, each))):
            found = statistic(x, y, w)(np.ones((1, len(x))))[0]
            if len(set(x)) < 2 or len(set(y)) < 2:
                assert np.isnan(found)
            else:
                assert found == pytest.approx(theirs(a, b).statistic, abs=1e-9)


def test_a_run_without_steps_has_no_correlations_and_no_warnings(tmp_path: Path) -> None:
    stop = {"steps": 5, "metric": "mean_percent", "target": 0.0}
    run = analysis.open_run(simulated(small(stop=stop), tmp_path).folder)
    assert run.manifest["steps"] == 0
    found = correlations(run_clients(run), intervals=True)
    assert found["value"].isna().all()
    assert analysis.write_report([run], tmp_path / "page.html").is_file()


@pytest.mark.parametrize("diverged", [1, 6])
def test_accuracies_that_are_no_numbers_have_no_correlation(diverged: int) -> None:
    accuracy = np.where(np.arange(6) < diverged, np.nan, np.arange(6.0))
    found = correlations(pd.DataFrame({"n": 10, "accuracy_percent": accuracy, "used": np.arange(6)}))
    assert len(found) == 4
    assert found["value"].isna().all()


@pytest.mark.parametrize("column", ["used", "accuracy_percent"])
@pytest.mark.parametrize("different", [1, 4, 5])
def test_a_few_clients_that_differ_give_a_correlation_no_interval(column: str, different: int) -> None:
    """With one victim among 20 every resample that has a correlation holds the victim."""
    rng = np.random.default_rng(different)
    varies = {"used": rng.normal(size=20), "accuracy_percent": rng.normal(50, 5, 20)}
    frame = pd.DataFrame({"n": 10} | varies | {column: np.arange(20) < different})
    found = correlations(frame.astype(float))
    assert found["value"].notna().all()
    assert found["low"].notna().all() == found["high"].notna().all() == (different == 5)
    of_five = correlations(
        frame.astype(float).iloc[:5].assign(used=np.arange(5.0), accuracy_percent=np.arange(5.0))
    )
    assert of_five["low"].notna().all()  # all are different


@pytest.mark.parametrize(
    ("used", "accuracy"),
    [
        ([1, 1, 2, 3, 4], [10, 20, 30, 45, 50]),
        ([1, 2, 3, 4, 5], [10, 20, 30, 30, 50]),
        ([0] * 5 + [1] * 4, list(range(9))),
    ],
    ids=["a tie", "equal accuracies", "halves"],
)
def test_among_few_clients_half_suffice(used: list[int], accuracy: list[int]) -> None:
    frame = pd.DataFrame({"n": 10, "accuracy_percent": accuracy, "used": used}, dtype=float)
    assert correlations(frame)["low"].notna().all()


def test_sets_of_clients_that_differ_count_once() -> None:
    """Six clients differ, but the sets of labels that are drawn together are three."""
    frame = pd.DataFrame({"n": 10.0, "accuracy_percent": np.arange(20.0), "used": np.arange(20.0) < 6})
    alone = correlations(frame.astype(float))
    held = np.eye(10, dtype=int)[np.repeat(np.arange(10), 2)]
    together = correlations(frame.astype(float).assign(**{f"label_{i}": held[:, i] for i in range(10)}))
    assert alone["low"].notna().all()
    assert together["low"].isna().all()
    assert together["value"].tolist() == alone["value"].tolist()


def test_correlations_have_intervals_over_clients() -> None:
    rng = np.random.default_rng(2)
    used = rng.integers(0, 30, 80)
    frame = pd.DataFrame({"n": 10, "accuracy_percent": 50 + used + rng.normal(0, 8, 80), "used": used})
    found = correlations(frame.assign(availability=0.5))
    assert len(found) == 2 * 4
    strong = found[found["with"] == "used"]
    assert (
        (strong["low"] > 0.5) & (strong["low"] < strong["value"]) & (strong["value"] < strong["high"])
    ).all()
    theirs = stats.bootstrap(
        (used, frame["accuracy_percent"]),
        lambda a, b: stats.pearsonr(a, b).statistic,
        paired=True, vectorized=False, method="percentile", n_resamples=2000, random_state=1,
    ).confidence_interval  # fmt: skip
    ours = strong[strong["method"] == "pearson"].iloc[0]
    np.testing.assert_allclose((ours["low"], ours["high"]), theirs, atol=0.03)
    assert found[found["with"] == "availability"]["value"].isna().all()


def test_time_below_a_threshold(tmp_path: Path) -> None:
    rows = [[0.1, 0.1, 0.9], [0.6, 0.2, 0.4], [0.6, 0.3, 0.9]]
    run = analysis.open_run(
        write_run(tmp_path / "r", tables={"evals": evals_table(rows, n=10, every_us=10)}, virtual_us=40)
    )
    found = analysis.time_below(run, 50)
    assert found["below_share"].tolist() == pytest.approx([0.25, 1, 0.25])
    assert found["reached_us"].tolist() == [10, -1, 0]
    improved = analysis.improved_over_time(run)
    assert improved["since_last_percent"].tolist() == pytest.approx([200 / 3, 100])
    assert improved["since_start_percent"].tolist() == pytest.approx([200 / 3, 100])
    assert improved["time_us"].tolist() == [10, 20]


def test_a_client_that_is_not_evaluated_keeps_its_last_accuracy(tmp_path: Path) -> None:
    table = evals_table([[0.2, 0.9], [0.8, 0.1], [0.8, 0.9]], n=10, every_us=10)
    kept = table.filter(pa.array([True, False, True, True, True, True]))  # client 1 is first evaluated at 10
    run = analysis.open_run(write_run(tmp_path / "r", tables={"evals": kept}, virtual_us=20))
    assert analysis.time_below(run, 50)["below_share"].tolist() == pytest.approx([0.5, 1])
    kept = table.filter(pa.array([True, True, True, False, True, True]))  # not at 10, where it would be below
    run = analysis.open_run(write_run(tmp_path / "s", tables={"evals": kept}, virtual_us=20))
    assert analysis.time_below(run, 50)["below_share"].tolist() == pytest.approx([0.5, 0])


def test_outputs_that_are_not_finite_are_below_every_threshold(tmp_path: Path) -> None:
    rows = [[0.6, 0.2], [np.nan, 0.6], [np.nan, 0.6]]
    tables = {"evals": evals_table(rows, n=10, every_us=10)}
    run = analysis.open_run(write_run(tmp_path / "r", tables=tables, virtual_us=40))
    found = analysis.time_below(run, 50)
    assert found["below_share"].tolist() == pytest.approx([0.75, 0.25])
    assert found["reached_us"].tolist() == [0, 10]


def test_improvement_since_the_start_is_not_that_since_the_last_evaluation(tmp_path: Path) -> None:
    rows = [[0.5, 0.5], [0.9, 0.1], [0.8, 0.2]]
    run = analysis.open_run(write_run(tmp_path / "r", tables={"evals": evals_table(rows, n=10, every_us=10)}))
    improved = analysis.improved_over_time(run)
    assert improved["since_last_percent"].tolist() == [50, 50]
    assert improved["since_start_percent"].tolist() == [50, 50]
    rows = [[0.5, 0.5], [0.9, 0.1], [0.8, 0.05]]
    run = analysis.open_run(write_run(tmp_path / "s", tables={"evals": evals_table(rows, n=10, every_us=10)}))
    improved = analysis.improved_over_time(run)
    assert improved["since_last_percent"].tolist() == [50, 0]
    assert improved["since_start_percent"].tolist() == [50, 50]


@pytest.mark.parametrize(("correct", "n"), [(29, 100), (57, 100), (29, 50)])
def test_an_accuracy_at_the_threshold_is_not_below_it(correct: int, n: int, tmp_path: Path) -> None:
    run = analysis.open_run(
        write_run(tmp_path / "r", tables={"evals": evals_table([[correct / n]], n=n)}, virtual_us=20)
    )
    found = analysis.time_below(run, 100 * correct // n)
    assert (found["below_share"].tolist(), found["reached_us"].tolist()) == ([0], [0])


def made(levels: dict[str, str], seed: int) -> dict[str, Any]:
    gain = 0.1 if levels["rule"] == "fair" else 0.0
    jobs = jobs_table(
        dispatch_us=np.zeros(4),
        end_us=np.ones(4),
        client=[0, 1, 2, 3],
        status=["aggregated", "aggregated", "lost", "late"],
    )
    return {"evals": evals_table([[0.8, 0.8, 0.4 + gain, 0.5]], n=10 * seed), "jobs": jobs}


def test_a_study_is_summed_up_by_group_and_compared(tmp_path: Path) -> None:
    compare = {"axis": "rule", "group": "used", "metrics": ["mean_percent"]}
    study = write_study(
        tmp_path / "s", made, axes={"rule": ("plain", "fair")}, seeds=(1, 2, 3), compare=compare
    )
    frames = participation_frames(study)
    assert len(frames["participation.groups"]) == 2 * 3 * 2
    measures = frames["participation.measures"].set_index(["rule", "seed"])
    assert measures["worst_group_percent"].tolist() == pytest.approx([45] * 3 + [50] * 3)
    assert measures["group_gap_percent"].tolist() == pytest.approx([35] * 3 + [30] * 3)
    assert measures["victims_gap_percent"].tolist() == pytest.approx([30] * 3 + [20] * 3)
    assert np.isnan(measures["spearman_availability"]).all()
    families = participation_differences(study, frames["participation.measures"])
    worst, _, gap, victims = (family[0] for family in families)
    assert (worst.mean, gap.mean, victims.mean) == pytest.approx((5, -5, -10))
    assert worst.better == gap.better == victims.better == 1
    assert len(participation_tables(study)) == 3
    told = run_participation_tables(study.run(study.cells[0]))[0].caption
    assert "Those of ten or fewer cover less than 95 %." in str(told)
    assert set(frames) <= set(analysis.study_frames(study))


def test_a_mean_over_the_seeds_with_victims_alone_says_so(tmp_path: Path) -> None:
    def seldom(levels: dict[str, str], seed: int) -> dict[str, Any]:
        tables = made(levels, seed)
        if seed == 1:
            status = pa.array(["aggregated"] * 4).cast(tables["jobs"].schema.field("status").type)
            tables["jobs"] = tables["jobs"].set_column(
                tables["jobs"].column_names.index("status"), "status", status
            )
        return tables

    study = write_study(
        tmp_path / "s", seldom, axes={"rule": ("plain",)}, seeds=(1, 2, 3), compare={"group": "used"}
    )
    of_groups, measures = participation_tables(study)
    means = [str(cell).split("\n") for cell in list(of_groups.columns[3].cells)]
    assert [lines[2:] for lines in means] == [["2 seeds"], []]  # all clients were used alike in one
    assert list(of_groups.columns[1].cells) == [
        Text("0"),
        Text("1"),
    ]  # though the first seed has the second alone
    spread = analysis.study_document(study, tmp_path).tables["participation-groups"]
    of_report = pd.DataFrame(spread.rows, columns=[column.heading for column in spread.columns])
    assert of_report["group"].tolist() == ["0", "1"]
    assert of_report["seeds"].tolist() == [2, 3]
    assert of_report[["fewest clients", "most clients"]].to_numpy().tolist() == [[2, 2], [2, 4]]
    cells = {str(c.header): str(next(iter(c.cells))).split("\n") for c in measures.columns}
    assert cells["victims gap percent"] == ["30 ± 0", "–", "2 seeds"]
    assert cells["group gap percent"][0].startswith("2")
    assert len(cells["group gap percent"]) == 2
    table = analysis.study_document(study, tmp_path).tables["participation-measures"]
    row = dict(zip((c.heading for c in table.columns), table.rows[0], strict=False))
    assert (row["seeds"], row["of seeds"]) == (3, 0)  # the last: nothing is known of availability
    at = [c.heading for c in table.columns].index("victims gap, %")
    assert table.rows[0][at : at + 3] == (30, 0, 2)


@given(st.permutations(["lowest 1/4", "second 1/4", "third 1/4", "highest 1/4", "unknown"]))
def test_groups_have_one_order_however_they_are_found(names: list[str]) -> None:
    assert in_order(names) == ["lowest 1/4", "second 1/4", "third 1/4", "highest 1/4", "unknown"]


def test_groups_of_numbers_are_in_the_order_of_these() -> None:
    assert in_order(["10", "2", "1e+05", "unknown", "2"]) == ["2", "10", "1e+05", "unknown"]
    assert in_order(["south", "0 3", "north", "unknown"]) == ["0 3", "north", "south", "unknown"]


def test_a_figure_of_groups_has_them_in_order_and_counts_their_clients() -> None:
    rows = {"by": "used", "mean_percent": 50.0, "low": 40.0, "high": 60.0}
    few, all_of = (
        pd.DataFrame([{**rows, "group": name, "fewest": n, "most": n} for name, n in counts.items()])
        for counts in (
            {"lowest 1/4": 8, "highest 1/4": 3},
            {"lowest 1/4": 4, "second 1/4": 4, "highest 1/4": 3},
        )
    )
    [axes] = participation_groups({"few": few, "all": all_of}, "an interval").figure.axes
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["lowest 1/4\n(4–8)", "second 1/4\n(4)", "highest 1/4\n(3)"]
    assert [line.get_xdata().round().tolist() for line in axes.lines[::2]] == [[0, 2], [0, 1, 2]]


def test_a_gap_is_better_the_nearer_it_is_to_zero(tmp_path: Path) -> None:
    def turned(levels: dict[str, str], seed: int) -> dict[str, Any]:
        jobs = jobs_table(dispatch_us=[0, 0], end_us=[1, 1], client=[0, 1], status=["aggregated", "lost"])
        victim = {"plain": 0.5, "turned": 0.9, "even": 0.6 + seed / 100}[levels["rule"]]
        return {"evals": evals_table([[0.6, victim]], n=100), "jobs": jobs}

    axes = {"rule": ("plain", "turned", "even")}
    study = write_study(tmp_path / "s", turned, axes=axes, seeds=(1, 2, 3), compare={"group": "used"})
    measures = participation_frames(study)["participation.measures"]
    assert measures["victims_gap_percent"].tolist() == pytest.approx([10] * 3 + [-30] * 3 + [-1, -2, -3])
    turned_gap, even_gap = participation_differences(study, measures)[-1]
    assert (turned_gap.mean, turned_gap.better, turned_gap.worse) == (pytest.approx(-40), 0, 1)
    assert (even_gap.mean, even_gap.better, even_gap.worse) == (pytest.approx(-12), 1, 0)
    assert "a victims gap nearer to 0 is better" in paired_differences([turned_gap], axes["rule"]).caption


def test_a_study_is_grouped_by_sets_of_labels(tmp_path: Path) -> None:
    def run(levels: dict[str, str], seed: int) -> dict[str, Any]:
        return {"evals": evals_table([np.linspace(0.2, 0.8, 12) + seed / 100], n=10)}

    study = write_study(
        tmp_path / "s", run, axes={"rule": ("plain", "fair")}, seeds=(1,), compare={"group": "labels"}
    )
    for cell in study.cells:
        data = {
            "task": {"name": "digits", "clients": 12},
            "partition": {"name": "pathological", "classes": 2},
        }
        study.run(cell).config.update(data | {"seed": cell.seed})
    found = analysis.study_participation(study)["groups"]
    assert set(found["by"]) == {"labels"}
    assert all(len(name.split()) == 2 for name in found["group"])
    assert found.groupby(["rule", "seed"])["clients"].sum().eq(12).all()


def test_groups_may_be_the_callers_own(tmp_path: Path) -> None:
    accuracies = np.linspace(0.1, 0.9, 5)
    minority = np.array([True, False, False, True, False])

    def run(levels: dict[str, str], seed: int) -> dict[str, Any]:
        return {"evals": evals_table([accuracies], n=[10, 10, 0, 10, 30])}

    study = write_study(tmp_path / "s", run, axes={"rule": ("plain", "fair")}, seeds=(1,))
    for cell in study.cells:
        study.run(cell).config["task"] = {"name": "digits", "clients": 5}
    cell = study.run(study.cells[0])
    found = analysis.run_participation(cell, {"minority": minority, "town": list("abcab")})["groups"]
    assert found[["by", "group", "clients"]].to_numpy().tolist() == [
        ["minority", "False", 2],
        ["minority", "True", 2],
        ["town", "a", 2],
        ["town", "b", 2],
    ]
    np.testing.assert_allclose(found["mean_percent"], [60, 40, 40, 60])
    np.testing.assert_allclose(found["mean_over_samples_percent"][0], (10 * 30 + 30 * 90) / 40)
    of_study = analysis.study_participation(study, {"minority": minority})
    assert of_study["measures"]["worst_group_percent"].tolist() == pytest.approx([40, 40])
    with pytest.raises(
        ConfigError, match=r"by\['town'\]: expected the group of each of the 5 clients, found .*\[2\]"
    ):
        analysis.run_participation(cell, {"town": ["a", "b"]})
    with pytest.raises(ConfigError, match="'used' is the name of another column"):
        analysis.run_participation(cell, {"used": minority})
    with pytest.raises(ConfigError, match="expected one grouping, found 2"):
        analysis.study_participation(study, {"a": minority, "b": minority})


@pytest.mark.parametrize("recorded", [True, False])
def test_labels_are_those_of_the_run(recorded: bool, tmp_path: Path) -> None:
    run = analysis.open_run(simulated(small(), tmp_path).folder)
    if recorded:
        run.config["task"]["name"] = "mine.py:mine"  # the data are not needed
    else:
        (run.folder / "clients.parquet").unlink()  # they are divided again
    counts = label_counts(run)
    assert counts.shape == (12, 10)
    assert ((counts > 0).sum(axis=1) == 2).all()
    found = analysis.run_participation(run, ["label", "labels", "availability"])
    by_labels = found["groups"][found["groups"]["by"] == "labels"]
    sets, alike = np.unique(counts > 0, axis=0, return_counts=True)
    names = {" ".join(map(str, np.flatnonzero(row))): n for row, n in zip(sets, alike, strict=True)}
    assert dict(zip(by_labels["group"], by_labels["clients"], strict=True)) == names
    by_label = found["groups"][found["groups"]["by"] == "label"]
    assert by_label["clients"].sum() == 24
    assert by_label["group"].tolist() == [str(c) for c in range(10) if (counts[:, c] > 0).any()]
    trace = read_trace(run.folder / "world.parquet")
    world, end = World(trace, 12), run.manifest["virtual_us"]
    seen = np.mean([world.online(t) for t in np.linspace(0, end - 1, 4000).astype(int).tolist()], axis=0)
    assert 0 < seen.mean() < 1
    np.testing.assert_allclose(run_clients(run)["availability"], seen, atol=0.002)


def test_code_that_a_folder_names_is_not_run_to_look_at_it(run: analysis.Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("raise SystemExit('it was run')")
    data = {"task": {"name": "digits", "clients": 5}, "partition": {"name": "iid"}}
    run.config.update(data | {"algorithm": {"name": f"{mine}:mine"}})
    assert label_counts(run).shape == (5, 10)
    run.config["task"] = {"name": "mine.py:mine"}
    with pytest.raises(RunError, match=r"task.name: expected one of the installed, found 'mine.py:mine'"):
        run_clients(run, labels=True)


def alike(copies: int, clients: int = 8) -> pd.DataFrame:
    """Return `copies` clients for each of so many labels, of which each client holds one."""
    rng = np.random.default_rng(3)
    each = pd.DataFrame(
        {"n": 10, "accuracy_percent": rng.normal(60, 9, clients), "used": rng.normal(size=clients)}
    )
    for label in range(clients):
        each[f"label_{label}"] = (np.arange(clients) == label) * 5
    return pd.concat([each] * copies, ignore_index=True).assign(availability=0.5)


def test_clients_with_the_same_labels_are_one_observation() -> None:
    """Copies of clients add nothing, if they are drawn together; drawn one by one they narrow the interval."""
    once, often = alike(1), alike(5)
    for table in (lambda frame: groups(frame, "availability"), correlations):
        one, many = (table(frame)[["low", "high"]].to_numpy() for frame in (once, often))
        np.testing.assert_allclose(one, many, rtol=1e-9)
        unknown = table(often.drop(columns=[c for c in often if str(c).startswith("label_")]))
        assert (np.ptp(unknown[["low", "high"]].to_numpy()[0]) < 0.7 * np.ptp(one[0])).all()


def test_shared_labels_widen_an_interval_by_the_design_effect() -> None:
    """Of m clients with a correlation of rho the mean varies 1 + (m - 1) rho times as much (Kish, Survey Sampling)."""
    rng, sets, m, rho = np.random.default_rng(5), 45, 6, 0.5
    both = rng.normal(size=(sets, 1)) * np.sqrt(rho) + rng.normal(size=(sets, m)) * np.sqrt(1 - rho)
    labels = np.array([(i, j) for i in range(10) for j in range(i)])
    frame = pd.DataFrame({"n": 10, "accuracy_percent": 60 + 5 * both.ravel(), "availability": 0.5})
    for label in range(10):
        frame[f"label_{label}"] = np.repeat(5 * (labels == label).any(axis=1), m)
    together, alone = (groups(each, "availability").iloc[0] for each in (frame, frame[frame.columns[:3]]))
    between, within = m * both.mean(axis=1).var(ddof=1), both.var(axis=1, ddof=1).mean()
    measured = (between - within) / (between + (m - 1) * within)
    ratio = (together["high"] - together["low"]) / (alone["high"] - alone["low"])
    assert ratio == pytest.approx(np.sqrt(1 + (m - 1) * measured), rel=0.08)
    assert ratio > 1.5


def test_sets_of_labels() -> None:
    held = [(1, 0, 2), (3, 0, 1), (0, 1, 0), (1, 1, 1), (2, 3, 4), (0, 0, 0)]
    frame = pd.DataFrame(held, columns=["label_0", "label_1", "label_2"])
    sets = label_sets(frame)
    assert sets is not None
    assert sets[0] == sets[1]
    assert len(set(sets.tolist())) == 5  # those that hold all labels are not alike
    assert label_sets(frame[[]]) is None


def test_a_label_is_held_from_a_tenth_of_the_samples_on() -> None:
    counts = np.array([[10, 89, 1], [9, 91, 0], [0, 0, 0], [1, 9, 0]])
    assert held_labels(counts).tolist() == [
        [True, True, False],
        [False, True, False],
        [False, False, False],
        [True, True, False],
    ]
    few = pd.DataFrame(counts, columns=["label_0", "label_1", "label_2"])
    sets = label_sets(pd.concat([few, few.iloc[2:3]]))
    assert sets is not None
    assert sets[0] == sets[3]
    assert len(set(sets.tolist())) == 4  # nor are those alike that hold none


def test_accuracies_are_means_over_the_last_evaluations(tmp_path: Path) -> None:
    accuracy = np.array([[0.2, 0.4], [0.3, 0.9], [0.7, 0.8]])
    made = analysis.open_run(
        write_run(tmp_path / "run", tables={"evals": evals_table(accuracy)}, virtual_us=None)
    )
    assert run_clients(made)["accuracy_percent"].tolist() == pytest.approx([70, 80])
    assert run_clients(made, last=2)["accuracy_percent"].tolist() == pytest.approx([50, 85])
    with pytest.raises(RunError, match="last: expected 4 evaluations to average, found 3"):
        run_clients(made, last=4)
    other = evals_table(accuracy, n=np.array([[20, 20], [20, 10], [20, 20]]))
    made = analysis.open_run(write_run(tmp_path / "other", tables={"evals": other}, virtual_us=None))
    with pytest.raises(
        RunError, match=r"last: expected the same clients in all evaluations .* found others at step 2"
    ):
        run_clients(made, last=2)
