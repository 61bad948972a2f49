"""The `[world]` table."""

import pytest

from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import US
from fedsim.config.errors import validated
from fedsim.config.world import WorldConfig, WorldFile, world_files, world_trace
from fedsim.worlds.trace import Trace


def message_of(**world):
    with pytest.raises(ConfigError) as caught:
        validated(WorldFile, {"world": world}, "w.toml")
    return str(caught.value)


def test_a_run_gives_the_clients_and_the_seed_that_the_table_leaves_out():
    open_config = WorldConfig(scenario="churn", horizon="1h", after_end="stop")
    trace = world_trace(open_config, clients=5, seed=8)
    fixed = world_trace(WorldConfig(scenario="churn", horizon=3600, clients=5, seed=8), clients=99, seed=0)
    assert (trace.clients, trace.horizon_us, trace.after_end) == (5, 3600 * US, "stop")
    assert fixed.table == trace.table


@pytest.mark.parametrize(
    "world",
    [
        WorldConfig(scenario="always_on"),
        WorldConfig(
            scenario="churn",
            horizon="90min",
            seed=3,
            options={"mean_on": "3h", "devices": {"fault_every": 0}},
        ),
        WorldConfig(scenario="diurnal", clients=4, after_end="error"),
        WorldConfig(trace="w.parquet"),
        WorldConfig(trace="w.parquet", after_end="stop"),
    ],
    ids=lambda w: w.scenario or "trace",
)
def test_a_resolved_table_is_read_back_unchanged(world):
    resolved = world.model_dump(mode="json", exclude_none=True)
    reread = validated(WorldFile, {"world": resolved}, "w.toml").world
    assert reread.model_dump(mode="json", exclude_none=True) == resolved
    if world.scenario:
        assert world_trace(reread, clients=3, seed=1).table == world_trace(world, clients=3, seed=1).table


def test_a_resolved_table_spells_out_the_options():
    resolved = WorldConfig(scenario="churn", options={"mean_on": "3h"}).model_dump(
        mode="json", exclude_none=True
    )
    assert resolved["options"]["mean_on"] == "3h"
    assert resolved["options"]["mean_off"] == "4h"
    assert resolved["options"]["devices"]["fault_every"] == "2d"
    assert resolved["horizon"] == 7 * 86400


def test_a_trace_file_keeps_its_own_end_unless_the_table_names_one(tmp_path):
    path = tmp_path / "w.parquet"
    Trace.of(0, 0, 5, "online", clients=1, horizon_us=9, after_end="stop").write(path)
    assert world_trace(WorldConfig(trace=path), clients=1, seed=0).after_end == "stop"
    assert world_trace(WorldConfig(trace=path, after_end="repeat"), clients=1, seed=0).after_end == "repeat"
    with pytest.raises(TraceError, match="there is no such file"):
        world_trace(WorldConfig(trace=tmp_path / "x"), clients=1, seed=0)


def test_seeds_have_a_file_each_where_a_path_names_the_seed(tmp_path):
    for seed in (3, 4):
        span = 10 * seed
        one = Trace.of(0, 0, span, "online", clients=1, horizon_us=span, after_end="repeat")
        one.write(tmp_path / f"lives_{seed}.parquet")
    path = tmp_path / "lives_{seed}.parquet"
    alone, joined = WorldConfig(trace=path), WorldConfig(join={"availability": path})
    for world in (alone, joined):
        assert [world_trace(world, clients=1, seed=seed).horizon_us for seed in (3, 4)] == [30, 40]
        assert validated(WorldFile, {"world": world.model_dump(exclude_unset=True)}, "w.toml").world == world
    own = WorldConfig(join={"availability": path}, seed=4)
    assert world_trace(own, clients=1, seed=3).horizon_us == 40
    with pytest.raises(TraceError, match=r"lives_5\.parquet: there is no such file"):
        world_trace(alone, clients=1, seed=5)


def test_a_world_names_the_files_that_it_is_read_from(tmp_path):
    trace, table = tmp_path / "lives_{seed}.parquet", tmp_path / "w.toml"
    table.write_text(f"[world]\nseed = 7\njoin = {{availability = '{trace}'}}\n")
    joined = WorldConfig(join={"availability": table, "network": trace})
    assert list(world_files(joined, seed=3)) == [
        table,
        tmp_path / "lives_7.parquet",
        tmp_path / "lives_3.parquet",
    ]
    assert list(world_files(WorldConfig(trace=trace), seed=3)) == [tmp_path / "lives_3.parquet"]
    assert list(world_files(WorldConfig(scenario="churn"), seed=3)) == []


def test_problems_name_the_key():
    assert "w.toml: world: give exactly one of 'scenario', 'trace' and 'join'" in message_of(
        scenario="churn", trace="x"
    )
    assert "w.toml: world: 'seed' belongs to a scenario" in message_of(trace="x", seed=1)
    assert "w.toml: world.horizon: input should be greater than 0" in message_of(scenario="churn", horizon=0)
    assert "w.toml: world.horizon: expected a duration" in message_of(scenario="churn", horizon="a while")
    assert "w.toml: world.seed: " in message_of(scenario="churn", seed=-1)
    assert "w.toml: world.after_end: input should be 'error', 'repeat' or 'stop'" in message_of(
        scenario="churn", after_end="x"
    )
    both = message_of(scenario="chrun", horizonn=3)
    assert "w.toml: world.scenario: there is no scenario 'chrun'; did you mean 'churn'?" in both
    assert "w.toml: world.horizonn: unknown key; did you mean 'horizon'?" in both
