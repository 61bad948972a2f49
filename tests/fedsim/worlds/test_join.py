"""Worlds joined of several."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError, TraceError
from fedsim.worlds.client_statistics import trait
from fedsim.worlds.join import join
from fedsim.worlds.matching import spearman
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import KINDS, Trace
from fedsim.worlds.transforms import ending
from fedsim.worlds.world import World
from worlds_by_hand import behaviour, worlds

FROM = {"compute": ("compute",), "network": ("downlink", "uplink"), "faults": ("fault",)}


def speeds(kinds, values, horizon_us=50, **facts):
    n = len(values)
    rows = [(c, 0, horizon_us, kind, float(v)) for kind in kinds for c, v in enumerate(values)]
    facts = {"after_end": "repeat"} | facts
    return Trace.of(*zip(*rows, strict=True), clients=n, horizon_us=horizon_us, **facts)


def sessions(ends, horizon_us=100, **facts):
    n, facts = len(ends), {"after_end": "repeat"} | facts
    return Trace.of(range(n), [0] * n, ends, "online", clients=n, horizon_us=horizon_us, **facts)


@given(worlds(after_end="repeat"), worlds(after_end="repeat"), st.integers(1, 6), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_every_client_lives_one_life_of_each_source(a, b, clients, seed):
    joined = join(availability=a, faults=b, clients=clients, seed=seed)
    far = 3 * joined.horizon_us
    lived, lives_a, lives_b = behaviour(joined, far), behaviour(a, far), behaviour(b, far)
    of_a, of_b = (joined.about.column(f"{name}_client").to_pylist() for name in ("availability", "faults"))
    for k, kind in enumerate(KINDS):
        source, ids = (lives_b, of_b) if kind == "fault" else (lives_a, of_a)
        assert (lived[k] == source[k][ids]).all()


def ids(*names):
    return {"about": pa.table({"id": pa.array(names, pa.string())})}


@pytest.mark.parametrize("clients", [None, 2])
def test_clients_of_equal_ids_are_one_client(clients):
    online = sessions([10, 20, 30], **ids("u3", "u1", "u2"))
    slow = speeds(["compute"], [0.1, 0.2, 0.3, 0.4], 100, **ids("u1", "u2", "u3", "u4"))
    joined = join(availability=online, compute=slow, assignment="id", clients=clients, seed=3)
    names = joined.about.column("id").to_pylist()
    assert len(names) == (clients or 3)
    assert joined.spans("compute").value.tolist() == [
        {"u1": 0.1, "u2": 0.2, "u3": 0.3}[name] for name in names
    ]
    assert json.loads(joined.source)["assignment"]["compute"]["how"] == "id"


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (ids("u1", "u2"), "source 'compute': there is no client with the id 'u3', which availability has"),
        (ids("u1", "u1"), "source 'compute': expected ids that differ to assign by, found 'u1' twice"),
        ({}, "source 'compute': expected ids of clients to assign by, found none"),
    ],
)
def test_ids_that_do_not_match_are_told(compute, message):
    online = sessions([10, 20], **ids("u3", "u1"))
    with pytest.raises(TraceError, match=message):
        join(availability=online, compute=speeds(["compute"], [1, 2], 100, **compute), assignment="id")


@given(worlds(after_end="repeat"), worlds(after_end="repeat"), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_world_answers_for_a_joined_trace_as_for_its_sources(a, b, seed):
    joined = join(availability=a, faults=b, clients=5, seed=seed)
    world = World(joined, unknown="offline")
    ids = joined.about.column("availability_client").to_pylist()
    lived = behaviour(a, 60)[:, ids] > 0
    known = ~lived[KINDS.index("unknown")]
    online = np.array([world.online(t) for t in range(60)]).T
    assert (online == lived[0])[known].all()


@given(worlds(after_end="stop"), worlds(after_end="repeat"), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_world_that_ends_takes_as_much_of_the_others_as_it_needs(a, b, seed):
    joined = join(availability=a, faults=b, seed=seed)
    assert (joined.horizon_us, joined.after_end) == (a.horizon_us, "stop")
    lived = behaviour(joined, a.horizon_us)
    ids = joined.about.column("faults_client").to_pylist()
    assert (lived[4] == behaviour(b, a.horizon_us)[4][ids]).all()


def test_what_a_longer_source_has_beyond_the_joined_horizon_counts_for_nothing():
    """Client 0 of the network is the slower one in the 100 us that the world lasts, and has no downlink in the last."""
    rows = [(0, 0, 90, "downlink", 1.0), (0, 100, 900, "downlink", 99.0), (1, 0, 900, "downlink", 2.0)]
    rows += [(2, 100, 900, "downlink", 5.0)]
    network = Trace.of(*zip(*rows, strict=True), clients=3, horizon_us=900, after_end="repeat")
    base = sessions([100, 50], after_end="stop")
    for seed in range(4):
        joined = join(availability=base, network=network, assignment="rank", seed=seed)
        assert joined.about.column("network_client").to_pylist() == [1, 0]
        assert json.loads(joined.source)["assignment"]["network"]["spearman"] == 1
        assert json.loads(joined.source)["join"]["network"]["digest"] == network.digest()


def test_a_short_series_repeats_on_its_own():
    joined = join(availability=sessions([40, 60]), network=speeds(("downlink",), [1.0, 2.0], horizon_us=30))
    assert joined.horizon_us == 100
    assert joined.period_us("downlink").tolist() == [30, 30]
    assert joined.period_us("online").tolist() == [0, 0]


@pytest.mark.parametrize(("how", "rho"), [("independent", 0.0), ("rank", 1.0), (0.7, 0.7), (-0.5, -0.5)])
def test_speeds_and_availability_are_correlated_as_asked(how, rho):
    rng = np.random.default_rng(2)
    n = 2000
    base = sessions(1 + rng.choice(10**6, n, replace=False), horizon_us=10**6)
    fast = speeds(("compute",), rng.lognormal(size=n), horizon_us=10**6)
    wide = speeds(("downlink", "uplink"), rng.lognormal(size=n), horizon_us=10**6)
    joined = join(availability=base, compute=fast, network=wide, assignment={"compute": how}, seed=4)
    told = json.loads(joined.source)["assignment"]
    online = trait(joined, "availability")
    found = spearman(online, trait(joined, "compute"))
    assert told["compute"] == {"how": how, "spearman": pytest.approx(found)}
    assert found == pytest.approx(rho, abs=4 / np.sqrt(n) * (1 - rho**2) + 1e-12)
    assert told["network"]["how"] == "independent"
    assert abs(spearman(online, trait(joined, "uplink"))) < 4 / np.sqrt(n)


def test_unknown_time_counts_as_the_run_takes_it():
    rows = [(0, 0, 90, "unknown"), (1, 0, 50, "online"), (2, 0, 10, "online"), (2, 10, 30, "unknown")]
    base = Trace.of(*zip(*rows, strict=True), clients=3, horizon_us=100, after_end="repeat")
    wide = speeds(("uplink",), [10, 20, 30], horizon_us=100)
    for unknown, uplinks in (("offline", [10, 30, 20]), ("error", [10, 30, 20]), ("online", [30, 20, 10])):
        joined = join(availability=base, network=wide, assignment="rank", unknown=unknown)
        assert joined.spans("uplink").value.tolist() == uplinks
        assert json.loads(joined.source)["assignment"]["network"]["spearman"] == 1


def test_facts_of_all_sources_are_kept_with_a_prefix_where_names_clash():
    base = sessions([10, 20], about=pa.table({"id": ["a", "b"], "region": ["x", "y"]}))
    fast = speeds(("compute",), [1, 2], about=pa.table({"id": ["p", "q"], "model": ["m", "n"]}))
    about = join(availability=base, compute=fast, assignment="rank").about
    assert about.column_names == [
        "id", "region", "availability_client", "compute_id", "model", "compute_client",
    ]  # fmt: skip
    assert about.column("id").to_pylist() == ["a", "b"]
    assert about.column("compute_id").to_pylist() == ["q", "p"]


def test_the_spread_of_a_speed_comes_from_where_the_speed_comes_from():
    def spread(*values):
        return pa.table({"compute_cv": values, "downlink_cv": values})

    first = join(
        availability=sessions([10, 20], about=pa.table({"id": ["a", "b"]})),
        compute=speeds(("compute",), [1, 2], about=spread(0.1, 0.2)),
    )
    assert first.about.column("compute_cv").to_pylist() in ([0.1, 0.2], [0.2, 0.1])
    assert "downlink_cv" not in first.about.column_names
    other = join(
        availability=first, compute=speeds(("compute",), [3, 4], about=spread(0.3, 0.4)), assignment="rank"
    )
    assert other.about.column("compute_cv").to_pylist() == [0.4, 0.3]
    assert sorted(other.about.column("availability_compute_cv").to_pylist()) == [0.1, 0.2]
    assert (
        "compute_cv" not in join(availability=first, compute=speeds(("compute",), [5, 6])).about.column_names
    )


@pytest.mark.parametrize(("gives", "keeps"), [("downlink", "uplink"), ("uplink", "downlink")])
def test_what_a_source_does_not_have_comes_from_availability(gives, keeps):
    phones = join(availability=sessions([10, 20]), network=speeds(("downlink", "uplink"), [5, 6]))
    joined = join(availability=phones, network=speeds((gives,), [70, 80]))
    assert set(joined.spans(keeps).value) == {5.0, 6.0}
    assert set(joined.spans(gives).value) == {70.0, 80.0}


def test_a_join_of_joins_keeps_all_numbers():
    once = join(availability=sessions([10, 20]), compute=speeds(("compute",), [1, 2]))
    twice = join(availability=once, network=speeds(("uplink",), [1, 2]))
    assert twice.about.num_columns == 4
    assert len(set(twice.about.column_names)) == 4


def test_the_source_names_all_that_went_in():
    base, fast = (
        sessions([10, 20, 30], source='{"importer": "x"}'),
        speeds(("compute",), [1, 2], source="lab"),
    )
    joined = join(availability=base, compute=fast, clients=5, seed=3)
    told = json.loads(joined.source)
    assert told["join"]["availability"]["digest"] == base.digest()
    assert told["join"]["availability"]["source"] == {"importer": "x"}
    assert told["join"]["compute"]["source"] == "lab"
    assert told["drawn"] == {"clients": 5, "replace": None, "seed": 3}


def test_equal_seeds_give_equal_worlds_and_others_give_others():
    base = sessions(range(1, 41))
    fast = speeds(("compute",), range(1, 41))
    digests = [join(availability=base, compute=fast, seed=s).digest() for s in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_clients_without_a_speed_are_passed_over():
    rows = [(0, 0, 9, "downlink", 1.0), (1, 0, 9, "downlink", 1.0), (1, 0, 9, "uplink", 1.0)]
    partly = Trace.of(*zip(*rows, strict=True), clients=3, horizon_us=9, after_end="repeat")
    joined = join(availability=sessions([10, 20, 30]), network=partly)
    assert joined.about.column("network_client").to_pylist() == [1, 1, 1]


def test_scenarios_are_joined_as_well():
    night = make_trace("diurnal", {}, clients=30, horizon_us=10**11, seed=1, after_end="repeat")
    other = make_trace("churn", {}, clients=30, horizon_us=10**11, seed=2, after_end="repeat")
    joined = join(availability=night, compute=other, clients=20)
    assert set(np.unique(joined.spans("compute").value)) <= set(np.unique(other.spans("compute").value))
    assert set(np.unique(joined.spans("uplink").value)) <= set(np.unique(night.spans("uplink").value))


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        ({"compute": speeds(("uplink",), [1, 2])}, TraceError, "'compute': expected clients with 'compute'"),
        ({"network": sessions([5])}, TraceError, "'network': expected clients with 'downlink' and 'uplink'"),
        (
            {"compute": ending(speeds(("compute",), [1, 2]), "stop")},
            TraceError,
            "'compute' ends at 0.000 s .after_end 'stop'., but the joined world repeats; .* repeat -o OUT.parquet",
        ),
        ({"clients": 3, "replace": False}, TraceError, "at most 2 clients without replacement, found 3"),
        ({"clients": 0}, TraceError, "at least 1 client, found 0"),
        (
            {"assignment": {"network": "rank"}},
            ConfigError,
            "assignment of 'network': no such source is joined",
        ),
        (
            {"compute": speeds(("compute",), [1, 2]), "assignment": 2.0},
            ConfigError,
            "from -1 to 1, found 2.0",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(ask, error, message):
    with pytest.raises(error, match=message):
        join(availability=sessions([10, 20]), **ask)
