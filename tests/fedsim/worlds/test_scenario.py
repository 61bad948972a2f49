"""The protocol: what a client can write and say, what clients share, and what they know of the federation."""

import gc
import math
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.rng import Streams, rng
from fedsim.common.units import US
from fedsim.scenarios.processes.simulate import simulate
from fedsim.worlds.scenario import Place, Scenario, make_trace
from fedsim.worlds.trace import read_trace


def world(client, *, clients=1, horizon_us=100, **shared):
    facts = shared.pop("facts", None)
    written = simulate(
        Scenario(client, **shared), clients=clients, horizon_us=horizon_us, seed=3, facts=facts
    )
    return written.trace(clients)


def rows(trace):
    return [(r["client"], r["kind"], r["start_us"], r["end_us"], r["value"]) for r in trace.table.to_pylist()]


def idle(env, me):
    yield env.timeout(1)


def test_what_begins_lasts_until_it_changes_ends_or_the_world_does():
    def client(env, me):
        me.begin("uplink", env.now, 5.0)
        me.begin("online", env.now)
        yield env.timeout(10)
        me.begin("uplink", env.now, 5.0)
        yield env.timeout(10)
        me.begin("uplink", env.now, 7.0)
        me.begin("uplink", env.now, 8.0)
        me.end("online", env.now)
        me.end("fault", env.now)
        yield env.timeout(500)

    assert rows(world(client)) == [
        (0, "online", 0, 20, 1.0),
        (0, "uplink", 0, 20, 5.0),
        (0, "uplink", 20, 100, 8.0),
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([None, 1.0, 2.0])), max_size=12))
def test_a_series_of_changes_is_the_step_function_that_it_says(changes):
    def client(env, me):
        for wait_us, value in changes:
            yield env.timeout(wait_us)
            if value is None:
                me.end("downlink", env.now)
            else:
                me.begin("downlink", env.now, value)

    expected, at = [None] * 100, 0
    for wait_us, value in changes:
        at += wait_us
        expected[at:] = [value] * max(100 - at, 0)
    found = [None] * 100
    for _, _, start, end, value in rows(world(client)):
        found[start:end] = [value] * (end - start)
    assert found == expected


def test_facts_about_clients_become_columns_and_what_is_not_said_is_null(tmp_path):
    def client(env, me):
        me.about("region", "north" if me.id % 2 else "south")
        if me.id:
            me.about("score", np.float64(me.id / 2))
        me.about("fast", bool(me.id == 2))
        yield env.timeout(1)

    trace = world(client, clients=3)
    assert trace.about.to_pydict() == {
        "fast": [False, False, True],
        "region": ["south", "north", "south"],
        "score": [None, 0.5, 1.0],
    }
    trace.write(tmp_path / "w.parquet")
    assert read_trace(tmp_path / "w.parquet").about == trace.about


@pytest.mark.parametrize("value", [None, [1], math.nan, math.inf, {}])
def test_a_fact_is_a_text_a_truth_value_or_a_finite_number(value):
    def client(env, me):
        me.about("region", value)
        yield env.timeout(1)

    with pytest.raises(ConfigError, match="client 0, about 'region': expected a text, a truth value"):
        world(client)


@pytest.mark.parametrize("values", [(3, "north"), ("north", 3), (True, 3), (2**70, 2**70)])
def test_a_fact_has_one_type_for_all_clients(values):
    def client(env, me):
        me.about("region", values[me.id])
        yield env.timeout(1)

    with pytest.raises(TraceError, match="about 'region': expected one type for all clients"):
        world(client, clients=2)


def queue(capacity):
    """A cell in which clients wait for each other, so that each feels who else is in it."""

    def cell(env, place):
        import simpy

        return simpy.Resource(env, capacity=capacity)

    def client(env, me):
        me.about("cell", me.id // 4)
        while True:
            yield env.timeout(1 + int(me.rng.integers(9)))
            with me.cell.request() as turn:
                yield turn
                me.begin("online", env.now)
                yield env.timeout(1 + int(me.rng.integers(9)))
                me.end("online", env.now)

    return client, {"cell": cell, "cell_clients": 4}


@pytest.mark.parametrize("clients", [1, 3, 4, 5, 10])
def test_whole_cells_are_simulated_and_clients_beyond_those_asked_for_are_dropped(clients):
    client, shared = queue(1)
    whole = world(client, clients=12, horizon_us=500, **shared)
    part = world(client, clients=clients, horizon_us=500, **shared)
    assert part.clients == clients
    assert rows(part) == [row for row in rows(whole) if row[0] < clients]
    assert part.about == whole.about.slice(0, clients)


def test_clients_of_a_cell_share_its_resource():
    client, shared = queue(2)
    trace = world(client, clients=8, horizon_us=2000, **shared)
    spans = trace.spans("online")
    for first in (0, 4):
        there = np.zeros(2000, dtype=int)
        for c, start, end in zip(spans.client, spans.start_us, spans.end_us, strict=True):
            there[start:end] += first <= c < first + 4
        assert there.max() == 2


def test_the_world_has_its_own_randomness_and_is_the_same_for_all():
    def shared(env, place):
        bell = env.event()

        def ring():
            yield env.timeout(1 + int(place.rng.integers(50)))
            bell.succeed()

        env.process(ring())
        return bell

    def client(env, me):
        yield me.world
        me.online(env.now, env.now + 1 + int(me.rng.integers(9)))

    few, many = world(client, clients=2, world=shared), world(client, clients=9, world=shared)
    assert rows(few) == rows(many)[:2]
    assert len({start for _, _, start, _, _ in rows(many)}) == 1


def test_places_draw_from_streams_of_their_own():
    world_, cell, other = (
        Place(what, n, Streams(1), 10) for what, n in [("world of", 0), ("cell of", 0), ("cell of", 1)]
    )
    draws = {place.rng.random() for place in (world_, cell, other)} | {cell.stream("x").random()}
    assert len(draws) == 4
    assert cell.stream("x").random() == Place("cell of", 0, Streams(1), 99).stream("x").random()


def test_a_client_draws_from_generators_of_the_seed_its_number_and_a_purpose():
    def client(env, me):
        me.about("own", me.rng.random())
        me.about("faults", me.stream("faults").random())
        yield env.timeout(1)

    about = world(client, clients=3).about
    assert about.column("own").to_pylist() == [rng(3, "scenario client", k).random() for k in range(3)]
    assert about.column("faults").to_pylist() == [rng(3, "scenario faults", k).random() for k in range(3)]


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_garbage_is_collected_afterwards_as_before(collecting, fails):
    def client(env, me):
        assert not gc.isenabled()
        yield env.timeout(5)
        if fails:
            raise ValueError("client 0 broke")

    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        with pytest.raises(ConfigError, match="broke") if fails else nullcontext():
            world(client)
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if before else gc.disable)()


def test_a_world_that_is_too_large_is_refused_before_anybody_lives(monkeypatch):
    def client(env, me):
        raise AssertionError("somebody lives")

    monkeypatch.setattr("fedsim.worlds.scenario.plugins.build", lambda *given: Scenario(client))
    for size, message in (
        ({"clients": 2**31}, "clients: expected at most 2147483647, found 2147483648"),
        ({"clients": 10, "horizon_us": 2**62}, "exceeds 2.63"),
        ({"clients": 0}, "clients: expected a whole number of at least 1, found 0"),
    ):
        with pytest.raises(TraceError, match=message):
            make_trace("mine", {}, **({"clients": 10, "horizon_us": 10, "seed": 3} | size))


def test_a_cell_without_clients_is_refused():
    for wrong in (0, "3", 2.5):
        with pytest.raises(
            ConfigError, match=f"cell_clients: expected a whole number from 1 on, found {wrong!r}"
        ):
            world(idle, cell_clients=wrong)


def test_a_client_reads_what_is_known_of_its_data():
    def client(env, me):
        me.about("own", me.fact("n_samples"))
        me.about("all", int(me.facts("n_samples").sum()))
        yield env.timeout(1)

    trace = world(client, clients=3, facts={"n_samples": np.array([5, 6, 7])})
    assert trace.about.to_pydict() == {"all": [18, 18, 18], "own": [5, 6, 7]}


def test_a_fact_that_nobody_said_is_an_error_that_says_where_it_would_come_from():
    def client(env, me):
        me.fact("n_sample")
        yield env.timeout(1)

    with pytest.raises(
        ConfigError, match=r"client's data: use it in a run's \[world\], without world.clients"
    ):
        world(client)
    with pytest.raises(
        ConfigError, match="no fact 'n_sample' about each client's data; did you mean 'n_samples'"
    ):
        world(client, facts={"n_samples": np.ones(1)})


def test_facts_have_an_entry_for_each_client():
    with pytest.raises(ConfigError, match="fact 'n_samples': expected one entry for each of 3 clients"):
        make_trace("always_on", {}, clients=3, horizon_us=10, seed=0, facts={"n_samples": [1, 2]})


def test_a_cell_that_is_completed_by_strangers_has_no_facts_about_them():
    def client(env, me):
        me.fact("n_samples")
        yield env.timeout(1)

    with pytest.raises(ConfigError, match="expected one for client 1, found 1 clients"):
        world(client, cell=lambda env, place: None, cell_clients=2, facts={"n_samples": np.ones(1)})


def test_the_source_names_the_facts_that_were_given():
    plain = make_trace("always_on", {}, clients=1, horizon_us=10, seed=0)
    told = make_trace("always_on", {}, clients=1, horizon_us=10, seed=0, facts={"n_samples": [1]})
    assert '"facts": ["n_samples"]' in told.source
    assert "facts" not in plain.source


def test_times_may_be_whole_numbers_of_numpy():
    def written(start, end):
        def client(env, me):
            me.online(start, end)
            yield env.timeout(end)

        return world(client)

    assert written(np.int64(2), np.int32(9)).digest() == written(2, 9).digest()


OWN = "yield env.timeout(7)"
MISTAKES = {
    "a fraction": (
        f"{OWN}; yield env.timeout(0.5)",
        "client 0 .* expected whole microseconds .int., found 0.5",
    ),
    "not a number": (f"{OWN}; yield env.timeout(float('nan'))", "client 0 .* found nan"),
    "a negative wait": (f"{OWN}; yield env.timeout(-5)", "client 0 .* at least 0 microseconds, found -5"),
    "an unknown kind": (f"me.write('onlin', 0, 5); {OWN}", "client 0 .* did you mean 'online'"),
    "an unknown kind that begins": (f"me.begin('onlin', 0); {OWN}", "client 0 .* did you mean 'online'"),
    "an unknown kind that ends": (f"{OWN}; me.end('onlin', 7)", "client 0 .* did you mean 'online'"),
    "a number": (f"{OWN}; yield 5", 'client 0 .* expected an event, .* yield value "5"'),
    "nothing": (f"{OWN}; yield", 'client 0 .* expected an event, .* yield value "None"'),
    "its own error": (f"{OWN}; raise KeyError('mine')", "client 0 .* KeyError: 'mine'"),
    "an exit": (f"{OWN}; raise SystemExit(0)", "client 0 .* SystemExit: 0"),
    "another world": (f"{OWN}; yield simpy.Environment().timeout(5)", "client 0 .* found one of another"),
    "a run": (f"{OWN}; env.run(until=9)", "client 0 .* do not make it pass"),
    "a helper's": (f"{OWN}; yield env.process(helper(env))", 'client 0 .* yield value "7"'),
    "no helper": (f"{OWN}; yield env.process(7)", "client 0 .* expected a process, found int"),
    "a failed event": (
        f"env.event().fail(KeyError('mine')); {OWN}",
        "an event that nobody waits for: KeyError",
    ),
}


@pytest.mark.parametrize(("body", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_told_with_scenario_client_and_line(tmp_path, body, message):
    file = tmp_path / "mine.py"
    head = "import simpy\nfrom fedsim.worlds.scenario import Scenario\ndef helper(env): yield 7\ndef client(env, me):\n"
    file.write_text(f"{head}    {body}\ndef mine(): return Scenario(client)\n")
    with pytest.raises(ConfigError, match=f"^scenario '{file}:mine', {message}") as told:
        make_trace(f"{file}:mine", {}, clients=3, horizon_us=100, seed=1)
    line = 3 if "helper(env)" in body else 5
    assert "nobody" in message or f" (mine.py, line {line}): " in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("steps", ["yield env.timeout(0)", "yield store.put(1); yield store.get()"])
def test_a_client_for_whom_no_time_passes_is_told_with_the_instant(tmp_path, monkeypatch, steps):
    monkeypatch.setattr("fedsim.scenarios.processes.simulate._MOST", 500)
    monkeypatch.setattr("fedsim.scenarios.processes.simulate._MOST_OF_EACH", 10)
    file = tmp_path / "mine.py"
    file.write_text(
        "import simpy\nfrom fedsim.worlds.scenario import Scenario\ndef mine():\n    def client(env, me):\n"
        "        store = simpy.Store(env, 1)\n        yield env.timeout(10 + me.id)\n"
        f"        while me.id == 1:\n            {steps}\n        yield env.timeout(50)\n    return Scenario(client)\n"
    )
    with pytest.raises(ConfigError, match=r"client 1 .mine.py, line 8.: .* found 530 events at 11 us"):
        make_trace(f"{file}:mine", {}, clients=3, horizon_us=100, seed=1)


@pytest.mark.parametrize(("wait", "refused"), [("60", True), ("1_000", False)])
def test_waits_in_seconds_are_told_with_the_unit(tmp_path, monkeypatch, wait, refused):
    """In a minute, waits of 60 us are 1,000,000 events of a client, and waits of 1,000 us are 60,000."""
    monkeypatch.setattr("fedsim.scenarios.processes.simulate._MOST_OF_CLIENT", 100_000)
    monkeypatch.setattr("fedsim.scenarios.processes.simulate._SURE", 9_000)
    file = tmp_path / "mine.py"
    file.write_text(
        "from fedsim.worlds.scenario import Scenario\ndef mine():\n"
        "    def client(env, me):\n        while True:\n            me.online(env.now, env.now + 1)\n"
        f"            yield env.timeout({wait})\n    return Scenario(client)\n"
    )
    if refused:
        message = (
            r"client [01] .mine.py, line 6.: expected at most 100,000 events of a client in 00:01:00, found 11,000 of "
            "2 clients in the first 0.330 s: waits are in microseconds; multiply seconds by US$"
        )
        with pytest.raises(ConfigError, match=message):
            make_trace(f"{file}:mine", {}, clients=2, horizon_us=60 * US, seed=1)
    else:
        trace = make_trace(f"{file}:mine", {}, clients=2, horizon_us=60 * US, seed=1)
        assert len(trace.table) == 2 * 60_000


def test_many_events_at_one_instant_are_no_loop():
    def client(env, me):
        for _ in range(50_000):
            yield env.timeout(0)
        me.online(env.now, env.now + 10)
        yield env.timeout(math.inf)

    assert rows(world(client)) == [(0, "online", 0, 10, 1.0)]


def test_whole_numbers_of_numpy_are_times():
    def client(env, me):
        yield env.timeout(np.int64(5))
        me.online(env.now, env.now + 1)

    assert rows(world(client)) == [(0, "online", 5, 6, 1.0)]


@pytest.mark.parametrize(("part", "named"), [("world", "its world"), ("cell", "cell 0")])
def test_a_process_that_nobody_starts_is_no_part_of_a_world(part, named):
    def process(env, place):
        yield env.timeout(5)

    def starts(env, place):
        return env.process(process(env, place))

    with pytest.raises(ConfigError, match=f"{named}: expected a function .*, found a process: .* start it"):
        world(idle, **{part: process})
    world(idle, **{part: starts})


@pytest.mark.parametrize(
    ("start_us", "after_end", "message"),
    [
        (-5, "stop", r".*row 0 \(client 0, online\): start_us -5 is before 0"),
        (0, "loop", "after_end: unknown 'loop'"),
    ],
)
def test_a_malformed_trace_is_told_with_its_scenario(tmp_path, start_us, after_end, message):
    file = tmp_path / "mine.py"
    file.write_text(
        "from fedsim.worlds.scenario import Scenario\n"
        f"def client(env, me):\n    me.online({start_us}, 5)\n    yield env.timeout(1)\n"
        f"def mine(): return Scenario(client, after_end={after_end!r})\n"
    )
    with pytest.raises(TraceError, match=f"^scenario '{file}:mine': {message}"):
        make_trace(f"{file}:mine", {}, clients=1, horizon_us=100, seed=1, after_end=None)


def test_a_world_and_a_cell_that_fail_are_named():
    def broken(env, place):
        raise KeyError("mine")

    with pytest.raises(ConfigError, match=r"its world \(test_scenario.py, line \d+\): KeyError"):
        world(idle, world=broken)
    with pytest.raises(ConfigError, match=r"cell 0 \(test_scenario.py, line \d+\): KeyError"):
        world(idle, cell=broken)
