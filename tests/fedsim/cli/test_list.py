"""`fedsim list`: the kinds, the plug-ins of a kind, one plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim import plugins
from fedsim.cli.main import main
from fedsim.plugins.options import options_of

PLURALS = {facts.group.removeprefix("fedsim."): kind for kind, facts in plugins.KINDS.items()}
MINE = '''
from typing import Annotated, Literal
from pydantic import Field
from fedsim.server.rule import Algorithm

def mine(*, share: Annotated[float, Field(gt=0, le=1)] = 0.5, how: Literal["a", "b"] = "a", seen: int) -> Algorithm:
    """Say what mine does.

    `seen` is what it has seen.
    """
'''


def listed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["list", *arguments])
    printed = capsys.readouterr()
    assert int(ended.value.code or 0) == code, printed.err
    return printed.err if code else printed.out


def test_the_kinds_are_shown_with_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    out = listed(capsys)
    rows = {line.split()[0]: line for line in out.splitlines()[1 : len(PLURALS) + 1]}
    assert rows.keys() == PLURALS.keys()
    for plural, row in rows.items():
        kind = PLURALS[plural]
        assert plugins.KINDS[kind].purpose in row
        assert row.split()[-1] == str(len(plugins.names(kind)))
    assert "fedsim list rules " in out


@pytest.mark.parametrize("plural", PLURALS)
def test_every_plug_in_is_shown_with_all_its_options(
    plural: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    kind = PLURALS[plural]
    for name in plugins.names(kind):
        out = listed(capsys, plural, name)
        assert out.startswith(f"{kind} {name}\n\n{plugins.summary(kind, name)[:40]}")
        if kind != "metric":
            known = options_of(plugins.factory(kind, name), plugins.KINDS[kind].supplied)
            rows = {line.split()[0].partition(".")[0] for line in out.splitlines() if line.strip()}
            assert known.keys() <= rows
            assert ("It has no options." in out) is (not known)


def test_an_option_of_a_dataclass_is_explained_by_its_docstring(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    row = next(line for line in listed(capsys, "scenarios", "diurnal").splitlines() if "time_zones" in line)
    assert row.split()[:5] == ["time_zones", "a", "whole", "number", "4"]
    assert "Number of time zones, 1 to 48" in row


def test_a_plug_in_in_a_file_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    lines = [" ".join(line.split()) for line in listed(capsys, "rules", "mine.py:mine").splitlines()]
    assert lines[2:5] == ["Say what mine does.", "", "`seen` is what it has seen."]
    assert lines[6:] == [
        "option value default",
        "share a number above 0 and at most 1 0.5",
        'how "a" or "b" "a"',
        "seen a whole number required",
    ]


def test_a_plug_in_is_shown_without_its_kind_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "fedfv") == listed(capsys, "rules", "fedfv")
    twice = [name for name in plugins.names("rule") if name in plugins.names("client")]
    assert twice
    assert f"fedsim list rules {twice[0]} or fedsim list clients {twice[0]}" in listed(
        capsys, twice[0], code=2
    )


def test_a_misspelt_name_is_refused_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'fedlf'" in listed(capsys, "rules", "fedlff", code=2)
    assert "did you mean 'fedfv'" in listed(capsys, "rules", "fedvf", code=2)
    assert "did you mean 'rules'" in listed(capsys, "rulez", "fedlf", code=2)
