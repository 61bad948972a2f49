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
RECIPES = [ROOT / "docs" / f"{name}.md" for name in ("compare_selectors", "reproduce_a_table", "write_rule")]
PAGES = [*sorted((ROOT / "docs" / "tutorials").glob("*.md")), *RECIPES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"^Save this as `(\w+\.py)`:\n\n\Z", re.MULTILINE)
NEXT = {"quickstart": ROOT / "docs" / "report.md"}
"""A page that goes on where another one ends, in the same folder, as far as its first picture."""
PICTURE = "<picture>"
SHORTER = {"reproduce_a_table": "--set run.stop.steps=2 --seeds 3"}
"""Options that shorten the runs of a tutorial. Its page shows the output of whole ones, which is not compared."""
NOT_SHOWN = {"--seeds 8": "--seeds 6", "--out runs/lossy": "--out runs/lossy --set stop.steps=2"}
"""What cuts the commands whose output no page shows: fewer seeds and steps."""
MOST_WORDS = 1000


def followed(page: Path, place: Path, done: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Do what a tutorial says in a folder; yield each output that it shows, with all that was printed before.

    `done` holds what commands printed; a report that a page before has written is not written again.
    """
    text, printed = page.read_text(encoding="utf-8"), []
    if page in NEXT.values():
        text, picture, _ = text.partition(PICTURE)
        assert picture
    for block in BLOCK.finditer(text):
        language, body = block.groups()
        if language in ("toml", "csv"):
            (name,) = re.findall(r"`(\w+\.\w+)`", text[: block.start()].rstrip().rpartition("\n\n")[2])
            (place / name).write_text(body, encoding="utf-8")
        elif language == "sh":
            for line in body.splitlines():
                if line not in done or not line.startswith("fedsim report "):
                    done[line] = command(line, page, place)
                printed.append(done[line])
        elif language == "python" and (saved := SAVED.search(text[: block.start()])):
            (place / saved[1]).write_text(body, encoding="utf-8")
        elif language == "python":
            program = programs.python(body, place)
            assert program.code == 0, program.err[-2000:]
            printed.append(program.out)
        else:
            yield body, "\n".join(printed)


def command(line: str, page: Path, place: Path) -> str:
    short = line
    for found, instead in NOT_SHOWN.items():
        short = short.replace(found, instead)
    words = shlex.split(short, comments=True)
    assert words[0] == "fedsim", line
    if words[1] == "study":
        words += SHORTER.get(page.stem, "").split()
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
    done: dict[str, str] = {}
    shown = [found for each in pages for found in followed(each, tmp_path, done)]
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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_tutorial_is_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").split()) < MOST_WORDS
