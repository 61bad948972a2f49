from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim import analysis
from fedsim.analysis.drawing.picture import Picture
from fedsim.analysis.plots.conflict_layers import conflict_layers
from fedsim.analysis.plots.conflicts_over_time import conflict_angles, conflict_counts
from fedsim.analysis.plots.weights_over_clients import weights_over_clients
from fedsim.analysis.statistics.observatory import (
    by_client,
    by_layer,
    history_age,
    layer_times,
    merges,
    over_time,
    recorded,
    with_shares,
)
from fedsim.common.errors import FolderError, RunError
from fedsim.records.schemas import CONFLICTS
from pages import Page
from small import run as simulated
from small import small
from synthetic_runs import evals_table, steps_table, write_run

ROWS = [
    # step, block, client, age, weight, cosine
    (0, -1, 0, 0, 0.75, 1.0),
    (0, -1, 1, 0, 0.25, -0.5),
    (0, 0, 0, 0, 0.75, 1.0),
    (0, 0, 1, 0, 0.25, -0.5),
    (0, 1, 0, 0, 0.75, 0.5),
    (0, 1, 1, 0, 0.25, 0.5),
    (1, -1, 0, 0, 0.5, 0.0),
    (1, -1, 1, 2, 0.5, -1.0),
    (1, 0, 0, 0, 0.5, 0.0),
    (1, 0, 1, 2, 0.5, -1.0),
    (1, 1, 0, 0, 0.4, 0.0),
    (1, 1, 1, 2, 0.1, -1.0),
    (2, -1, 0, 1, 0.0, 0.5),
    (2, -1, 2, 0, 1.0, 1.0),
    (2, 0, 0, 1, 0.0, 0.5),
    (2, 0, 2, 0, 1.0, 1.0),
    (2, 1, 0, 1, 0.0, 0.5),
    (2, 1, 2, 0, 0.5, 1.0),
]
NAMES = ("step", "block", "client", "age", "weight", "cosine", "norm")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> analysis.Run:
    """Three steps of three clients, layer by layer."""
    columns = dict(zip(NAMES, zip(*((*row, 1.0) for row in ROWS), strict=True), strict=True))
    conflicts = pa.table(
        {f.name: pa.array(columns[f.name]).cast(f.type) for f in CONFLICTS}, schema=CONFLICTS
    )
    steps = steps_table(
        time_us=[10, 20, 30],
        updates=[2, 1, 1],
        remembered=[0, 1, 0],
        model_conflicts=[1, 0, 0],
        blocks=[1, 2, 2],
        smallest_cosine=[-0.5, 0.0, 1.0],
        smallest_absent_cosine=[np.nan, -1.0, 0.5],
    )
    folder = tmp_path_factory.mktemp("observed") / "fedlf"
    tables = {"conflicts": conflicts, "steps": steps, "evals": evals_table(np.full((1, 3), 0.5))}
    return analysis.open_run(write_run(folder, tables=tables))


def test_conflicts_over_time_by_hand(run: analysis.Run) -> None:
    found = over_time(recorded(run), run.frame("steps").set_index("step").time_us)
    present, absent = (found[found.kind == kind] for kind in ("present", "absent"))
    assert present.time_us.tolist() == [10, 20, 30]
    assert present.conflict_percent.tolist() == [50, 0, 0]
    assert present.angle_deg.tolist() == pytest.approx([60, 90, 0])
    assert absent.conflict_percent.tolist() == [100, 0]
    assert absent.angle_deg.tolist() == pytest.approx([180, 60])


def test_neighbouring_steps_are_put_together(run: analysis.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.analysis.statistics.observatory.spans", lambda n: np.zeros(n, dtype=np.int64))
    found = over_time(recorded(run), run.frame("steps").set_index("step").time_us).set_index("kind")
    assert found.loc["present", "conflict_percent"] == 25
    assert found.loc["present", "steps"] == 3
    assert found.loc["absent", "time_us"] == 30


def test_layers_by_hand(run: analysis.Run) -> None:
    found = by_layer(recorded(run)).set_index(["block", "kind"]).conflict_percent
    assert found[0, "present"] == 25
    assert found[1, "present"] == 0
    assert found[0, "absent"] == found[1, "absent"] == found[-1, "absent"] == 50
    edges, share = layer_times(recorded(run), "present", bins=3)
    assert edges.tolist() == [0, 1, 2, 3]
    assert share.tolist() == [[50, 0, 0], [0, 0, 0]]
    assert np.isnan(layer_times(recorded(run), "absent", bins=3)[1][:, 0]).all()


def test_who_was_protected_by_hand(run: analysis.Run) -> None:
    found = by_client(recorded(run)).set_index("client")
    assert found.present_steps.tolist() == [2, 1, 1]
    assert found.absent_steps.tolist() == [1, 1, 0]
    assert found.protected_steps.tolist() == [0, 1, 0]
    assert found.present_weight_percent.tolist() == [62.5, 25, 100]
    assert found.absent_weight_percent[:2].tolist() == [0, 50]
    assert found.against_percent.tolist() == [0, 100, 0]


def test_two_updates_of_a_client_in_one_step_are_one_step(run: analysis.Run) -> None:
    rows = recorded(run)
    twice = rows[(rows.block < 0) & (rows.step == 0)].assign(client=4)
    found = by_client(twice).iloc[0]
    assert (found.present_steps, found.present_weight_percent, found.against_percent) == (1, 100, 50)


def test_shares_are_of_the_sizes_of_weights() -> None:
    """A rule may take an update off: weights of 3 and -1 are three quarters and one quarter of the step."""
    rows = pd.DataFrame({"step": [0, 0, 1], "block": -1, "weight": [3.0, -1.0, -2.0]})
    assert with_shares(rows).share.tolist() == [75, 25, 100]


def test_merged_layers_are_those_with_equal_weights(run: analysis.Run) -> None:
    assert merges(run, recorded(run)).merged_percent.tolist() == pytest.approx([100 / 3])


def test_the_age_of_the_history_is_that_of_rows_with_a_weight(run: analysis.Run) -> None:
    assert history_age(recorded(run)).to_dict() == {"mean": {1: 2.0}, "max": {1: 2}}


def test_weights_of_a_step_add_up(run: analysis.Run) -> None:
    panels = [ax.images[0].get_array() for ax in weights_over_clients(run).figure.axes if ax.images]
    total = sum(np.ma.filled(np.ma.masked_invalid(np.asarray(p, dtype=float)), 0) for p in panels[:2])
    np.testing.assert_allclose(total.sum(axis=0), 100)


@pytest.mark.parametrize("draw", [weights_over_clients, conflict_layers])
def test_the_words_of_a_scale_fit_beside_one_low_panel(
    draw: Callable[[analysis.Run], Picture], run: analysis.Run, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "present", tables={"steps": run.steps})
    pq.write_table(
        run.conflicts.filter(pa.compute.equal(run.conflicts["age"], 0)), folder / "conflicts.parquet"
    )
    figure = draw(analysis.open_run(folder)).figure
    figure.draw_without_rendering()
    box = figure.axes[-1].yaxis.label.get_window_extent()
    assert box.y0 >= 0
    assert box.y1 <= figure.bbox.height


def test_pictures_say_what_they_show(run: analysis.Run) -> None:
    assert "present: 25.0 % of updates against it" in conflict_angles(run).alt
    assert [key.label for key in conflict_counts(run).keys] == [
        "present clients",
        "absent clients, remembered",
    ]


def test_the_page_shows_conflicts_or_the_setting_that_records_them(run: analysis.Run, tmp_path: Path) -> None:
    page = Page(analysis.write_report([run], tmp_path / "a.html").read_text(encoding="utf-8"))
    for words in (
        "Who was protected",
        "Conflicts by layer",
        "merged with the next, % of steps",
        "--only weights",
    ):
        assert words in page.text
    bare = write_run(tmp_path / "bare", tables={"steps": steps_table(time_us=[1], model_conflicts=[-1])})
    text = Page(analysis.write_report([analysis.open_run(bare)], tmp_path / "b.html").read_text()).text
    assert 'Run it with [record] conflicts = "layers" to see them.' in text
    with pytest.raises(RunError, match=r"no conflicts were recorded; run it with \[record\]"):
        recorded(analysis.open_run(bare))


def test_a_rule_of_columns_has_conflicts_but_no_weights(run: analysis.Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "median", tables={"steps": run.steps, "evals": run.evals})
    weight = np.where(run.conflicts["weight"].to_numpy() == 0, 0.0, np.nan)
    at = run.conflicts.column_names.index("weight")
    rows = run.conflicts.set_column(at, CONFLICTS.field("weight"), pa.array(weight))
    pq.write_table(rows, folder / "conflicts.parquet")
    median = analysis.open_run(folder)
    found = by_client(recorded(median)).set_index("client")
    assert found.present_weight_percent.isna().all()
    assert found.protected_steps.tolist() == [0, 1, 0]
    assert found.against_percent.tolist() == [0, 100, 0]
    with pytest.raises(
        FolderError, match="expected updates with weights, found a rule that combines them by column"
    ):
        weights_over_clients(median)
    page = Page(analysis.write_report([median], tmp_path / "a.html").read_text(encoding="utf-8"))
    assert "combines updates column by column, so no update has a weight" in page.text
    assert "Conflicts by layer" in page.text
    assert "Who was protected" not in page.text


def test_a_run_that_recorded_the_whole_model_alone_has_no_layers(run: analysis.Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "model", tables={"steps": run.steps})
    pq.write_table(
        run.conflicts.filter(pa.compute.less(run.conflicts["block"], 0)), folder / "conflicts.parquet"
    )
    text = Page(analysis.write_report([analysis.open_run(folder)], tmp_path / "m.html").read_text()).text
    assert "whole model" in text
    assert "--only conflict-layers" not in text


def test_mc_and_lc_are_the_means_over_steps(tmp_path: Path) -> None:
    opened = analysis.open_run(
        simulated(small(algorithm={"name": "fedavg"}, record={"conflicts": "layers"}), tmp_path).folder
    )
    table = analysis.conflict_table(opened)
    steps = opened.frame("steps").query("updates > 0")
    assert table.index.tolist() == [-1, 0, 1]
    assert table.present[-1] == pytest.approx(steps.model_conflicts.mean())
    assert table.present[[0, 1]].mean() == pytest.approx(steps.block_conflicts_mean.mean())
    assert (table.absent == 0).all(), "fedavg keeps no updates"


def test_fedlf_has_no_conflict_with_clients_present(tmp_path: Path) -> None:
    opened = analysis.open_run(simulated(small(record={"conflicts": "layers"}), tmp_path).folder)
    assert analysis.conflict_table(opened).present[-1] == 0
    assert opened.frame("steps").conflicts.sum() > 0, "clients conflict with one another"


def test_a_run_that_recorded_none_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"\[record\] conflicts"):
        analysis.conflict_table(analysis.open_run(simulated(small(), tmp_path).folder))
