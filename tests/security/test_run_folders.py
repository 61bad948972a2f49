"""SECURITY.md, promise 3: a run folder of others is only read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsim import analysis, plugins
from fedsim.common.errors import Error, RunError
from fedsim.records.run_folder import make_folder
from received import MARK, command, configured, said, touching


def test_links_in_a_run_folder_are_not_written_through(folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (".report.html.tmp", "report.html"):
        (folder / name).symlink_to(victim)
    assert command("report", folder) == 0
    assert victim.read_text() == "mine"
    assert (folder / "report.html").is_file()
    assert not (folder / "report.html").is_symlink()
    (tmp_path / "other").mkdir()
    (folder / "report.html").unlink()
    (folder / "report.html").symlink_to(tmp_path / "other")
    assert command("report", folder) == 0
    assert not any((tmp_path / "other").iterdir())


@pytest.mark.parametrize("name", [".perfetto.json.tmp", "perfetto.json"])
def test_a_link_is_not_exported_through(name: str, folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (folder / name).symlink_to(victim)
    assert command("export", "perfetto", folder) == 0
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["parts", "checkpoints", "manifest.json"])
def test_a_run_does_not_go_on_through_a_link(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(folder, status="interrupted")
    (tmp_path / "mine").mkdir()
    if (folder / name).exists():
        (folder / name).rename(tmp_path / "mine" / name)
    (folder / name).symlink_to(tmp_path / "mine" / name)
    (tmp_path / "mine" / "parts").mkdir(exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    assert command("resume", folder, "--workers", "0") == 2
    assert f"{name} is a link to" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_does_not_replace_what_a_link_leads_to(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "small").symlink_to(folder)
    with pytest.raises(RunError, match="is a link to"):
        make_folder(tmp_path / "out" / "small", force=True, manifest={})
    assert (folder / "manifest.json").is_file()


def test_a_list_of_arms_names_folders_beside_it(folder: Path, tmp_path: Path) -> None:
    for name in ("../received", str(folder), "..", "received/../received"):
        (tmp_path / "arms.json").write_text(json.dumps({"arms": [name]}))
        with pytest.raises(Error, match=r"arms.json: expected"):
            analysis.open_all([tmp_path])


def test_a_report_runs_no_code_that_a_configuration_names(folder: Path, here: Path) -> None:
    (here / "mine.py").write_text(touching())
    configured(folder, 'name = "fedlf"', f'name = "{here}/mine.py:rule"')
    assert command("report", folder) == 0
    assert command("export", "perfetto", folder) == 0
    assert not (here / MARK).exists()


def test_a_replay_of_a_received_run_can_refuse_its_code(
    folder: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(touching())
    configured(folder, 'name = "fedlf"', f'name = "{here}/mine.py:rule"')
    monkeypatch.setenv(plugins.ONLY_SHIPPED, "1")
    assert command("replay", folder, "--workers", "0") == 2
    assert "is code that fedsim does not ship" in capsys.readouterr().err
    assert not (here / MARK).exists()


@pytest.mark.parametrize("label", ["../../x", "/x/y", "x\0", "a/b/c"])
def test_a_replay_takes_no_path_from_a_manifest(
    label: str, folder: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(here.rglob("*"))
    assert command("replay", said(folder, label=label), "--workers", "0") == 2
    assert "name" in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("key", ["metrics", "target"])
@pytest.mark.parametrize("words", [("report",), ("compare",), ("report", "--tables", "tables")])
def test_a_study_runs_no_code_that_it_names_as_a_metric(
    words: tuple[str, ...], key: str, folder: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.py").write_text(touching())
    cell = {"levels": {}, "seed": 3, "folder": folder.name, "status": "done"}
    said = {"format": 1, "name": "theirs", "axes": {}, "seeds": [3], "cells": [cell]}
    code = f"{here}/mine.py:mine"
    asked = {"compare": {key: [code] if key == "metrics" else f"{code}=1"}}
    (here / "study.json").write_text(json.dumps(said | asked))
    assert command(words[0], here, *words[1:]) == 2
    assert "expected names of installed metrics" in capsys.readouterr().err
    assert not (here / MARK).exists()
