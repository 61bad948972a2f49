"""Tutorials and recipes are followed from the top: files are written, commands and Python run, output compared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from platform import machine

import pytest

import programs
from golden_digests import difference

ROOT = Path(__file__).resolve().parents[2]
RECIPES = [ROOT / "docs" / f"{name}.md" for name in ("compare_selectors", "reproduce_a_table")]
PAGES = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), *RECIPES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEXT = {"quickstart": ROOT / "docs" / "read_the_report.md"}
"""A page that goes on where another one ends, in the same folder."""
SHORTER = {"reproduce_a_table": ("stop.steps=2",)}
"""Assignments that shorten the runs of a tutorial. Its page shows the output of whole ones, which is not compared."""
MOST_WORDS = 1000


def followed(page: Path, place: Path) -> Iterator[tuple[str, str]]:
    """Do what a tutorial says in a folder; yield each output that it shows, with all that was printed before."""
    text, printed = page.read_text(encoding="utf-8"), []
    for block in BLOCK.finditer(text):
        language, body = block.groups()
        if language in ("toml", "csv"):
            (name,) = re.findall(r"`(\w+\.\w+)`", text[: block.start()].rstrip().rpartition("\n\n")[2])
            (place / name).write_text(body, encoding="utf-8")
        elif language == "sh":
            printed += [command(line, page, place) for line in body.splitlines()]
        elif language == "python":
            done = programs.python(body, place)
            assert done.code == 0, done.err[-2000:]
            printed.append(done.out)
        else:
            yield body, "\n".join(printed)


def command(line: str, page: Path, place: Path) -> str:
    words = shlex.split(line)
    assert words[0] == "fedsim", line
    if words[1] == "run":
        words += [word for assignment in SHORTER.get(page.stem, ()) for word in ("--set", assignment)]
    done = programs.fedsim(*words[1:], place=place)
    assert done.code == 0, f"{line}\n{done.out[-2000:]}\n{done.err[-2000:]}"
    return done.out + done.err


def rounding_changes_nothing_of(table: str) -> bool:
    """Whether the first steps say that all x86-64 processors print this table, which is also the README's."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_steps = (ROOT / "docs" / "first_steps.md").read_text(encoding="utf-8")
    assert "The table is the same on x86-64 processors" in first_steps
    return machine() == "x86_64" and table in readme


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_tutorial_can_be_followed(page: Path, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    pages = [page, NEXT[page.stem]] if page.stem in NEXT else [page]
    shown = [found for each in pages for found in followed(each, tmp_path)]
    assert shown
    if page.stem in SHORTER:
        return
    if difference():
        shown = [found for found in shown if rounding_changes_nothing_of(found[0])]
    for expected, printed in shown:
        lines = [line.rstrip() for line in printed.splitlines()]
        missing = [
            line for line in expected.splitlines() if not any(found.startswith(line) for found in lines)
        ]
        assert missing == [], page.name


def test_the_first_table_is_that_of_the_readme() -> None:
    first = (ROOT / "docs" / "tutorials" / "quickstart.md").read_text(encoding="utf-8")
    table = next(body for language, body in BLOCK.findall(first) if not language)
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, *NEXT.values()], ids=lambda p: p.stem)
def test_a_tutorial_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) < MOST_WORDS
