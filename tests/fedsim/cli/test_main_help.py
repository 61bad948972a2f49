"""What `--help` says: whole sentences in a terminal of 80 columns, and every option explained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from fedsim.cli.main import app, main


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


def helped(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*path, "--help"])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("path", [p for p, c in ALL.items() if hasattr(c, "commands")], ids=str)
def test_no_summary_of_a_command_is_cut_off(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = helped(path, monkeypatch, capsys).partition("Options:\n")[2].splitlines()
    listed = [line for line in lines if line.startswith("  ") and line.split()[0] in ALL[path].commands]
    assert len(listed) == len(ALL[path].commands)
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("path", ALL, ids=str)
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    assert [p.name for p in ALL[path].params if not getattr(p, "help", None)] == []


@pytest.mark.parametrize("path", ALL, ids=str)
def test_options_that_may_be_repeated_say_so(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [p for p in ALL[path].params if getattr(p, "multiple", False)]
    assert [p.name for p in options if "may be repeated" not in p.help] == []
    assert "list[" not in helped(path, monkeypatch, capsys).partition("Options:")[2]


def test_a_study_is_told_how_its_own_keys_are_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key of a run, such as `algorithm.alpha`, is no key of a study's file."""
    text = helped(("study",), monkeypatch, capsys)
    assert "run.stop.steps=20" in text
    assert "algorithm.alpha" not in text


@pytest.mark.parametrize("path", ALL, ids=str)
def test_a_usage_line_has_single_brackets(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "[[" not in helped(path, monkeypatch, capsys)


def test_commands_are_grouped_by_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped((), monkeypatch, capsys)
    sections = [part.splitlines() for part in text.split("\n\n")[3:]]
    shown = {title: [line.split()[0] for line in lines] for title, *lines in sections}
    assert shown == {
        "Run:": ["init", "run", "plan", "study"],
        "Continue and repeat:": ["resume", "fork", "replay", "verify"],
        "Look:": ["runs", "report", "compare", "clients", "audit", "export", "list"],
        "Worlds:": ["trace"],
        "Check:": ["check", "schema"],
    }
    assert len({line.index(line.split(maxsplit=1)[1]) for _, *lines in sections for line in lines}) == 1


@pytest.mark.parametrize("path", ALL, ids=str)
def test_every_out_is_also_o(path: tuple[str, ...]) -> None:
    for option in ALL[path].params:
        assert ("--out" in option.opts) is ("-o" in option.opts)


def test_jobs_and_workers_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = " ".join(helped(("study",), monkeypatch, capsys).partition("--jobs")[2].split())
    workers = " ".join(helped(("run",), monkeypatch, capsys).partition("--workers")[2].split())
    assert "Cells that run at once" in jobs
    assert "the clients of one run" in workers
