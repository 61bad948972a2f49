"""Commands and Python names that pages, examples and messages mention exist. None of them is run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

from fedsim.cli.main import app
from fedsim.plugins import KINDS
from fedsim.worlds.metadata import to_metadata

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if not {"_build", "generated"} & {*p.parts}),
]
COMMENTED = sorted(
    path
    for folder in ("examples", "scenarios", "benchmarks", "fedsim/cli/templates")
    for kind in ("toml", "py", "ipynb")
    for path in (ROOT / folder).rglob(f"*.{kind}")
)
SOURCES = sorted(
    path
    for folder in ("fedsim", "analysis", "algorithms", "scenarios")
    for path in (ROOT / folder).rglob("*.py")
    if "templates" not in path.parts
)

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`((?:[^`\n]|\n(?!\n))+)`(?!`)")
SUGGESTED = re.compile(r"(?:\A|[:;] |\buse |\bwith |\bcommand )(fedsim [a-z][^`\n]*)", re.MULTILINE)
PROSE = re.compile(r" {2,}|[;:,(]| has no | accepts ")
"""Where a command ends that a sentence names without quotes."""


@cache
def commands() -> Any:
    return typer.main.get_command(app)


def fault(words: list[str], whole: bool) -> str:
    """Return what is wrong with the words after `fedsim`, or nothing; only whole commands need all arguments."""
    command, rest = commands(), list(words)
    context = command.make_context("fedsim", [], resilient_parsing=True)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name, *rest = rest
        if name not in command.commands:
            return f"{command.name} has no command {name!r}"
        command = command.commands[name]
    try:
        if whole:
            command.make_context(command.name, rest, parent=context)
        else:
            command.make_parser(type(context)(command)).parse_args(rest)
    except Exception as error:
        return "" if not whole and "requires an argument" in str(error) else str(error)
    return ""


def lines_of_shells(text: str) -> Iterator[list[str]]:
    """Yield the words after `fedsim` of each command in the blocks of a page."""
    for language, body in BLOCK.findall(text):
        if language not in ("sh", ""):
            continue
        for line in body.replace("\\\n", " ").splitlines():
            line = re.split(r" #| && | \| | > |;", line)[0].strip()
            if found := re.fullmatch(r"(?:[$] |srun |time |[A-Z_]+=\S+ |\S*bin/)*fedsim (.*)", line):
                yield shlex.split(found[1])


def spans(text: str) -> list[list[str]]:
    """Return the words after `fedsim` of each command between backticks."""
    found = [
        re.fullmatch(r"(?:time )?fedsim ([a-z].*)", " ".join(span.split())) for span in SPAN.findall(text)
    ]
    return [match[1].partition(" > ")[0].split() for match in found if match]


def strings(path: Path) -> Iterator[str]:
    """Yield the texts in a source file, with X for each value that is filled in."""
    inner: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(value) for value in node.values}
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value.replace("{}", "X")


def suggested(text: str) -> Iterator[list[str]]:
    """Yield the words after `fedsim` of each command that a message or docstring names, with and without quotes."""
    yield from spans(text)
    for match in SUGGESTED.finditer(text):
        words = PROSE.split(match[1])[0].rstrip(".").split()[1:]
        if (
            match.start(1) > match.start() or words[0] in commands().commands
        ):  # "fedsim does not ..." is prose
            yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_on_a_page_parse(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wrong = {shlex.join(words): fault(words, whole=True) for words in lines_of_shells(text)}
    wrong |= {" ".join(words): fault(words, whole=False) for words in spans(FENCED.sub("", text))}
    assert {line: why for line, why in wrong.items() if why} == {}


def test_commands_in_comments_of_examples_and_templates_parse() -> None:
    found = 0
    for path in COMMENTED:
        lines = re.sub(r"^# +", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for words in suggested(lines):
            found += 1
            assert not (why := fault(words, whole=False)), f"{path.relative_to(ROOT)}: {words}: {why}"
    assert found > 25


def test_commands_that_messages_suggest_exist() -> None:
    found = 0
    for path in SOURCES:
        for text in strings(path):
            for words in suggested(text):
                found += 1
                assert not (why := fault(words, whole=False)), f"{path.relative_to(ROOT)}: {words}: {why}"
    assert found > 60


@pytest.mark.parametrize(
    ("line", "whole", "why"),
    [
        ("runn FILE", False, "has no command"),
        ("trace mke", False, "has no command"),
        ("run --no-such", False, "no such option"),
        ("run", True, "missing"),
        ("run --tensorboard", False, ""),
        ("trace make w.toml -o w.parquet", True, ""),
    ],
)
def test_wrong_commands_are_found(line: str, whole: bool, why: str) -> None:
    found = fault(line.split(), whole)
    assert why in found.lower()
    assert bool(why) == bool(found)


def exists(name: str) -> bool:
    """Whether a dotted name is a module or can be taken from one."""
    parts = name.split(".")
    depth = 1
    while depth < len(parts) and find_spec(".".join(parts[: depth + 1])):
        depth += 1
        if not hasattr(import_module(".".join(parts[:depth])), "__path__"):
            break
    value: Any = import_module(".".join(parts[:depth]))
    for part in parts[depth:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def test_python_names_on_pages_exist() -> None:
    facts = {"clients": 1, "horizon_us": 1, "after_end": "stop", "source": "", "origin": ""}
    documented = {
        *to_metadata(facts, {"online": [1]}, pa.table({})),
        *(kind.group for kind in KINDS.values()),
    }
    documented.add("fedsim.schema.json")
    found = 0
    for page in PAGES:
        for span in SPAN.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            for name in re.findall(r"\bfedsim(?:\.\w+)+", span):
                found += 1
                assert name in documented or exists(name), f"{page.name} names {name}"
    assert found > 30
    assert not exists("fedsim.simulation")
    assert not exists("fedsim.server.rule.Rule")
