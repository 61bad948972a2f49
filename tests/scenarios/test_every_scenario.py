"""What all scenarios have in common, whoever wrote them."""

import re
import sys
import tomllib

import pytest

from fedsim import plugins
from fedsim.common import parallel
from fedsim.common.errors import ConfigError
from fedsim.config.errors import read_toml, validated
from fedsim.config.world import WorldFile, resolved_options, world_trace
from fedsim.plugins.options import options_of
from fedsim.scenarios.processes import simulate as _simulate
from fedsim.scenarios.processes.laws import Options
from fedsim.worlds.trace import read_trace
from fedsim.worlds.trace_writer import TraceWriter
from made_worlds import DAY, HOUR, NAMES, TYPICAL, lives, made

joined = TraceWriter.joined


def typical(name, **facts):
    return made(name, TYPICAL.get(name), **facts)


@pytest.mark.parametrize("name", NAMES)
def test_a_world_depends_on_its_seed_alone(name):
    first = typical(name)
    assert typical(name) == first
    assert typical(name, seed=2).digest() != first.digest()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clients", [1, 7, 13])
def test_a_client_does_not_depend_on_how_many_there_are(name, clients):
    assert lives(typical(name, clients=clients), clients) == lives(typical(name), clients)


@pytest.mark.parametrize("name", NAMES)
def test_clients_that_share_nothing_live_alike_however_they_are_grouped(name, monkeypatch):
    monkeypatch.setattr(_simulate, "GROUP", 3)
    apart = typical(name)
    monkeypatch.setattr(_simulate, "GROUP", 10**9)
    assert typical(name).digest() == apart.digest()


@pytest.mark.skipif(sys.platform != "linux", reason="parts are forked on Linux alone")
@pytest.mark.parametrize("name", NAMES)
def test_a_world_is_the_same_in_parts(name, monkeypatch):
    alone = typical(name)
    monkeypatch.setattr(_simulate, "GROUP", 3)
    monkeypatch.setattr(_simulate, "_LEAST", 1)
    monkeypatch.setattr(parallel, "cores", lambda: 3)
    monkeypatch.setattr(parallel, "_may_fork", lambda: True)
    parts = []
    monkeypatch.setattr(
        TraceWriter, "joined", staticmethod(lambda rows: parts.append(len(rows)) or joined(rows))
    )
    assert typical(name).digest() == alone.digest()
    shared = {
        "correlated_outage": 1,
        "flgo": 1,
        "shared_uplink": 2,
    }  # one world for all; two cells of ten clients
    assert parts == [shared.get(name, 3)]


@pytest.mark.parametrize("name", NAMES)
def test_a_longer_world_begins_as_a_shorter_one(name):
    longer = typical(name, horizon_us=DAY + 13 * HOUR + 7)
    assert lives(longer, 20, until_us=DAY) == lives(typical(name), 20)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read(name, tmp_path):
    trace = typical(name, horizon_us=HOUR, after_end="repeat")
    trace.write(tmp_path / "world.parquet")
    assert read_trace(tmp_path / "world.parquet") == trace
    assert read_trace(tmp_path / "world.parquet").digest() == trace.digest()


@pytest.mark.parametrize("name", NAMES)
def test_one_client_for_one_microsecond_is_a_world(name):
    assert typical(name, clients=1, horizon_us=1, after_end="repeat").clients == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_source_tells_how_to_make_it_again(name):
    source = typical(name, horizon_us=HOUR).source
    assert f'"scenario": "{name}"' in source
    assert '"seed": 1' in source


TABLES = [
    (name, option, key)
    for name in NAMES
    for option, parameter in options_of(plugins.factory("scenario", name)).items()
    if isinstance(parameter.default, Options)
    for key in type(parameter.default).model_fields
    if getattr(parameter.default, key) is not None
]


@pytest.mark.parametrize(("name", "option", "key"), TABLES)
def test_a_part_of_a_table_leaves_the_defaults_of_the_other_keys(name, option, key):
    default = options_of(plugins.factory("scenario", name))[option].default
    part = {option: {key: getattr(default, key)}}
    same, default_world = made(name, TYPICAL.get(name, {}) | part, clients=6), typical(name, clients=6)
    assert (same.table, same.about) == (default_world.table, default_world.about)


def test_another_law_drops_the_shape_of_the_default_and_keeps_its_mean():
    short, whole = ({"on": {"law": "exponential"} | more} for more in ({}, {"mean": "2h"}))
    assert made("semi_markov", short).table == made("semi_markov", whole).table
    with pytest.raises(
        ConfigError, match=r"expected a shape from .* with the law 'gamma', found shape = None"
    ):
        made("semi_markov", {"on": {"law": "gamma"}})


@pytest.mark.parametrize("name", NAMES)
def test_devices_do_not_change_who_is_online(name):
    devices = {"devices": {"fault_every": "1h", "seconds_per_sample": 1.0}}
    other = made(name, TYPICAL.get(name, {}) | devices).spans("online")
    assert other.start_us.tolist() == typical(name).spans("online").start_us.tolist()


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name != "fitted"]
)  # its files are made by fitting
def test_a_scenario_has_a_file_that_can_be_run(name, root):
    file = root / "scenarios" / f"{name}.toml"
    world = validated(WorldFile, read_toml(file), file).world
    assert world.scenario == name
    trace = world_trace(world.model_copy(update={"clients": 5, "horizon": DAY}), clients=99, seed=0)
    assert trace.clients == 5
    assert trace.after_end in ("repeat", "stop")
    assert f"fedsim trace make scenarios/{name}.toml -o " in file.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_guide_lists_every_scenario_with_every_option_and_its_default(name, root):
    guide = (root / "docs" / "scenarios.md").read_text()
    line = re.search(rf"^\| `{name}` \|[^|]*\|([^|]*)\|$", guide, re.MULTILINE)
    assert line is not None
    told = {key: tomllib.loads(f"x = {text}")["x"] for key, text in re.findall(r"`(\w+) = ([^`]*)`", line[1])}
    if name != "fitted":  # its options are made by fitting
        defaults = resolved_options(name, {})
        assert told == {key: value for key, value in defaults.items() if key != "devices"}
        optional = set(options_of(plugins.factory("scenario", name))) - set(defaults) - {"devices"}
        assert all(f"`{option}`" in line[1] for option in optional)
