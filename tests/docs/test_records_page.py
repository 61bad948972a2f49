from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsim import plugins
from fedsim.common.stopwatch import ENGINE, IDLE
from fedsim.engine.record_words import STATUSES
from fedsim.records.manifest import read_manifest
from fedsim.records.schemas import TABLES
from small import run, small

DOCS = Path(__file__).parents[2] / "docs"


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found.group(1)


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_defined_in_order_and_no_other(table: str) -> None:
    text = section((DOCS / "records.md").read_text(encoding="utf-8"), table)
    first_table = text.split("\n\n| `status` | the update")[0]
    assert re.findall(r"^\| `(\w+)` \|", first_table, re.MULTILINE) == TABLES[table].names


def test_every_status_is_defined() -> None:
    text = (DOCS / "records.md").read_text(encoding="utf-8").split("| `status` | the update |")[1]
    assert re.findall(r"^\| `(\w+)` \|", section_until_blank(text), re.MULTILINE) == list(STATUSES)


def section_until_blank(text: str) -> str:
    return text.split("\n\n")[0]


def test_every_part_of_a_profile_is_explained_and_no_other() -> None:
    page = (DOCS / "watching.md").read_text(encoding="utf-8").split("| part | work |")[1]
    told = [part for row in section_until_blank(page).splitlines() for part in row.split("|")[1:2]]
    code = (path.read_text(encoding="utf-8") for path in (DOCS.parent / "fedsim").rglob("*.py"))
    entered = (line for text in code for line in re.findall(r"clock\.part\b[^)]*", text))
    parts = {ENGINE, IDLE, *re.findall(r'"(\w+)"', " ".join(entered))}
    assert set(re.findall(r"`(\w+)`", " ".join(told))) == parts


def test_every_metric_is_defined() -> None:
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == plugins.names("metric")


def test_every_key_of_a_manifest_is_defined_and_no_other(tmp_path: Path) -> None:
    text = section((DOCS / "records.md").read_text(encoding="utf-8"), "manifest.json")
    first = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    named = [key for cell in first for key in re.findall(r"`(\w+)`", cell)]
    written = read_manifest(run(small(stop={"steps": 1}), tmp_path).folder)
    assert sorted(named) == sorted(written)
