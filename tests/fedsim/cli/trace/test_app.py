"""`fedsim trace make` and `check`."""

import shutil
from pathlib import Path

import pytest

from fedsim.common.errors import ConfigError, RunError, TraceError
from fedsim.worlds.trace import read_trace
from trace_commands import failed, run, small_trace

SHIFTS = Path(__file__).parents[4] / "examples" / "shifts.py"
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
    return small_trace(tmp_path / "trace.parquet")


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


def test_make_writes_over_none_of_the_files_that_it_reads(world_toml, trace_file, tmp_path):
    text, before = world_toml.read_text(), trace_file.read_bytes()
    assert "is one of the files to read" in failed(
        ConfigError, "make", world_toml, "-o", world_toml, "--force"
    )
    assert world_toml.read_text() == text
    joined = tmp_path / "joined.toml"
    joined.write_text(f'[world.join]\navailability = "{trace_file}"\n')
    assert "is one of the files to read" in failed(ConfigError, "make", joined, "-o", trace_file, "--force")
    of_seed = tmp_path / "week_0.parquet"
    of_seed.write_bytes(before)
    joined.write_text(f'[world.join]\navailability = "{tmp_path}/week_{{seed}}.parquet"\n')
    assert "is one of the files to read" in failed(ConfigError, "make", joined, "-o", of_seed, "--force")
    nested = tmp_path / "nested.toml"
    nested.write_text(f'[world.join]\navailability = "{joined}"\n')
    assert "is one of the files to read" in failed(ConfigError, "make", nested, "-o", of_seed, "--force")
    assert trace_file.read_bytes() == of_seed.read_bytes() == before


def test_make_knows_the_files_that_ship_by_name(tmp_path):
    out = tmp_path / "w.parquet"
    assert run("make", "always_on", "-o", out, "--set", "world.clients=3").exit_code == 0
    assert read_trace(out).clients == 3
    message = failed(ConfigError, "make", "alwayson", "-o", tmp_path / "other.parquet")
    assert message.startswith(
        "alwayson: neither a file nor the name of a scenario with one; did you mean 'always_on'?"
    )


def test_make_says_where_a_scenario_of_a_file_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(SHIFTS, "shifts.py")
    for argument in ("shifts.py", "shifts.py:shifts"):
        message = failed(ConfigError, "make", argument, "-o", "s.parquet")
        expected = '[world]\nscenario = "shifts.py:shifts"\nclients = 10'
        assert message.startswith(f"{argument}: a scenario goes into a TOML file: `")
        assert message.partition("TOML file: ")[2] == ", ".join(f"`{line}`" for line in expected.splitlines())
    Path("my_world.toml").write_text(expected)
    assert run("make", "my_world.toml", "-o", "s.parquet").exit_code == 0
    assert read_trace("s.parquet").clients == 10


def test_make_tells_every_problem_with_file_and_key(world_toml, tmp_path):
    world_toml.write_text(WORLD.replace("horizon =", "horizonn =") + "mean_onn = 3\n\n[pacing]\nbuffer = 3\n")
    message = failed(ConfigError, "make", world_toml, "-o", tmp_path / "w.parquet")
    assert "world.toml: world.horizonn: unknown key; did you mean 'horizon'?" in message
    assert "world.toml: pacing: unknown key" in message


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('[world]\nscenario = "churn"', "world.clients: missing"),
        ('[world]\ntrace = "x.parquet"', "world.scenario: missing"),
        ("[world]\nclients = 3", "world: give exactly one of 'scenario', 'trace' and 'join'"),
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
        (
            '[task]\nname = "digits"\n[world]\nscenario = "churn"',
            "w.toml: expected only a [world] table, found the configuration of a run; once it is run",
        ),
    ],
)
def test_make_refuses_what_describes_no_world(toml, message, tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(toml)
    assert message in failed(ConfigError, "make", path, "-o", tmp_path / "w.parquet")
    assert "no such file" in failed(ConfigError, "make", tmp_path / "none.toml", "-o", tmp_path / "w.parquet")


def test_a_file_that_cannot_be_written_is_no_fault_of_the_input(trace_file, world_toml):
    for command in (("make", world_toml), ("export", trace_file, "--format", "csv")):
        message = failed(RunError, *command, "-o", "/proc/x.parquet")
        assert message.startswith("/proc/x.parquet: cannot be written: ")
        assert message.count("cannot be written") == 1


def test_check_says_ok_or_every_problem(trace_file, tmp_path):
    result = run("check", trace_file)
    assert result.output.startswith(f"ok: {trace_file}: 3 clients")
    whole = trace_file.read_bytes()
    trace_file.write_bytes(whole[: len(whole) // 2])
    assert "trace.parquet: not a readable Parquet file" in failed(TraceError, "check", trace_file)
