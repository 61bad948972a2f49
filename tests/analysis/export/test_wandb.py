"""Weights & Biases gets the curves that the tables hold; its offline files are read back."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fedsim import analysis
from fedsim.cli.main import main
from fedsim.integrations.trackers import WandbLogger
from fedsim.runs.simulate import simulate
from tracked import Curve, assert_whole, config

pytestmark = [
    pytest.mark.skipif(
        find_spec("wandb") is None,
        reason="the package wandb is not installed: pip install '.[wandb]'",
    ),
    pytest.mark.filterwarnings("ignore"),  # those of wandb
]

_BLOCK, _HEADER = 32_768, 7


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what wandb writes instead of sending it."""
    import wandb

    wandb.teardown()  # it reads its variables once
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "wandb"


def records(file: Path) -> Iterator[Any]:
    """Yield wandb's records from its log: LevelDB's format, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = file.read_bytes(), _HEADER, b""
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


class Sent:
    """What one run sent."""

    def __init__(self, file: Path) -> None:
        self.curves: dict[str, Curve] = defaultdict(list)
        self.histograms: list[int] = []
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.name, self.project = record.run.display_name, record.run.project
                self.config = {
                    u.key or u.nested_key[0]: json.loads(u.value_json) for u in record.run.config.update
                }
            elif kind == "history":
                self._add({tuple(i.nested_key): json.loads(i.value_json) for i in record.history.item})
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    def _add(self, row: dict[tuple[str, ...], Any]) -> None:
        for (tag, *within), value in row.items():
            if within == ["values"]:
                self.histograms.append(sum(value))
            elif "/" in tag and not within:
                self.curves[tag].append((row["step",], row["virtual_s",], value))


def sent(offline: Path) -> dict[str, Sent]:
    """Return what runs sent, by name."""
    import wandb

    wandb.teardown()  # its service writes after a run has finished
    return {run.name: run for run in map(Sent, offline.glob("offline-run-*/run-*.wandb"))}


def test_a_logger_sends_what_the_tables_hold(tmp_path: Path, offline: Path) -> None:
    configs = [config(name="both/one"), config(name="both/two", algorithm={"name": "fedavg"})]
    with WandbLogger("fair") as logger:
        results = simulate(configs, out=tmp_path / "runs", workers=0, watch=logger)
    found = sent(offline)
    assert sorted(found) == ["both/one", "both/two"]
    for result in results:
        opened = analysis.open_run(result.folder)
        run = found[opened.config["name"]]
        assert (run.project, run.exit_code) == ("fair", 0)
        assert run.config["algorithm"]["name"] == opened.config["algorithm"]["name"]
        assert_whole(run.curves, opened)
        assert run.histograms == opened.history(metrics=["mean_percent"])["clients"].tolist()


def test_an_export_sends_the_same_as_a_logger(
    tmp_path: Path, offline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [result] = simulate(config(name="one"), out=tmp_path / "runs", workers=0)
    with pytest.raises(SystemExit) as ended:
        main(["export", "wandb", str(result.folder), "--project", "fair"])
    assert ended.value.code == 0
    assert "8 steps, 5 evaluations" in capsys.readouterr().out
    [run] = sent(offline).values()
    assert (run.name, run.project) == ("one", "fair")
    assert_whole(run.curves, analysis.open_run(result.folder))


def test_a_run_that_raises_is_marked_as_failed(tmp_path: Path, offline: Path) -> None:
    def failing(progress: Any) -> None:
        logger(progress)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError), WandbLogger("fair") as logger:
        simulate(config(name="one"), out=tmp_path / "runs", workers=0, watch=failing)
    [run] = sent(offline).values()
    assert run.exit_code == 1
