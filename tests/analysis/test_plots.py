from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from fedsim import analysis
from fedsim.analysis.drawing.picture import arm_keys, arm_style, time_unit
from fedsim.analysis.drawing.svg import inline_svg
from fedsim.analysis.plots.accuracy_histogram import accuracy_histogram
from fedsim.analysis.plots.accuracy_over_time import METRICS, accuracy_over_time
from fedsim.analysis.plots.client_accuracy import client_accuracy
from fedsim.analysis.plots.client_labels import client_labels
from fedsim.analysis.plots.lost_jobs import lost_by_phase, lost_jobs
from fedsim.analysis.plots.overview import overview
from fedsim.analysis.plots.participation import OUTCOMES, STATES, participation, phase_pixels, pixels, raster
from fedsim.analysis.plots.staleness import staleness, used_staleness
from fedsim.analysis.plots.study_curves import study_curves
from fedsim.common.errors import RunError
from fedsim.worlds.trace import Trace
from synthetic_runs import evals_table, jobs_table, world_table, write_run

END_US = 1000


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / str(i) for i in range(100))


def made(
    folder: Path, jobs: dict[str, list[object]], sessions: list[tuple[int, int, int]], clients: int
) -> analysis.Run:
    write_run(folder, tables={"jobs": jobs_table(**jobs)}, virtual_us=END_US)
    pq.write_table(world_table(sessions, clients=clients, horizon_us=END_US), folder / "world.parquet")
    return analysis.open_run(folder)


def test_the_raster_is_the_schedule(tmp_path: Path) -> None:
    jobs = {
        "client": [0, 0, 2],
        "dispatch_us": [0, 500, 250],
        "end_us": [240, 760, 990],
        "status": ["aggregated", "lost", "late"],
    }
    cells = raster(made(tmp_path / "x", jobs, [(0, 0, 1000), (2, 200, 850)], clients=3), bins=4)
    assert list(cells.sizes) == [1, 1, 1]
    np.testing.assert_array_equal(cells.online, [[1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(cells.in_job["aggregated"], [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(cells.in_job["lost"], [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(cells.in_job["late"], [[0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]])


@pytest.mark.parametrize(("unknown", "online"), [("offline", 0), ("online", 1), (None, 0)])
def test_what_a_trace_does_not_know_is_what_the_run_took_it_for(
    tmp_path: Path, unknown: str | None, online: int
) -> None:
    run = made(tmp_path / "x", {"dispatch_us": [0], "end_us": [9]}, [], clients=1)
    kinds, ends = ["online", "unknown"], ([0, 500], [500, 1000])
    Trace.of([0, 0], *ends, kinds, clients=1, horizon_us=END_US).write(run.folder / "world.parquet")
    said = "" if unknown is None else f'[world]\nunknown = "{unknown}"\n'
    (run.folder / "config.resolved.toml").write_text(said)
    np.testing.assert_array_equal(raster(analysis.open_run(run.folder), bins=2).online, [[1, online]])


def test_curves_say_where_fewer_clients_were_evaluated(tmp_path: Path) -> None:
    table = evals_table([[0.2, 0.4, 0.6], [0.3, 0.5, 0.7]])
    part = table.filter(np.array([True, False, False, True, True, True]))
    whole, some = (
        analysis.open_run(write_run(tmp_path / name, tables={"evals": t})).history()
        for name, t in (("whole", table), ("some", part))
    )
    words = "Points are of 1 to 3 clients"
    assert words not in accuracy_over_time({"a": whole}).caption
    assert words in accuracy_over_time({"a": whole, "b": some}).caption
    assert words not in study_curves({"a": [whole]}, ["mean_percent"], "step").caption
    assert words in study_curves({"a": [whole, some], "b": []}, ["mean_percent"], "step").caption


def test_pixels_show_nothing_offline_and_the_outcome_in_a_job(tmp_path: Path) -> None:
    jobs = {"client": [0], "dispatch_us": [0], "end_us": [240], "status": ["lost"]}
    image = pixels(raster(made(tmp_path / "x", jobs, [(0, 0, 500)], clients=2), bins=4))
    assert image.shape == (2, 4, 4)
    assert tuple(image[0, 0]) == (*bytes.fromhex(OUTCOMES["lost"][0][1:]), 255)
    assert 0 < image[0, 1, 3] < 255
    assert image[0, 2, 3] == image[1, 0, 3] == 0


def test_phases_follow_each_other_and_end_with_the_job(tmp_path: Path) -> None:
    jobs = {
        "client": [0, 1, 2],
        "dispatch_us": [0, 0, 0],
        "download_us": [250, 250, -1],
        "compute_us": [500, -1, -1],
        "end_us": [760, 510, 10],
    }
    cells = raster(made(tmp_path / "x", jobs, [(c, 0, 1000 - c) for c in range(3)], clients=3), bins=4)
    np.testing.assert_array_equal(cells.in_phase["downloading"], [[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(cells.in_phase["training"], [[0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(cells.in_phase["uploading"], [[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]])
    image = phase_pixels(cells)
    assert tuple(image[0, 3]) == (*bytes.fromhex(STATES["uploading"][1:]), 255)
    assert tuple(image[1, 2]) == (*bytes.fromhex(STATES["training"][1:]), 255)
    assert 0 < image[1, 3, 3] < 255


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 20))
def test_binning_keeps_the_number_of_clients_and_jobs(
    k: int, n: int, seed: int, rows: int, bins: int
) -> None:
    import tempfile

    rng = np.random.default_rng(seed)
    dispatch = rng.integers(0, END_US, n)
    jobs = {
        "client": rng.integers(0, k, n),
        "dispatch_us": dispatch,
        "end_us": np.minimum(dispatch + 50, END_US),
    }
    sessions = [(client, 0, 1 + client * 30) for client in range(k)]
    with tempfile.TemporaryDirectory() as folder:
        cells = raster(made(Path(folder) / "x", jobs, sessions, k), rows=rows, bins=bins)
    middles = (2 * np.arange(bins) + 1) * END_US // (2 * bins)
    ends = np.array([end for _, _, end in sessions])
    assert cells.sizes.sum() == k
    assert cells.sizes.max() - cells.sizes.min() <= 1
    np.testing.assert_allclose((cells.online * cells.sizes[:, None]).sum(0), (ends[:, None] > middles).sum(0))
    assert np.all(np.diff(cells.online.mean(1)) <= 1e-12) or len(set(cells.sizes)) > 1
    touched = sum(
        min(int(job_end / END_US * bins), bins - 1) - int(start / END_US * bins) + 1
        for start, job_end in zip(dispatch, jobs["end_us"], strict=True)
    )
    assert sum(cells.in_job.values()).sum() == touched


@pytest.mark.parametrize("longer", [1, 3])
def test_a_map_that_is_shorter_than_the_axis_says_where_it_ends(tmp_path: Path, longer: int) -> None:
    shown = made(
        tmp_path / "a", {"client": [0], "dispatch_us": [0], "end_us": [9]}, [(0, 0, END_US)], clients=1
    )
    evals = evals_table(np.full((2, 1), 0.5), every_us=longer * END_US)
    other = analysis.open_run(write_run(tmp_path / "b", tables={"evals": evals}))
    picture = overview([shown, other], shown)
    (_, end) = picture.figure.axes[0].get_xlim()
    assert end == longer * END_US / time_unit(longer * END_US)[0]
    assert ("The map ends where a ended, after 0.001 s" in picture.caption) == (longer > 1)


def test_a_raster_that_cannot_be_drawn_says_why(tmp_path: Path) -> None:
    jobs = {"client": [7], "dispatch_us": [0], "end_us": [10]}
    with pytest.raises(RunError, match="client 7, but the world has 3 clients"):
        raster(made(tmp_path / "x", jobs, [(0, 0, 500)], clients=3))
    with pytest.raises(RunError, match="no virtual time"):
        raster(analysis.open_run(write_run(tmp_path / "y", virtual_us=0)))
    with pytest.raises(RunError, match=r"world\.parquet is missing"):
        raster(analysis.open_run(write_run(tmp_path / "z")))


def test_participation_names_only_the_outcomes_that_occur(tmp_path: Path) -> None:
    jobs = {"client": [0], "dispatch_us": [0], "end_us": [240], "status": ["lost"], "download_us": [-1]}
    picture = participation(made(tmp_path / "x", jobs, [(0, 0, 500)], clients=2))
    assert [key.label for key in picture.keys] == [
        "offline",
        "online, idle",
        "downloading",
        "job lost",
    ]
    assert "rasters of 2 clients" in picture.alt


def test_curves_hold_the_history(tmp_path: Path) -> None:
    accuracy = np.linspace(0.1, 0.9, 12).reshape(3, 4)
    run = analysis.open_run(write_run(tmp_path / "x", tables={"evals": evals_table(accuracy)}))
    history = run.history(metrics=list(METRICS))
    picture = accuracy_over_time({"x": history})
    lines = [ax.lines[0] for ax in picture.figure.axes]
    np.testing.assert_allclose(lines[0].get_ydata(), 100 * accuracy.mean(axis=1))
    np.testing.assert_allclose(lines[0].get_xdata(), [0, 60, 120])
    assert f"x ends at {100 * accuracy[-1].mean():.1f} % mean accuracy" in picture.alt
    steps = accuracy_over_time({"x": history}, by="step")
    np.testing.assert_array_equal(steps.figure.axes[2].lines[0].get_xdata(), [0, 1, 2])


def test_distributions_add_up_to_all_clients(tmp_path: Path) -> None:
    evals = evals_table(np.random.default_rng(0).uniform(size=(1, 2000)))
    final = analysis.open_run(write_run(tmp_path / "x", tables={"evals": evals})).final()
    line = client_accuracy({"x": final}).figure.axes[0].lines[0]
    assert len(line.get_xdata()) <= 501
    assert (line.get_ydata()[0], line.get_ydata()[-1]) == (0, pytest.approx(100))
    assert np.all(np.diff(line.get_ydata()) >= 0)
    bars = accuracy_histogram({"x": final}).figure.axes[0].patches[0].get_data().values
    assert bars.sum() == pytest.approx(100)


def test_the_labels_of_clients_are_shares_of_their_samples() -> None:
    picture = client_labels(np.array([[3, 1, 0], [0, 0, 5], [0, 0, 0]]))
    image = np.ma.filled(picture.figure.axes[1].images[0].get_array(), np.nan)
    nothing = np.nan
    np.testing.assert_array_equal(
        image, [[75, nothing, nothing], [25, nothing, nothing], [nothing, 100, nothing]]
    )
    bars = picture.figure.axes[0].patches[0]
    assert bars.get_data().values.tolist() == [4, 5, 0]
    assert picture.caption.startswith(
        "Clients hold 0 to 5 (median 4) training samples and 0 to 2 (median 1) of 3 labels."
    )


def test_columns_of_many_clients_are_means_over_neighbours() -> None:
    counts = np.repeat([[[2, 0], [0, 2], [1, 1]]], 200, axis=0).reshape(600, 2)
    picture = client_labels(counts)
    image = picture.figure.axes[1].images[0].get_array()
    assert np.asarray(image) == pytest.approx(np.full((2, 200), 50.0))
    assert picture.caption.endswith("Columns are means over about 3 clients.")
    assert picture.figure.axes[1].get_xlim() == (-0.5, 599.5)


def test_losses_are_counted_by_phase(tmp_path: Path) -> None:
    jobs = jobs_table(
        dispatch_us=[0] * 4,
        end_us=[1] * 4,
        status=["lost", "lost", "late", "lost"],
        phase=["upload", "compute", "", "upload"],
    )
    run = analysis.open_run(write_run(tmp_path / "x", tables={"jobs": jobs}))
    assert lost_by_phase(run) == {"upload": 2, "compute": 1}
    assert "x: 0 in download, 1 in compute, 2 in upload" in lost_jobs({"x": run}).alt


def test_staleness_is_that_of_used_updates(tmp_path: Path) -> None:
    jobs = jobs_table(dispatch_us=[0] * 3, end_us=[1] * 3, staleness=[-1, 0, 2])
    run = analysis.open_run(write_run(tmp_path / "x", tables={"jobs": jobs}))
    assert list(used_staleness(run)) == [0, 2]
    assert "mean 1.00, largest 2" in staleness({"x": run}).alt


def test_neighbouring_arms_differ_in_colour_and_in_dashes() -> None:
    styles = [(arm_style(i)["color"], str(arm_style(i)["linestyle"])) for i in range(28)]
    assert len(set(styles)) == 28
    assert arm_keys(["alone"]) == ()
    assert [key.colour for key in arm_keys(["a", "b"])] == [styles[0][0], styles[1][0]]


@pytest.mark.parametrize(
    ("span_s", "unit"),
    [(1, "seconds"), (299, "seconds"), (300, "minutes"), (3 * 3600, "hours"), (7 * 86400, "days")],
)
def test_the_unit_of_time_fits_the_span(span_s: int, unit: str) -> None:
    assert time_unit(span_s * 10**6)[1] == unit


def test_a_figure_is_drawn_as_matplotlib_saves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> str:
        figure = Figure(figsize=(6, 3), layout="constrained")
        for ax in figure.subplots(2, 1, sharex=True):
            ax.plot([0, 1, 2], [1e6, 3e6, 2e6], label="a line")
            ax.set_ylabel("two\nlines")
            ax.legend()
        return inline_svg(figure, "f1", "A title.")

    def saved(figure: Figure, buffer: io.StringIO) -> None:
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))

    found = drawn()
    monkeypatch.setattr("fedsim.analysis.drawing.svg._print", saved)
    assert found == drawn()


def test_svg_takes_the_colour_and_font_of_the_page(tmp_path: Path) -> None:
    jobs = {"client": [0], "dispatch_us": [0], "end_us": [240], "status": ["lost"], "download_us": [-1]}
    picture = participation(made(tmp_path / "x", jobs, [(0, 0, 500)], clients=2))
    text = inline_svg(picture.figure, "f1", 'say "x". 1 < <y>. The end.')
    assert text.startswith('<svg viewBox="')
    assert 'role="img" aria-labelledby="f1-title f1-desc"' in text
    assert '<title id="f1-title">say &quot;x&quot;</title>' in text
    assert '<desc id="f1-desc">1 &lt; &lt;y&gt;. The end.</desc>' in text
    assert "currentColor" in text
    assert "DejaVu" not in text
    assert "<style" not in text
    assert "data:image/png;base64" in text
    assert "virtual time" in text
