"""A world that is written for another simulator and imported again is the same, as far as the format can hold it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.cli.main import main
from fedsim.common.units import US
from fedsim.config.errors import assign
from fedsim.scenarios.exporters.csv import csv
from fedsim.scenarios.exporters.exported import Exported
from fedsim.scenarios.exporters.fedscale import fedscale
from fedsim.scenarios.exporters.flgo import flgo
from fedsim.worlds.importer import Source, build_importer
from fedsim.worlds.trace import KINDS, Trace, read_trace
from worlds_by_hand import behaviour, worlds

ONLINE = KINDS.index("online")


def imported(exported: Exported, importer: str) -> Trace:
    options: dict[str, Any] = {}
    for option in exported.options:
        assign(options, option)
    source = Source(Path("file"), exported.data)
    found = build_importer(importer, options)
    assert found.recognises(source)
    return found.read([source]).trace


def names(trace: Trace) -> list[str]:
    return [str(name) for name in trace.about.column("id").to_pylist()]


@given(worlds())
def test_csv_holds_all_clients_and_intervals(world: Trace) -> None:
    exported = csv(world)
    present = np.isin(world.table.column("kind").to_pylist(), ["online", "unknown"])
    assert not any("never online" in line for line in exported.left_out)
    if not present.any():
        return
    back = imported(exported, "csv")
    assert names(back) == names(world)
    assert (back.horizon_us, back.after_end) == (world.horizon_us, world.after_end)
    lap = world.horizon_us
    np.testing.assert_array_equal(behaviour(back, lap), behaviour(world, lap))
    if not exported.left_out:
        assert back.digest() == world.digest()


@given(worlds())
def test_fedscale_holds_times_online_and_periods(world: Trace) -> None:
    exported = fedscale(world)
    back = imported(exported, "fedscale_availability")
    assert names(back) == names(world)
    online = behaviour(world, world.horizon_us)[ONLINE] > 0
    np.testing.assert_array_equal(behaviour(back, world.horizon_us)[ONLINE] > 0, online)
    for kind in ("compute", "downlink", "uplink", "fault"):
        assert any(kind in line for line in exported.left_out) == bool(len(world.spans(kind).client))
    if world.after_end == "repeat" and not any("unknown" in line for line in exported.left_out):
        ends = [i for i, open_end in enumerate(back.period_us("online") == 0) if not open_end]
        lap = 2 * world.horizon_us
        np.testing.assert_array_equal(
            behaviour(back, lap)[ONLINE][ends] > 0, behaviour(world, lap)[ONLINE][ends] > 0
        )
    assert imported(fedscale(back), "fedscale_availability").digest() == back.digest()


def test_fedscale_durations_are_those_of_the_windows() -> None:
    """Of a part of a recording too, whose clients have the durations of the whole as facts."""
    spans = [0, 0, 1], [0, 20 * US, 5 * US], [10 * US, 30 * US + 1, 6 * US]
    facts = pa.table({"duration_s": [999.0, 1.0, 7.0]})
    world = Trace.of(*spans, "online", clients=3, horizon_us=60 * US, about=facts)
    written = pickle.loads(fedscale(world).data)
    for client, told in written.items():
        assert told["duration"] == pytest.approx(sum(told["inactive"]) - sum(told["active"])), client
    assert [told["duration"] for told in written.values()] == [19.999999, 0.999999, 0]


def test_fedscale_tells_of_a_horizon_that_open_ends_change() -> None:
    H = 3600 * US
    client, start, end, kind = [0, 1, 1], [0, 0, H], [2 * H, H, 10 * H], ["online", "online", "unknown"]
    world = Trace.of(client, start, end, kind, clients=2, horizon_us=10 * H, after_end="repeat")
    exported = fedscale(world)
    assert exported.left_out == ["the horizon: 10:00:00, which becomes 1d 00:00:00, whole days of open ends"]
    assert imported(exported, "fedscale_availability").horizon_us == 24 * H
    whole = Trace.of(
        client[:1], start[:1], end[:1], kind[:1], clients=2, horizon_us=10 * H, after_end="repeat"
    )
    assert fedscale(whole).left_out == []


@st.composite
def seconds(draw: st.DrawFn) -> Trace:
    """Draw a world in whole seconds, with gaps between intervals of at least 15 s, and a client online at 0."""
    rows = []
    for client in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, 30)) * (client > 0)
        for _ in range(draw(st.integers(1, 4))):
            end = at + draw(st.integers(15, 80))
            rows.append((client, at * US, end * US))
            at = end + draw(st.integers(1, 40))
    columns = [list(column) for column in zip(*rows, strict=True)]
    facts = {"clients": client + 1, "horizon_us": max(columns[2]), "origin": "2024-05-01T00:00:00+00:00"}
    about = pa.table({"id": [f"phone, {i}" for i in range(client + 1)]})
    return Trace.of(*columns, "online", after_end="repeat", about=about, **facts)


@given(seconds())
def test_flgo_holds_whole_seconds_of_at_least_a_ping(world: Trace) -> None:
    exported = flgo(world)
    assert exported.left_out == [
        "what clients do before their first and after their last ping: it is unknown"
    ]
    back = imported(exported, "flgo_pings")
    assert names(back) == names(world)
    assert (back.horizon_us, back.after_end, back.origin) == (world.horizon_us, "repeat", world.origin)
    for name in ("client", "start_us", "end_us"):
        np.testing.assert_array_equal(
            getattr(back.spans("online"), name), getattr(world.spans("online"), name)
        )


def test_flgo_counts_what_pings_cannot_hold() -> None:
    world = Trace.of(
        [0, 0, 1], [5 * US, 40 * US + 1, 0], [12 * US, 70 * US, 90 * US], ["online", "online", "fault"],
        clients=3, horizon_us=90 * US, after_end="stop",
    )  # fmt: skip
    left = "\n".join(flgo(world).left_out)
    assert "1 intervals of kind fault" in left
    assert "2 clients that are never online" in left
    assert "1 intervals with parts of a second" in left
    assert "1 intervals shorter than 15 s" in left
    assert "before the first and after the last ping" in left
    assert "no date: pings begin in 1970" in left
    assert "length of the world" not in left
    short = Trace.of([0, 0], [0, 80 * US], [9 * US, 90 * US], "online", clients=1, horizon_us=90 * US)
    assert (
        "the length of the world: the last ping, which counts for 15 s, goes beyond it"
        in flgo(short).left_out
    )


@pytest.mark.parametrize(
    ("form", "importer"), [("csv", "csv"), ("flgo", "flgo_pings"), ("fedscale", "fedscale_availability")]
)
def test_the_command_shows_how_to_read_the_file_back(
    form: str,
    importer: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run("trace", "make", "diurnal", "-o", "night.parquet", "--set", "world.clients=5")
    run("trace", "export", "night.parquet", "--format", form, "-o", "there")
    said = capsys.readouterr()
    [command] = [line for line in said.out.splitlines() if line.startswith("read it back with: fedsim ")]
    assert form == "csv" or "left out: " in said.err
    run(*command.removeprefix("read it back with: fedsim ").split())
    assert f"format     {importer}" in capsys.readouterr().out
    there, back = read_trace(tmp_path / "night.parquet"), read_trace(tmp_path / "back.parquet")
    assert back.clients == there.clients
    if form == "csv":
        assert back.table.equals(there.table)


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 0


def test_the_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("trace", "make", "always_on", "-o", str(tmp_path / "w.parquet"), "--set", "world.clients=2")
    words = ["trace", "export", str(tmp_path / "w.parquet"), "--format", "csv", "-o"]
    for target, said in (
        (tmp_path / "w.parquet", "one of the files to read"),
        (tmp_path / "there", "--force"),
    ):
        (tmp_path / "there").write_text("")
        with pytest.raises(SystemExit) as ended:
            main([*words, str(target)])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
