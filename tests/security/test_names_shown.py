"""SECURITY.md, promise 4: names are text on pages and in terminals."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from fedsim import analysis
from fedsim.analysis.worlds.page import write_world_page
from fedsim.common.terminal import visible
from fedsim.worlds.trace import Trace
from received import EVIL, MARKED_UP, command, configured, said


class Page(html.parser.HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attributes]


def assert_harmless(path: Path) -> None:
    text = path.read_text()
    page = Page(text)
    assert not page.tags & {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "form",
        "foreignobject",
    }
    for name, value in page.attributes:
        assert not name.startswith("on"), (name, value)
        if name in ("href", "src", "xlink:href", "action", "style"):
            assert value.startswith(("#", "data:image/png;base64,")) or name == "style", (name, value)
    assert "alert(1)" in text, "the name is there, as text"


def test_names_in_a_report_are_text(folder: Path, tmp_path: Path) -> None:
    said(
        folder,
        label=EVIL,
        name=EVIL,
        rule=EVIL,
        error=EVIL,
        status=EVIL,
        started=EVIL,
        digest=EVIL,
        versions={EVIL: EVIL},
        hardware={"cpu": EVIL, "gpu": EVIL},
    )
    configured(folder, "seed = 3", f"seed = 3\nevil = {json.dumps('</code></pre>' + EVIL)}")
    other = Path(shutil.copytree(folder, tmp_path / EVIL.replace("/", "_")))
    runs = analysis.open_all([folder, said(other, label="$\\bad{ _^ $ %s {0}")])
    assert_harmless(analysis.write_report(runs, tmp_path / "page.html"))


def test_names_in_the_page_of_a_world_are_text(tmp_path: Path) -> None:
    about = pa.table({EVIL: [1.0, 2.0], "region": [EVIL, "$\\bad{"]})
    trace = Trace.of([0, 1], [0, 5], [9, 10], "online", clients=2, horizon_us=10, source=EVIL, about=about)
    write_world_page(trace, EVIL, tmp_path / "page.html")
    assert_harmless(tmp_path / "page.html")


def test_a_terminal_obeys_no_name(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "[red]other[/red]"))
    said(folder, label=MARKED_UP, wall_s={"total": 1.0, MARKED_UP: 1.0}, status=MARKED_UP)
    assert command("report", folder, said(other, label="[/x]"), "--out", tmp_path / "[bold]p[/p].html") == 0
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err
    assert "\u202e" not in told.out
    seen = re.sub(r"\s", "", told.out)
    assert "[boldred]x[/boldred]" in seen
    assert "\\x1b[31m" in seen
    assert "[bold]p[/p].html" in seen


def test_an_error_obeys_no_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("trace", "check", tmp_path / "\x1b[31mx\u202e[bold]") == 2
    told = capsys.readouterr().err
    assert "\\x1b[31mx\\u202e[bold]" in told
    assert "\x1b" not in told


def test_what_prints_stays_as_it_is() -> None:
    for text in ("plain", "Grüße, 日本 ± µs – “x” 🙂", "two\nlines\tand a tab", "narrow\u202fspace\xa0"):
        assert visible(text) == text
    assert visible("a\x00b\x9b\u2066\udcff\r") == "a\\x00b\\x9b\\u2066\\udcff\\r"
