"""What the documents show is run: Python blocks as they stand, `fedsim` commands in a folder of their own."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import programs
from fedsim.cli.main import app
from fedsim.config.load import load_config
from fedsim.config.run import RunConfig
from fedsim.runs.simulate import simulate

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if not {"_build", "generated"} & {*p.parts}),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text()) if kind == language]


def sections(page: Path) -> dict[str, list[str]]:
    """Return the commands below each heading of a page that has any."""
    found = {}
    for part in re.split(r"^## ", page.read_text(), flags=re.MULTILINE):
        scripts = [body for kind, body in BLOCK.findall(part) if kind == "sh"]
        lines = [line.split(" #")[0].strip() for body in scripts for line in body.splitlines()]
        found[part.split("\n")[0]] = [line for line in lines if line.startswith("fedsim ")]
    return {heading: lines for heading, lines in found.items() if lines}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that a reader has after `make run`, cut to a few steps."""
    folder = tmp_path_factory.mktemp("runs")
    simulate(load_config(ROOT / "examples" / "quickstart.toml", ("stop.steps=12",)), out=folder, workers=0)
    return folder


@pytest.fixture
def place(tmp_path: Path, runs: Path) -> Path:
    """A folder that looks like a checkout, with nothing in it that a run could overwrite."""
    for name in ("examples", "scenarios", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs" / "papers" / "results", tmp_path / "docs" / "papers" / "results")
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path


FOLLOWED = {"compare_selectors.md", "reproduce_a_table.md", "write_rule.md"}
"""Pages whose Python reads the runs that the page makes: `test_tutorials.py` follows them from the top."""


CONTINUED = {"own_data.md"}
"""Pages whose blocks of Python continue each other."""


def with_python(page: Path) -> bool:
    return bool(blocks(page, "python")) and page.name not in FOLLOWED


@pytest.mark.parametrize("page", [p for p in PAGES if with_python(p)], ids=lambda p: p.name)
def test_python_blocks_run(page: Path, place: Path) -> None:
    found = blocks(page, "python")
    for code in ["\n".join(found)] if page.name in CONTINUED else found:
        done = programs.python(code, place)
        assert done.code == 0, f"{page.name}:\n{code}\n{done.err[-2000:]}"


def test_the_readme_shows_what_its_python_prints(place: Path) -> None:
    [(code, shown)] = re.findall(
        r"^```python\n(.*?)^```\n\n```\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    done = programs.python(code, place)
    digests = re.compile(r"digest \w{8}$", re.MULTILINE)  # those of one kind of processor
    assert digests.sub("", done.out) == digests.sub("", shown)


def test_the_readme_and_the_first_steps_show_the_same_tables() -> None:
    readme, steps = (blocks(ROOT / name, "") for name in ("README.md", "docs/first_steps.md"))
    shared = [body for body in readme if "fedavg 91.25" in body or "paired mean" in body]
    assert len(shared) == 2
    assert set(shared) <= set(steps)


FIRST_PAGES = [
    pytest.param(lines, id=f"{page.name}-{heading}")
    for page in (ROOT / "README.md", ROOT / "docs" / "first_steps.md")
    for heading, lines in sections(page).items()
]


@pytest.mark.ray
@pytest.mark.parametrize("lines", FIRST_PAGES)
def test_commands_of_the_first_pages_run(lines: list[str], place: Path) -> None:
    for command in lines:
        done = programs.fedsim(*shlex.split(command)[1:], place=place)
        assert done.code == 0, f"{command}\n{done.out[-2000:]}\n{done.err[-2000:]}"


def test_the_first_pages_have_commands() -> None:
    assert len(FIRST_PAGES) >= 7


def test_links_between_pages_lead_somewhere() -> None:
    found = 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
                assert "generated" not in target, f"{page.name} links to {target}, which no clone has"
                found += 1
    assert found > len(PAGES)


def anchors(page: Path) -> set[str]:
    """Return the names that headings of a page have as parts of an address."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_into_pages_name_a_heading() -> None:
    found = 0
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text()):
            if not target.startswith("http"):
                there = page.parent / target if target else page
                assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}"
                found += 1
    assert found


def test_no_line_of_prose_is_a_comment_on_the_site() -> None:
    """MyST leaves out lines that begin with a percent sign, such as the rest of a broken "46 %"."""
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        prose = re.sub(r"^(```+).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        assert re.findall(r"^ {0,3}%.*", prose, re.MULTILINE) == [], page.name


def test_pages_have_at_most_1500_words_besides_tables_and_code() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        if page in PAGES:
            text = BLOCK.sub("", page.read_text())
            words = sum(len(line.split()) for line in text.splitlines() if not line.startswith("|"))
            assert words <= 1500, f"{page.name} has {words} words: split it by question"


def pages_below(page: Path) -> Iterator[Path]:
    """Yield the pages of a table of contents, and those of theirs."""
    for name in re.findall(
        r"^[\w/]+$", "\n".join(re.findall(r"{toctree}(.*?)```", page.read_text(), re.DOTALL)), re.M
    ):
        if (below := page.parent / f"{name}.md") in PAGES:
            yield from (below, *pages_below(below))


def test_only_references_and_recipes_have_more_than_1500_words_in_all() -> None:
    """What a reader must unfold does not count."""
    docs = ROOT / "docs"
    looked_up = {*pages_below(docs / "reference.md"), *pages_below(docs / "how_to.md")}
    assert docs / "scenarios.md" in looked_up
    for page in {*PAGES[3:]} - looked_up:
        words = re.sub(r"<details>.*?</details>", "", page.read_text(), flags=re.DOTALL).split()
        assert len(words) <= 1500, f"{page.name} has {len(words)} words"


def test_every_page_is_linked_from_the_readme_or_a_page_that_is() -> None:
    reached, queue = {ROOT / "README.md"}, [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        for target in re.findall(r"\]\(([^)#]+\.md)", page.read_text()):
            there = (page.parent / target).resolve()
            if not target.startswith("http") and there not in reached:
                reached.add(there)
                queue.append(there)
    assert {page.name for page in PAGES if page not in reached} == set()


def test_every_command_and_option_is_on_a_page() -> None:
    text = "\n".join(page.read_text() for page in PAGES)

    def walk(command: Any, path: tuple[str, ...] = ("fedsim",)) -> Iterator[tuple[str, list[str]]]:
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, (*path, name))
        if not hasattr(command, "commands"):
            yield " ".join(path), [o for p in command.params for o in p.opts if o.startswith("--")]

    every = dict(walk(typer.main.get_command(app)))
    assert {"fedsim run", "fedsim trace import"} <= set(every)
    for command, options in every.items():
        assert command in text, command
        for option in set(options) - {"--help"}:
            assert re.search(re.escape(option) + r"(?![\w-])", text), f"{command} {option}"


def keys_of(section: Any) -> set[str]:
    """Return the keys of a table, be it one of several or none."""
    own = set(getattr(section, "model_fields", {}))
    return own.union(*map(keys_of, get_args(section)))


def told_of(table: str, manual: str) -> str:
    """Return what the manual says of a table: its row, and the section that begins with its name."""
    rows = [
        line for line in manual.splitlines() if line.startswith("|") and f"`[{table}]`" in line.split("|")[1]
    ]
    below = re.findall(rf"^`\[{table}\]`.*?(?=^`\[|\Z)", manual, re.MULTILINE | re.DOTALL)
    return "\n".join([*rows, *below])


def test_every_configuration_key_is_documented_with_its_table() -> None:
    manual = (ROOT / "docs" / "config.md").read_text()
    tables = {table: keys_of(field.annotation) for table, field in RunConfig.model_fields.items()}
    assert len(tables["adversary"]) > 3
    for table, keys in tables.items():
        assert f"`{table}`" in manual if not keys else told_of(table, manual), table
        missing = {key for key in keys if f"`{key}`" not in told_of(table, manual)}
        assert not missing, f"[{table}]: {missing}"


def test_the_files_that_the_architecture_names_are_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`((?:fedsim|analysis|algorithms|scenarios|tests)/[a-z_/]+(?:\.py)?)`", page))
    assert len(named) > 40
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_files_that_pages_name_exist() -> None:
    example = "algorithms/selection/rested.py"  # where a reader would save it
    for page in PAGES:
        named = re.findall(
            r"`((?:fedsim|analysis|algorithms|scenarios|tests|benchmarks)/[\w/]+\.\w+)`", page.read_text()
        )
        if page.name == "CONTRIBUTING.md":
            named = re.findall(r"`((?:[a-z_]+/)+(?:test_)\w+\.py)`", page.read_text())
            assert len(named) > 15
            named = [name if name.startswith("tests/") else f"tests/{name}" for name in named]
        assert [name for name in named if name != example and not (ROOT / name).exists()] == [], page.name


def test_the_pipeline_names_what_its_files_define() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    lines = re.findall(r"^ *(?:\w+ = )?(?:\w+\.)?(\w+)\(.*# +(fedsim/[\w/]+\.py)", page, re.MULTILINE)
    assert len(lines) > 5
    for name, file in lines:
        assert re.search(rf"(def|class) {name}\b", (ROOT / file).read_text()), f"{file} defines no {name}"


def test_readers_are_told_where_fedsim_is_installed_from() -> None:
    """The package of that name on the index is another project."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        text = " ".join(page.read_text().split())
        assert re.search(r"`pip install fedsim` (brings|would bring) another project", text), page.name
