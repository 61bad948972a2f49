"""`fedsim trace edit` and `fedsim trace diff`."""

import json

import pytest

from fedsim.cli.trace.edit import client_list, part, signed_us
from fedsim.common.errors import ConfigError, TraceError
from fedsim.worlds.scenario import make_trace
from fedsim.worlds.trace import read_trace
from fedsim.worlds.transforms import crop, ending, resample, scale, select, shift, tile
from trace_commands import run

HOUR_US, DAY_US = 3600 * 10**6, 86400 * 10**6


@pytest.fixture
def world(tmp_path):
    made = make_trace("churn", {}, clients=20, horizon_us=3 * DAY_US, seed=1, after_end="stop")
    made.write(tmp_path / "w.parquet")
    return made


@pytest.fixture
def edit(world, tmp_path):
    def call(*options):
        out = tmp_path / "out.parquet"
        arguments = ["edit", tmp_path / "w.parquet", *options, "-o", out]
        result = run(*arguments)
        if result.exception is not None:
            raise result.exception
        return read_trace(out)

    return call


def test_steps_happen_in_the_order_that_help_states(world, edit):
    options = ["--tile", 1, "--scale-time", "1/2", "--scale-uplink", 3, "--shift", "-6h", "--crop", "12h:2d"]
    options += ["--after-end", "repeat", "--resample", 50, "--select", "0-9,15", "--seed", 4]
    by_hand = ending(resample(select(world, [*range(10), 15]), 50, seed=4), "repeat")
    by_hand = shift(crop(by_hand, DAY_US // 2, 2 * DAY_US), -6 * HOUR_US, 0, 4)
    by_hand = tile(scale(by_hand, "1/2", uplink=3.0))
    edited = edit(*options)
    assert edited.digest() == by_hand.digest()
    names = [set(step) - {"seed", "replace"} for step in json.loads(edited.source)["edits"]]
    assert names == [{name} for name in ("select", "resample", "after_end", "crop", "shift", "scale", "tile")]


def test_a_spread_alone_moves_clients_apart(world, edit):
    edited = edit("--after-end", "repeat", "--spread", "24h", "--seed", 2)
    assert edited.digest() == shift(ending(world, "repeat"), 0, DAY_US, 2).digest()


def test_nothing_asked_for_changes_nothing(world, edit):
    assert edit().digest() == world.digest()


def test_texts_are_read():
    assert client_list("0-2, 7,4-4", 20) == [0, 1, 2, 7, 4]
    assert part("1h:2h", DAY_US) == (HOUR_US, 2 * HOUR_US)
    assert part(":2h", DAY_US) == (0, 2 * HOUR_US)
    assert part("1h:", DAY_US) == (HOUR_US, DAY_US)
    assert [signed_us("x", text) for text in ("6h", "+6h", "-6h")] == [6 * HOUR_US, 6 * HOUR_US, -6 * HOUR_US]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (("--select", "3-1"), ConfigError, "expected clients such as 0-99,150, found '3-1'"),
        (("--select", "x"), ConfigError, "found 'x'"),
        (("--seed", "7"), ConfigError, "--seed: expected --resample or --spread beside it, found none"),
        (("--select", "20"), ConfigError, "--select 20: expected clients from 0 to 19, found client 20"),
        (("--select", f"0-{10**15}"), ConfigError, f"expected clients from 0 to 19, found client {10**15}"),
        (("--crop", "2d"), ConfigError, "expected START:END, such as 1d:3d"),
        (("--crop", "1d:9d"), TraceError, "crop: expected a part of"),
        (("--crop", "1x:2d"), ConfigError, "--crop 1x: expected a duration"),
        (("--shift", "6h"), TraceError, "expected a world that repeats, found after_end 'stop'"),
        (("--scale-time", "1/0"), ConfigError, "--scale-time 1/0: expected a number"),
        (("--shift", "1e20"), ConfigError, "--shift 1e20: expected a duration from 0 to 9e12 seconds"),
        (("--scale-time", "1e30"), TraceError, "exceeds 2.63; the longest horizon for so many clients is"),
        (("--scale-time", "0"), TraceError, "factor for time of at least"),
        (("--tile", "2"), TraceError, "1 unless the world repeats"),
        (("--no-replace",), ConfigError, "--no-replace: expected --resample beside them"),
    ],
)
def test_problems_are_told(edit, options, error, message):
    with pytest.raises(error, match=message):
        edit(*options)


def test_files_are_kept(edit, tmp_path):
    edit()
    with pytest.raises(ConfigError, match="use --force"):
        edit()
    before = (tmp_path / "w.parquet").read_bytes()
    arguments = ["edit", str(tmp_path / "w.parquet"), "-o", str(tmp_path / "w.parquet"), "--force"]
    assert isinstance(run(*arguments).exception, ConfigError)
    assert (tmp_path / "w.parquet").read_bytes() == before


def diff(*files):
    result = run("diff", *files)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_diff_says_what_differs(world, edit, tmp_path):
    assert "the same world" in diff(tmp_path / "w.parquet", tmp_path / "w.parquet")
    edit("--crop", "1d:3d", "--scale-compute", 2)
    output = diff(tmp_path / "w.parquet", tmp_path / "out.parquet")
    for text in (
        "clients 20 20",
        "span 3d 00:00:00 2d 00:00:00",
        "clients 0 to 19 over 2d 00:00:00: who is online: the worlds differ in",
        "compute: first different interval at client 0, 0.000 s (0 us)",
        "distribution of uplink: KS distance 0.0000",
    ):
        assert text in output, text


def test_diff_of_worlds_that_differ_in_speed_alone(edit, tmp_path):
    edit("--scale-uplink", 100)
    output = diff(tmp_path / "w.parquet", tmp_path / "out.parquet")
    assert "who is online: no difference" in output
    assert "uplink: first different interval at client 0" in output
    assert "distribution of sessions: KS distance 0.0000" in output
