from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedsim.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_shows_what_its_command_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    command, printed = re.findall(r"^```(?:sh)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:2]
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "118")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(shlex.split(command.replace("\\\n", ""))[1:])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(lines).strip() == printed.strip()
