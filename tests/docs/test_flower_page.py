"""The app of docs/flower.md runs in Flower's simulation, in fewer rounds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")
[APP], [PROJECT] = (
    re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) for kind in ("py", "toml")
)


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("flwr") is None,
    reason="the package flwr is not installed: make integrations",
)
def test_the_app_runs(tmp_path: Path) -> None:
    shorter = APP.replace("ROUNDS = 10, 10", "ROUNDS = 10, 1")
    assert shorter != APP
    (tmp_path / "fair.py").write_text(shorter, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "fair.py"],
        cwd=tmp_path,
        env=os.environ | {"FLWR_TELEMETRY_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.findall(r"^round (\d+): mean [\d.]+%, worst [\d.]+%$", done.stdout, re.MULTILINE) == ["1"]


def test_the_project_names_the_apps() -> None:
    components = tomllib.loads(PROJECT)["tool"]["flwr"]["app"]["components"]
    for reference in components.values():
        module, _, name = reference.partition(":")
        assert f"as `{module}.py`" in PAGE
        assert re.search(rf"^{name} = ", APP, re.MULTILINE)  # Flower reads assignments to one name
