"""`fedsim trace join`, and a `[world.join]` table."""

import json

import pytest

from fedsim.common.errors import ConfigError, TraceError
from fedsim.config.errors import validated
from fedsim.config.world import WorldConfig, WorldFile, world_trace
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import read_trace
from trace_commands import failed, run

DAY_US = 86400 * 10**6


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a trace of nights, one of speeds, and a TOML file of a world."""
    monkeypatch.chdir(tmp_path)
    make_trace("diurnal", {}, clients=40, horizon_us=2 * DAY_US, seed=1, after_end="repeat").write(
        "night.parquet"
    )
    make_trace("always_on", {}, clients=30, horizon_us=DAY_US, seed=2, after_end="repeat").write(
        "fast.parquet"
    )
    (tmp_path / "net.toml").write_text('[world]\nscenario = "churn"\nhorizon = "6h"\n')
    return tmp_path


JOIN = ("join", "--availability", "night.parquet", "--compute", "fast.parquet", "--network", "net.toml")


def test_a_joined_world_is_written_and_its_correlations_are_told(place):
    result = run(*JOIN, "--clients", 50, "--assign", 0.7, "--seed", 1, "-o", "w.parquet")
    assert result.exit_code == 0, result.output
    trace = read_trace("w.parquet")
    assert (trace.clients, trace.horizon_us, trace.after_end) == (50, 2 * DAY_US, "repeat")
    assert set(trace.period_us("uplink").tolist()) == {DAY_US // 4}
    assignments = json.loads(trace.source)["assignment"]
    assert (
        f"compute: assigned 0.7, rank correlation with time online {assignments['compute']['spearman']:+.3f}"
        in result.output
    )
    assert "network: assigned 0.7" in result.output
    assert json.loads(trace.source)["join"]["network"]["clients"] == 50


@pytest.mark.parametrize(
    ("options", "methods"),
    [
        ((), ["independent", "independent"]),
        (("--assign", "rank"), ["rank", "rank"]),
        (("--assign", "compute=-0.5"), [-0.5, "independent"]),
        (("--assign", "compute=0.1", "--assign", "network=rank"), [0.1, "rank"]),
    ],
)
def test_sources_may_be_assigned_differently(place, options, methods):
    assert run(*JOIN, *options, "-o", "w.parquet").exit_code == 0
    assignments = json.loads(read_trace("w.parquet").source)["assignment"]
    assert [assignments["compute"]["how"], assignments["network"]["how"]] == methods


def test_problems_are_told(place):
    assert failed(ConfigError, *JOIN, "--assign", "rnk", "-o", "w.parquet") == (
        "fedsim trace join: world.join.assign: assignment 'rnk': expected 'independent', 'rank', 'id' or a number from "
        "-1 to 1; did you mean 'rank'?"
    )
    assert "no source 'comput' to assign; did you mean 'compute'?" in failed(
        ConfigError, *JOIN, "--assign", "comput=1", "-o", "w.parquet"
    )
    assert "assign.faults: there is no source 'faults'" in failed(
        ConfigError, *JOIN, "--assign", "faults=1", "-o", "w.parquet"
    )
    assert "expected SOURCE=HOW" in failed(
        ConfigError, *JOIN, "--assign", "0.3", "--assign", "compute=1", "-o", "w.parquet"
    )
    assert "from -1 to 1, found 2.0" in failed(ConfigError, *JOIN, "--assign", "2", "-o", "w.parquet")
    assert "is one of the files to read" in failed(ConfigError, *JOIN, "-o", "night.parquet", "--force")
    assert "use --force" in failed(ConfigError, "join", "--availability", "net.toml", "-o", "fast.parquet")
    assert "there is no such file" in failed(
        TraceError, "join", "--availability", "x.parquet", "-o", "w.parquet"
    )
    assert "at most 30 clients without replacement" in failed(
        TraceError, *JOIN, "--clients", "35", "--no-replace", "-o", "w.parquet"
    )


JOINED = """
[world]
clients = 20
seed = 5

[world.join]
availability = "night.parquet"
compute = "fast.parquet"
network = "net.toml"
assign = {compute = 0.5}
"""


def test_a_toml_file_joins_as_the_command_does(place):
    (place / "joined.toml").write_text(JOINED)
    assert run("make", "joined.toml", "-o", "a.parquet").exit_code == 0
    assert (
        run(*JOIN, "--clients", 20, "--seed", 5, "--assign", "compute=0.5", "-o", "b.parquet").exit_code == 0
    )
    assert read_trace("a.parquet").digest() == read_trace("b.parquet").digest()


def test_a_joined_file_may_be_a_source_but_not_of_itself(place):
    (place / "joined.toml").write_text(JOINED)
    assert (
        run("join", "--availability", "joined.toml", "--faults", "fast.parquet", "-o", "c.parquet").exit_code
        == 0
    )
    (place / "joined.toml").write_text(JOINED.replace("net.toml", "joined.toml"))
    assert "joined.toml: joins itself" in failed(
        ConfigError, "join", "--availability", "joined.toml", "-o", "d.parquet"
    )


def test_a_run_gives_clients_and_seed_and_the_table_says_the_same_again(place):
    join = {"availability": "night.parquet", "compute": "fast.parquet", "assign": "rank"}
    world = validated(WorldFile, {"world": {"join": join, "after_end": "stop"}}, "w.toml").world
    trace = world_trace(world, clients=12, seed=3)
    assert (trace.clients, trace.after_end) == (12, "stop")
    resolved = world.model_dump(mode="json", exclude_none=True)
    assert "horizon" not in resolved
    reread = validated(WorldFile, {"world": resolved}, "w.toml").world
    assert world_trace(reread, clients=12, seed=3).digest() == trace.digest()
    assert world_trace(WorldConfig(join=world.join), clients=None, seed=3).clients == 40


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"join": {}}, "w.toml: world.join.availability: missing"),
        ({"join": {"availability": "a", "netwrok": "b"}}, "netwrok: unknown key; did you mean 'network'?"),
        ({"join": {"availability": "a", "assign": "rank"}}, "assign: there is nothing to assign without"),
        ({"join": {"availability": "a"}, "horizon": "2d"}, "'horizon' belongs to a scenario, not to a join"),
        (
            {"join": {"availability": "a"}, "scenario": "churn"},
            "exactly one of 'scenario', 'trace' and 'join'",
        ),
    ],
)
def test_a_table_is_checked(world, message):
    with pytest.raises(ConfigError, match=message):
        validated(WorldFile, {"world": world}, "w.toml")


def test_a_file_cannot_be_tied_to_data_it_does_not_know(place):
    (place / "tied.toml").write_text(
        '[world]\nscenario="churn"\nclients=3\n[world.confound]\nwhat="night"\nto="n_samples"'
    )
    error = run("make", "tied.toml", "-o", "x.parquet").exception
    assert "world.confound: needs a run's data" in str(error)
    assert "world.confound: needs a run's data" in failed(
        ConfigError, "join", "--availability", "tied.toml", "-o", "x.parquet"
    )
