"""`fedsim trace show`."""

import re

import numpy as np
import pyarrow as pa
import pytest

from fedsim.common.errors import ConfigError, RunError, TraceError
from fedsim.config.world import ConfoundConfig
from fedsim.runs.confound import confounded
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import Trace, read_trace
from fedsim.worlds.transforms import crop
from trace_commands import failed, run, small_trace


@pytest.fixture
def trace_file(tmp_path):
    return small_trace(tmp_path / "trace.parquet")


def test_show_tells_the_numbers(trace_file):
    output = " ".join(run("show", trace_file).output.split())
    for text in (
        "clients 3 (1 never online)",
        "from 2024-05-01T00:00",
        "after the end error",
        "source by hand",
        "intervals 3 online, 2 compute, 1 fault",
        "online 40.0 % of the time",
        "by client* 20 | 40 | 60 % of the time",
        "compute* 15 | 20 | 25 ms a sample",
        "uplink* not modelled: takes no time",
        "faults 1, 3.33 % of the time",
        "gaps* 0.000 s",
    ):
        assert text in output, text


def test_show_of_an_empty_world(tmp_path):
    path = tmp_path / "empty.parquet"
    Trace.of([], [], [], "online", clients=2, horizon_us=10**9).write(path)
    output = run("show", path, "--png", tmp_path / "empty.png").output
    assert "2 (2 never online)" in output
    assert (tmp_path / "empty.png").stat().st_size > 1000


@pytest.mark.parametrize(("name", "starts"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")])
def test_show_draws_a_picture(trace_file, tmp_path, name, starts):
    result = run("show", trace_file, "--png", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_bytes().startswith(starts)


def test_show_refuses_pictures_it_cannot_draw(trace_file, tmp_path):
    assert "ends in .png, .svg, .pdf" in failed(ConfigError, "show", trace_file, "--png", tmp_path / "a.gif")
    png = tmp_path / "no" / "a.png"
    assert failed(RunError, "show", trace_file, "--png", png) == (
        f"--png {png}: cannot be written: No such file or directory"
    )


def test_loops_unknown_time_and_facts_are_told(tmp_path):
    rows = [(0, 0, 30, "online", 1.0), (1, 0, 100, "unknown", 1.0), (0, 50, 60, "unknown", 1.0)]
    about = pa.table({"id": ["[b]x[/b]", "y"], "tier": [1, None], "score": [float("nan"), 0.5]})
    path = tmp_path / "w.parquet"
    periods = {"online": np.array([60, 0])}
    Trace.of(*zip(*rows, strict=True), clients=2, horizon_us=100, periods=periods, about=about).write(path)
    output = " ".join(run("show", path).output.split())
    for text in (
        "online 30.0 % of the time or more",
        "unknown 55 % of the time; all the time of 1 client",
        "loops of online* 0.000 s | 0.000 s | 0.000 s, of 1 client",
        "fact id [b]x[/b] (1), y (1)",
        "fact tier 1 to 1, median 1, 1 missing",
        "fact score 0.5 to 0.5, median 0.5, 1 missing",
    ):
        assert text in output, text


RUN = """
name = "x"
[task]
name = "digits"
clients = 12
[partition]
name = "pathological"
classes = 2
[pacing]
preset = "sync"
clients = 4
[stop]
steps = 1
"""


@pytest.fixture
def week(tmp_path):
    path = tmp_path / "week.parquet"
    make_trace("diurnal", {}, clients=12, horizon_us=3 * 86400 * 10**6, seed=1, after_end="repeat").write(
        path
    )
    return path


def test_a_page_stands_alone_and_names_the_world(week, tmp_path):
    page = tmp_path / "week.html"
    assert run("show", week, "--html", page).exit_code == 0
    text = page.read_text()
    assert "week.parquet: 12 clients" in text
    for heading in ("Who is online", "How clients differ", "Where it comes from"):
        assert f"<h2>{heading}</h2>" in text
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert len(re.findall("<figure", text)) == 4


def test_whose_data_is_online_is_told_by_class(week, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(RUN)
    result = run("show", week, "--config", config, "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    table = result.output[result.output.index("0-6 h") :].splitlines()[1:11]
    assert [line.split()[0] for line in table] == list("0123456789")
    assert all(0 <= float(cell) <= 100 for line in table for cell in line.split()[1:])
    assert "Whose data is online when" in (tmp_path / "a.html").read_text()


def test_hours_that_a_world_does_not_have_are_dashes(week, tmp_path):
    config, morning = tmp_path / "run.toml", tmp_path / "morning.parquet"
    config.write_text(RUN)
    crop(read_trace(week), 0, 8 * 3600 * 10**6).write(morning)
    output = run("show", morning, "--config", config).output
    rows = output[output.index("0-6 h") :].splitlines()[1:11]
    assert [line.split()[2:] for line in rows] == [["-"] * 4] * 10


def test_a_world_needs_as_many_clients_as_the_run(trace_file, tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(RUN)
    assert "has 12 clients, but the trace has 3" in failed(TraceError, "show", trace_file, "--config", config)
    config.write_text(RUN + "[arms.a.task]\nclients = 4\n[arms.b.task]\nclients = 5\n")
    assert "its arms have different data" in failed(ConfigError, "show", trace_file, "--config", config)
    config.write_text(RUN + "[arms.a]\nseed = 4\n[arms.b]\nseed = 5\n")
    assert "its arms have different data" in failed(ConfigError, "show", trace_file, "--config", config)


def test_whose_data_is_online_is_told_of_the_world_that_is_tied_to_them(week, tmp_path):
    config, tied = tmp_path / "run.toml", tmp_path / "tied.parquet"
    tie = {"what": "availability", "to": "label", "labels": [0]}
    table = ", ".join(f"{key} = {value!r}" for key, value in tie.items())
    config.write_text(f'{RUN}[world]\ntrace = "{week}"\nconfound = {{{table}}}\n')
    assert "this one is not: show the world.parquet" in failed(ConfigError, "show", week, "--config", config)
    counts = np.eye(12, 10, dtype=np.int64)
    facts = {"n_samples": counts.sum(axis=1), "label_counts": counts}
    confounded(read_trace(week), facts, ConfoundConfig(**tie), seed=0)[0].write(tied)
    assert run("show", tied, "--config", config).exit_code == 0


def test_pages_have_a_name_of_their_own(trace_file, tmp_path):
    assert "ends in .html, .htm" in failed(ConfigError, "show", trace_file, "--html", tmp_path / "a.png")
