"""CITATION.cff says what the package says of itself, in the form of the Citation File Format."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import fedsim


def test_the_citation_agrees_with_the_package(root: Path) -> None:
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "type", "abstract"} <= set(citation)
    assert str(citation["version"]) == project["version"] == fedsim.__version__
    assert citation["license"] == project["license"]
    assert [author["name"] for author in citation["authors"]] == [a["name"] for a in project["authors"]]


@pytest.mark.skipif(
    find_spec("cffconvert") is None, reason="the package cffconvert is not installed: pip install cffconvert"
)
def test_the_citation_follows_the_schema(root: Path) -> None:
    code = "from cffconvert.cli.cli import cli; cli()"
    command = [sys.executable, "-W", "ignore", "-c", code, "--validate", "-i", "CITATION.cff"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "valid according to schema version 1.2.0" in done.stdout
