"""`fedsim trace make`, `show` and `check`."""

import pytest
from typer.testing import CliRunner

from fedsim.cli_trace import chart, trace_app
from fedsim.errors import ConfigError, TraceError
from fedsim.trace import Trace, read_trace

WORLD = """
[world]
scenario = "churn"
clients = 30
horizon = "12h"
seed = 4
after_end = "stop"

[world.options]
mean_on = "1h"
"""


@pytest.fixture
def world_toml(tmp_path):
    path = tmp_path / "world.toml"
    path.write_text(WORLD)
    return path


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "trace.parquet"
    rows = [
        (0, 0, 60, "online", 1.0),
        (0, 80, 100, "online", 1.0),
        (1, 0, 40, "online", 1.0),
        (0, 0, 100, "compute", 0.01),
        (1, 0, 100, "compute", 0.03),
        (1, 50, 60, "fault", 1.0),
    ]
    columns = list(zip(*rows, strict=True))
    Trace.of(*columns, clients=3, horizon_us=100, source="by hand", origin="2024-05-01T00:00").write(path)
    return path


def run(*arguments):
    return CliRunner().invoke(trace_app, [str(a) for a in arguments])


def failed(error, *arguments):
    result = run(*arguments)
    assert isinstance(result.exception, error), result.output
    return str(result.exception)


def test_make_writes_the_world_that_the_file_describes(world_toml, tmp_path):
    out = tmp_path / "w.parquet"
    result = run("make", world_toml, "-o", out)
    trace = read_trace(out)
    assert result.exit_code == 0, result.output
    assert (trace.clients, trace.horizon_us, trace.after_end) == (30, 12 * 3600 * 10**6, "stop")
    assert '"seed": 4' in trace.source
    assert f"{out}: 30 clients, 12:00:00" in result.output
    assert trace.digest()[:16] in result.output


def test_make_takes_assignments_and_is_reproducible(world_toml, tmp_path):
    sets = ("--set", "world.clients=7", "--set", "world.options.mean_off=30min")
    outs = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for out in outs:
        assert run("make", world_toml, "-o", out, *sets).exit_code == 0
    assert read_trace(outs[0]).clients == 7
    assert '"mean_off": "30min"' in read_trace(outs[0]).source
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_make_overwrites_only_with_force(world_toml, trace_file):
    before = trace_file.read_bytes()
    assert "use --force" in failed(ConfigError, "make", world_toml, "-o", trace_file)
    assert trace_file.read_bytes() == before
    assert run("make", world_toml, "-o", trace_file, "--force").exit_code == 0
    assert read_trace(trace_file).clients == 30


def test_make_knows_the_files_that_ship_by_name(tmp_path):
    out = tmp_path / "w.parquet"
    assert run("make", "always_on", "-o", out, "--set", "world.clients=3").exit_code == 0
    assert read_trace(out).clients == 3


def test_make_tells_every_problem_with_file_and_key(world_toml, tmp_path):
    world_toml.write_text(WORLD.replace("horizon =", "horizonn =") + "mean_onn = 3\n\n[pacing]\nbuffer = 3\n")
    told = failed(ConfigError, "make", world_toml, "-o", tmp_path / "w.parquet")
    assert "world.toml: world.horizonn: unknown key; did you mean 'horizon'?" in told
    assert "world.toml: pacing: unknown key" in told


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('[world]\nscenario = "churn"', "world.clients: missing"),
        ('[world]\ntrace = "x.parquet"', "world.scenario: missing"),
        ("[world]\nclients = 3", "world: give exactly one of 'scenario' and 'trace'"),
        (
            '[world]\nscenario = "churn"\nclients = 0',
            "world.clients: input should be greater than 0, found 0",
        ),
        ('[world]\nscenario = "chrn"\nclients = 1', "there is no scenario 'chrn'; did you mean 'churn'?"),
        (
            '[world]\nscenario = "churn"\noptions = {mean_onn = 1}',
            "no option 'mean_onn'; did you mean 'mean_on'?",
        ),
        ("[world\n", "not valid TOML"),
        ("", "world: missing"),
    ],
)
def test_make_refuses_what_describes_no_world(toml, message, tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(toml)
    assert message in failed(ConfigError, "make", path, "-o", tmp_path / "w.parquet")
    assert "no such file" in failed(ConfigError, "make", tmp_path / "none.toml", "-o", tmp_path / "w.parquet")


def test_check_says_ok_or_every_problem(trace_file, tmp_path):
    result = run("check", trace_file)
    assert result.output.startswith(f"ok: {trace_file}: 3 clients")
    whole = trace_file.read_bytes()
    trace_file.write_bytes(whole[: len(whole) // 2])
    assert "trace.parquet: not a readable Parquet file" in failed(TraceError, "check", trace_file)


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
    assert "cannot be written" in failed(ConfigError, "show", trace_file, "--png", tmp_path / "no" / "a.png")


def test_a_chart_has_a_round_top_and_a_labelled_time_axis():
    assert chart([0.0, 0.1, 0.35, 0.4], 4 * 3600 * 10**6, blocks=" #") == [
        "clients online",
        "   40 % |   #",
        "        |  ##",
        "        |  ##",
        "        |  ##",
        "    0 % | ###",
        "        +++++",
        "        0h1h2h3h4h",
    ]


@pytest.mark.parametrize(
    ("horizon_us", "labels"),
    [
        (7 * 86400 * 10**6, "0d 1d 2d 3d 4d 5d 6d 7d"),
        (86400 * 10**6, "0h 3h 6h 9h 12h 15h 18h 21h 24h"),
        (3600 * 10**6, "0min 15min 30min 45min 60min"),
        (20 * 10**6, "0s 5s 10s 15s 20s"),
        (365 * 86400 * 10**6, "0d 49d 98d 147d 196d 245d 294d 343d"),
    ],
)
def test_the_time_axis_of_a_chart_fits_its_span(horizon_us, labels):
    line, text = chart([0.5] * 64, horizon_us)[-2:]
    assert text.split() == labels.split()
    assert len(line) == 8 + 65
    assert line.count("+") == len(labels.split())
