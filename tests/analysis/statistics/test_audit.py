"""What is made of audits, against numbers by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.table import Table

from fedsim import analysis
from fedsim.analysis.plots.audit_by_age import audit_by_age
from fedsim.analysis.plots.audit_losses import audit_losses
from fedsim.analysis.statistics.audit import (
    audit_frame,
    by_age,
    by_run,
    conflicts_found,
    realised,
    useful_age,
)
from fedsim.analysis.statistics.bootstrap import interval, mean_of
from fedsim.analysis.statistics.participation import label_counts
from fedsim.analysis.tables.audit_tables import advice, age_rows, audit_tables, change_rows, run_rows
from fedsim.common.errors import RunError
from small import run, small


def audit(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    """Rows of (client, age, cosine, norm ratio, remembered with mean, true with mean, change of loss)."""
    names = ("client", "age", "cosine", "norm_ratio", "remembered_with_mean", "true_with_mean", "loss_after")
    frame = pd.DataFrame(rows, columns=names).assign(step=20, loss_before=0.0)
    group = np.where(frame["age"] == 0, "present", np.where(frame["age"] > 0, "remembered", "unknown"))
    return frame.assign(group=group, true_with_step=frame["true_with_mean"], present=frame["age"] == 0)


def told(age: int, hits: int, false: int, missed: int, quiet: int) -> list[tuple[Any, ...]]:
    """Audits of one age, each of a client of its own: reported and real, reported alone, real alone, neither."""
    signs = [(-1, -1)] * hits + [(-1, 1)] * false + [(1, -1)] * missed + [(1, 1)] * quiet
    return [(c, age, 0.5, 2.0, 0.3 * a, 0.4 * b, 0.1 * c) for c, (a, b) in enumerate(signs)]


def test_conflicts_are_counted_by_hand() -> None:
    found = by_age(audit(told(1, 6, 2, 3, 9) + told(4, 1, 1, 1, 1)), (1, 3))
    assert found["from_age"].tolist() == [1, 3]
    assert found["to_age"].tolist() == [2, 4]
    assert found["n"].tolist() == [20, 4]
    first = found.iloc[0]
    assert (first["reported"], first["real"]) == (8 / 20, 9 / 20)
    assert first["precision"] == pytest.approx(6 / 8)
    assert first["recall"] == pytest.approx(6 / 9)
    assert first["agreement"] == pytest.approx((6 / 9 + 9 / 11) / 2)
    assert (first["cosine"], first["norm_ratio"]) == (pytest.approx(0.5), pytest.approx(2.0))
    assert first["precision_low"] < first["precision"] < first["precision_high"]
    assert np.isnan(found.iloc[1]["precision_low"])  # of four clients


def test_other_clients_with_the_same_labels_answer_instead() -> None:
    rows = audit(told(1, 4, 2, 3, 6)).assign(alike=np.nan)
    real = (rows["true_with_mean"] < 0).to_numpy()
    rows.loc[:12, "alike"] = [1.0, 0.5, 0.5, 0.0, 0.5, 0.0, 1.0, 1.0, np.nan, 0.25, 0.0, 0.0, 0.0]
    found = by_age(rows, (1,)).iloc[0]
    known_real = [1.0, 0.5, 0.5, 0.0, 1.0, 1.0]  # the four hits and two of the three missed conflicts
    known_unreal = [0.5, 0.0, 0.25, 0.0, 0.0, 0.0]  # two false alarms, and four of the six quiet clients
    assert real.sum() == 7
    alike = (np.mean(known_real) + 1 - np.mean(known_unreal)) / 2
    assert found["alike"] == pytest.approx(alike)
    assert found["gain"] == pytest.approx((4 / 6 + 4 / 6) / 2 - alike)
    assert found["gain_low"] < found["gain"] < found["gain_high"]
    assert "other clients with the same labels" in advice(by_age(rows, (1,)))


def test_the_share_of_others_leaves_the_client_itself_out(tmp_path: Path) -> None:
    config = small(audit={"every": 2, "clients": 12}, partition={"name": "pathological", "classes": 1})
    opened = analysis.open_run(run(config, tmp_path).folder)
    frame, counts = audit_frame(opened, labels=True), label_counts(opened)
    label = counts.argmax(axis=1)[frame["client"]]
    for row, of in zip(frame.itertuples(), label, strict=True):
        others = frame[(frame["step"] == row.step) & (label == of) & (frame["client"] != row.client)]
        expected = (others["true_with_mean"] < 0).mean() if len(others) else np.nan
        assert row.alike == pytest.approx(expected, nan_ok=True)
    assert frame["alike"].notna().any()


def test_the_last_group_ends_at_the_oldest_update_there_was() -> None:
    found = by_age(audit(told(3, 6, 2, 3, 9) + told(230, 40, 2, 2, 40)))
    assert found["to_age"].tolist() == [4, 230]
    assert age_rows(found)[1][0] == "200–230"


def test_norms_have_a_geometric_mean_and_nothing_divides_by_zero() -> None:
    rows = [(c, 2, 0.1 * c, ratio, 0.5, 0.5, 0.0) for c, ratio in enumerate((0.5, 2.0, 4.0, 0.0, np.nan))]
    found = by_age(audit(rows)).iloc[0]
    assert found["norm_ratio"] == pytest.approx(4 ** (1 / 3))
    assert np.isnan(found["precision"])
    assert np.isnan(found["recall"])
    assert (found["cosine_low"], found["cosine_high"]) == (
        pytest.approx(0.06, abs=0.04),
        pytest.approx(0.34, abs=0.04),
    )


def test_an_update_of_zero_has_no_cosine() -> None:
    rows = [(c, 1, 0.8 if c < 6 else np.nan, 1.0, 0.5, 0.5, 0.0) for c in range(10)]
    found = by_age(audit(rows)).iloc[0]
    assert (found["cosine"], found["n"]) == (pytest.approx(0.8), 10)
    assert (found["cosine_low"], found["cosine_high"]) == (pytest.approx(0.8), pytest.approx(0.8))


def test_a_share_of_what_few_clients_have_has_no_interval() -> None:
    ages = by_age(audit(told(1, 4, 0, 0, 40)))
    found = ages.iloc[0]
    assert found[["precision", "recall", "agreement"]].tolist() == [1, 1, 1]
    assert np.isnan(found[["precision_low", "recall_low", "agreement_low"]].to_list()).all()
    assert found["real_low"] < 4 / 44 < found["real_high"]
    assert useful_age(ages) is None
    assert useful_age(by_age(audit(told(1, 5, 0, 0, 40)))) == 1


def test_memory_is_of_use_as_long_as_it_beats_chance_without_a_break() -> None:
    sure, chance = (40, 2, 2, 40), (20, 20, 20, 20)
    ages = by_age(
        audit(told(1, *sure) + told(2, *sure) + told(7, *chance) + told(12, *sure)), (0, 1, 2, 5, 10)
    )
    assert useful_age(ages) == 4
    assert useful_age(by_age(audit(told(1, *chance)))) is None
    assert useful_age(by_age(audit(told(0, *sure)))) is None


def test_realised_changes_by_group() -> None:
    rows = [
        (c, age, 0.5, 1.0, 0.1, 0.1, change)
        for age in (0, 3, -1)
        for c, change in enumerate((-0.3, -0.1, 0.1, -0.3, -0.1, 0.1))
    ]
    found = realised(audit(rows)).set_index("group")
    assert found.index.tolist() == ["present", "remembered", "unknown"]
    np.testing.assert_allclose(found["change"], -0.1)
    np.testing.assert_allclose(found["worse"], 1 / 3)
    assert (found["change_low"] < found["change"]).all()
    assert (found["against"] == 0).all()
    assert realised(audit(rows[:6]))["group"].tolist() == ["present"]
    few = realised(audit(rows[:4]))
    assert np.isnan(few[["change_low", "change_high"]].to_numpy()).all()
    assert change_rows(few)[0][2] == "-0.1500"


def test_what_is_not_known_is_a_dash_in_the_table() -> None:
    ages = by_age(audit([(0, 0, 0.5, np.nan, 0.5, 0.5, 0.0)]))
    assert "age 0: cosine 0.50, balanced accuracy not known" in audit_by_age(ages).alt
    rows = age_rows(ages)
    assert rows == [["0", "1", "0.50", "–", "0", "–", "–", "–"]]


def test_a_run_is_read_and_drawn(tmp_path: Path) -> None:
    opened = analysis.open_run(run(small(audit={"every": 2, "clients": 12}), tmp_path).folder)
    both = audit_frame([opened, opened])
    assert len(both) == 2 * opened.audit.num_rows
    assert both.columns[0] == "run"
    assert sorted(set(both["run"])) == [f"{opened.label} #{i}" for i in (1, 2)]
    titles = [str(table.title) for table in audit_tables({"x": [opened, opened]}) if isinstance(table, Table)]
    assert [title.partition(" of x")[0] for title in titles] == [
        "remembered updates",
        "absent clients",
        "what steps",
    ]
    assert set(both["group"]) <= {"present", "remembered", "unknown"}
    absent = conflicts_found(both).iloc[0]
    assert absent["n"] == (both["group"] == "remembered").sum()
    ages = by_age(both)
    picture = audit_by_age(ages)
    assert f"age {ages['from_age'][0]}: cosine {ages['cosine'][0]:.2f}" in picture.alt
    assert len(picture.keys) == 3
    change = (
        (both["loss_after"] - both["loss_before"])[both["group"] == "present"].groupby(both["step"]).mean()
    )
    assert f"present: mean {change.mean():+.4f} nat" in audit_losses(both).alt


def test_a_run_without_audits_says_how_to_get_them(tmp_path: Path) -> None:
    opened = analysis.open_run(run(small(), tmp_path).folder)
    with pytest.raises(RunError, match=r"there is no audit; record one with \[audit\] every = 20"):
        audit_frame(opened)


def of_runs(means: list[float], clients: int = 12, spread: float = 0.0) -> pd.DataFrame:
    """Audits at age 1 of runs with these mean cosines; clients of a run differ by `spread`."""
    rng = np.random.default_rng(0)
    runs = [
        audit([(c, 1, mean + spread * rng.normal(), 1.0, 0.5, 0.5, 0.1) for c in range(clients)]).assign(
            run=f"r{i}"
        )
        for i, mean in enumerate(means)
    ]
    return pd.concat(runs, ignore_index=True)


def test_the_clients_of_a_run_are_not_independent() -> None:
    """Clients of a run with equal numbers say as much as one: the interval is that of the runs' means."""
    means = [0.2, 0.4, 0.5, 0.7, 0.8, 0.9, 0.3]
    found = by_age(of_runs(means)).iloc[0]
    expected = interval(mean_of(np.array(means)), len(means))
    assert (found["cosine_low"], found["cosine_high"]) == pytest.approx(expected, abs=0.03)
    assert found["clients"] == 12 * 7
    same = realised(of_runs(means)).iloc[0]
    assert (same["clients"], same["change_low"]) == (84, pytest.approx(0.1))


def test_equal_runs_have_about_the_interval_of_all_their_clients() -> None:
    several = of_runs([0.5] * 8, clients=30, spread=0.2)
    one = several.assign(client=np.arange(240)).drop(columns="run")
    widths = [np.diff(by_age(each)[["cosine_low", "cosine_high"]].iloc[0])[0] for each in (several, one)]
    assert widths[0] == pytest.approx(widths[1], rel=0.6)
    assert widths[0] > widths[1]  # clients within runs, and runs


def test_two_runs_are_shown_one_by_one_without_an_interval() -> None:
    two = of_runs([0.2, 0.6], spread=0.1)
    ages = by_age(two)
    assert np.isnan(ages[["cosine_low", "real_low"]].to_numpy()).all()
    assert "not known" in advice(ages)
    each = by_run(two)
    assert each["run"].tolist() == ["r0", "r1"]
    for name, row in zip(("r0", "r1"), each.to_dict("records"), strict=True):
        assert row["cosine"] == pytest.approx(two[two["run"] == name]["cosine"].mean())
        assert row["cosine_low"] < row["cosine"] < row["cosine_high"]
    assert [row[0] for row in run_rows(each)] == ["r0", "r1"]
