"""Tables as wide as the console."""

import io

import pytest
from rich.table import Table

from fedsim.common.terminal import Terminal, facts_table, ruled_table

WORDS = ["mean", "percent", "fedprox_released", "division=pat2", "[-0.388,", "+0.0598]", "6"]
LEAST, MOST = 7 + 1 + 16 + 1 + 8 + 1 + 1, 12 + 1 + 16 + 1 + 17 + 1 + 1
"""The widths with a word in each line, and with none wrapped: four columns with a space between them."""


def table(**column):
    made = ruled_table()
    made.show_header = False
    for _ in range(4):
        made.add_column(overflow="fold", **column)
    made.add_row("mean percent", "fedprox_released\ndivision=pat2", "[-0.388, +0.0598]", "6")
    return made


def printed(table, width, **options):
    out = io.StringIO()
    Terminal(file=out, width=width, **options).print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", range(LEAST, MOST + 1))
def test_columns_wrap_between_words(width):
    lines = printed(table(), width, force_terminal=True).splitlines()
    assert sorted(word for line in lines for word in line.split()) == sorted(WORDS)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", range(1, LEAST))
def test_a_file_gets_longer_lines_rather_than_broken_words(width):
    lines = printed(table(), width).splitlines()
    assert sorted(word for line in lines for word in line.split()) == sorted(WORDS)
    assert {len(line) for line in lines} == {LEAST}


def test_a_terminal_gets_broken_words_rather_than_longer_lines():
    lines = printed(table(), LEAST - 1, force_terminal=True).splitlines()
    assert max(map(len, lines)) <= LEAST - 1
    assert "fedprox_released" not in " ".join(lines)


@pytest.mark.parametrize(("length", "whole"), [(120, True), (121, False)])
def test_lines_of_a_file_have_up_to_120_characters(length, whole):
    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(overflow="fold")
    made.add_row("x" * length)
    lines = printed(made, 80).splitlines()
    assert ("x" * length in lines) == whole
    assert "".join(lines).strip() == "x" * length


@pytest.mark.parametrize(("fewer", "wraps"), [(0, False), (1, True)])
def test_columns_that_cannot_wrap_do_only_where_a_word_would_break_otherwise(fewer: int, wraps: bool) -> None:
    made = table()
    made.columns[2].no_wrap = True
    made.add_column(no_wrap=True)
    made.add_row("", "", "", "", "y" * 60)
    least = LEAST + len(" +0.0598]") + 1 + 60
    text = printed(made, least - fewer, force_terminal=True)
    assert ("[-0.388, +0.0598]" in text) != wraps
    assert sorted(text.split()) == sorted([*WORDS, "y" * 60])


def test_printing_leaves_the_table_as_it_was():
    made = table()
    narrow = printed(made, LEAST)
    assert printed(made, MOST) != narrow == printed(made, LEAST)


@pytest.mark.parametrize("length", [10, 60, 90, 300])
def test_names_of_facts_do_not_wrap(length):
    made = facts_table([("after the end", "repeat"), ("source", "x" * length)])
    assert "after the end  repeat" in printed(made, 80)
    assert "after the end" in printed(made, 80, force_terminal=True)
    assert printed(made, 80).count("x") == length


@pytest.mark.parametrize(("padding", "gap"), [(0, 1), (1, 3)])
def test_a_ruled_table_has_its_texts_at_the_left_as_they_are(padding, gap):
    made = ruled_table("[b]title[/b]", "a\x1b[2Jb", padding=padding)
    for heading in ("longer than the title", "n"):
        made.add_column(heading)
    made.add_row("1", "2")
    lines = [line.rstrip() for line in printed(made, 80).splitlines()]
    heading = "longer than the title" + " " * gap + "n"
    row = "1".ljust(len(heading) - 1) + "2"
    assert lines == ["[b]title[/b]", heading, "─" * len(heading), row, "a\\x1b[2Jb"]
