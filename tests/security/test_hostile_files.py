"""SECURITY.md, promise 5: files made to break their reader are refused in words."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim import plugins
from fedsim.common.errors import ConfigError, DataError, TraceError
from fedsim.config.load import load_config
from fedsim.worlds.trace import read_trace
from received import DEEP, EVIL, MARKED_UP, command, with_metadata


def test_nesting_is_refused_and_ends_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep.toml").write_text("a = " + "[" * DEEP)
    assert command("run", tmp_path / "deep.toml") == 2
    (folder / "manifest.json").write_text('{"a": ' * DEEP)
    assert command("report", folder) == 2
    (folder / "manifest.json").write_text("[" * DEEP + "]" * DEEP)
    assert command("report", folder) == 2
    assert capsys.readouterr().err.count("nested too deeply") == 3
    (tmp_path / "digits.toml").write_text("a = " + "9" * 5000)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "digits.toml")


@pytest.mark.parametrize(
    "more",
    [
        "[" * DEEP,
        '{"periods": ' * DEEP,
        '{"periods": {}, "about": {"x": [1e999, 99999999999999999999999]}}',
        '{"periods": {}, "about": {"x": [{}, {}]}}',
        '{"periods": {}, "about": {"x": [[1], [2]]}}',
        '{"periods": {}, "about": {"x": [1]}}',
        '{"periods": {"online": "abc"}, "about": {}}',
        '{"periods": {"../x": [1, 1]}, "about": {}}',
        '{"periods": {"online": [1e400, 1]}, "about": {}}',
        '{"periods": {"online": {"a": 1}}, "about": []}',
        "9" * 5000,
        "null",
        "",
    ],
)
def test_hostile_facts_of_a_trace_are_refused(more: str, world: Path) -> None:
    with pytest.raises(TraceError, match=r"w\.parquet"):
        read_trace(with_metadata(world, more=more))


@pytest.mark.parametrize("clients", ["-1", "0", "9" * 18, "1e3", "9" * 5000, "x"])
def test_hostile_numbers_of_a_trace_are_refused(clients: str, world: Path) -> None:
    with pytest.raises(TraceError, match="clients"):
        read_trace(with_metadata(world, clients=clients))


def test_a_fact_named_like_a_path_is_a_name(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = {"../../x": ["a", "b"], EVIL: [1, 2], MARKED_UP: ["/etc/passwd", MARKED_UP]}
    path = with_metadata(world, more=json.dumps({"periods": {}, "about": about}), source="[" * DEEP)
    before = set(path.parent.iterdir())
    assert command("trace", "show", path) == 0
    assert command("trace", "edit", path, "--crop", "0us:5us", "-o", path.with_name("cut.parquet")) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "../../x" in out
    assert set(path.parent.iterdir()) - before == {path.with_name("cut.parquet")}


def test_a_picture_is_measured_before_it_is_decoded(tmp_path: Path) -> None:
    from PIL import Image

    encoded = io.BytesIO()
    Image.new("RGB", (32, 32)).save(encoded, "PNG")
    wide = bytearray(encoded.getvalue())
    wide[16:24] = (200_000).to_bytes(4, "big") * 2
    pq.write_table(
        pa.table({"image": [bytes(wide)], "label": [1], "split": ["train"]}),
        tmp_path / "cifar10_jpeg.parquet",
    )
    with pytest.raises(DataError, match="expected a 32x32 colour image in row 0"):
        plugins.build("task", "cifar10", {}, clients=1, seed=0, data_dir=tmp_path)
