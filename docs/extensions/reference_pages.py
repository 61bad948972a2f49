"""Writes the pages that are made from the code into `docs/generated/`, at the start of each build."""

from __future__ import annotations

import csv
import inspect
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

import fedsim
from fedsim import analysis, plugins
from fedsim.cli.main import app as commands
from fedsim.config.run import RunConfig
from fedsim.config.section import PluginSection
from fedsim.config.study.study import StudyConfig
from fedsim.plugins.options import documentation, options_class, options_model
from option_tables import attribute_docs, option_table, tables_inside
from repository_pages import DOCS, GENERATED, write_if_changed

TITLES = {
    "rule": "Aggregation rules",
    "wrapper": "Wrappers",
    "client": "Client methods",
    "selector": "Selectors",
    "scenario": "Scenarios",
    "importer": "Importers",
    "task": "Tasks",
    "model": "Models",
    "partitioner": "Partitioners",
    "metric": "Metrics",
    "adversary": "Attacks",
}
LISTS = {kind: facts.group.removeprefix("fedsim.") for kind, facts in plugins.KINDS.items()}
"""The plural of each kind, as `fedsim list` takes it."""


def configuration_page() -> str:
    """Return the page with every key of a run and of a study."""
    return "\n".join(
        [
            "# Every configuration key\n",
            "This page is made from the code. [Configuration](../config.md) explains how the tables work together.\n",
            "## A run\n",
            *_tables(RunConfig, ""),
            "## A study\n",
            "A study is a file of its own: [Studies](../studies.md).\n",
            *_tables(StudyConfig, ""),
        ]
    )


def _tables(model: type[BaseModel], path: str, several: bool = False) -> Iterator[str]:
    inside = list(tables_inside(model))
    docs = {name: _purpose(below) for name, below, _ in inside} | attribute_docs(model)
    if path:
        yield f"### `{'[[' if several else '['}{path}{']]' if several else ']'}`\n"
        yield _purpose(model) + "\n"
    yield option_table(model, docs, [] if path else [name for name, _, _ in inside])
    if issubclass(model, PluginSection):
        yield f"The options of the plug-in stand beside its name: [{TITLES[model.kind]}]({LISTS[model.kind]}.md).\n"
    for name, below, many in inside:
        yield from _tables(below, f"{path}.{name}" if path else name, many)


def _purpose(model: type[BaseModel]) -> str:
    """Return what a table is for: its docstring without the table's name."""
    purpose = _text(inspect.getdoc(model) or "").partition(": ")[2]
    return purpose[:1].upper() + purpose[1:]


def plugin_page(kind: str) -> str:
    """Return the page of all plug-ins of a kind."""
    names = sorted(plugins.shipped(kind))
    listed = f"`fedsim list {LISTS[kind]}` prints the same names, with options and defaults.\n"
    return "\n".join(
        [f"# {TITLES[kind]}: options\n", listed, *(part for n in names for part in plugin(kind, n))]
    )


def plugin(kind: str, name: str) -> Iterator[str]:
    """Yield the parts of a plug-in's section: what it does, its options, and notes of its module."""
    make = plugins.factory(kind, name)
    yield f"## {name}\n"
    yield _text(documentation(make)[0]) + "\n"
    if kind != "metric":
        yield from _options(kind, make)
    if notes := inspect.getdoc(inspect.getmodule(make)):
        yield f":::{{admonition}} Method and sources\n:class: note\n\n{_text(notes)}\n:::\n"


def _options(kind: str, make: Any) -> Iterator[str]:
    group, model = options_class(make), options_model(make, plugins.KINDS[kind].supplied)
    yield option_table(model, (attribute_docs(group) if group else {}) | documentation(make)[1])
    for name, below, _ in tables_inside(model):
        yield f"Keys of `{name}`:\n"
        yield option_table(below, attribute_docs(below))


def plugins_page() -> str:
    """Return the page that leads to the kinds of plug-ins."""
    rows = [f"| [{TITLES[kind]}]({LISTS[kind]}.md) | {len(plugins.shipped(kind))} |" for kind in TITLES]
    toctree = ["```{toctree}", ":hidden:", "", *(LISTS[kind] for kind in TITLES), "```"]
    intro = "Every plug-in that fedsim ships, with its options. These pages are made from the code.\n"
    return "\n".join(["# Every plug-in\n", intro, "| kind | plug-ins |\n|---|---|", *rows, "", *toctree, ""])


def commands_page() -> str:
    """Return the page of the command line."""
    intro = "The same texts as of `fedsim COMMAND --help`.\n"
    return "\n".join(["# Every command\n", intro, *_commands(typer.main.get_command(commands), ())])


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*path, name))
    if not hasattr(command, "commands"):
        yield from _command(command, " ".join(("fedsim", *path)))


def _command(command: Any, name: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    yield f"## {name}\n"
    yield _text(command.help or "") + "\n"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    records = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
    yield "| option | meaning |\n|---|---|"
    yield from (f"| `{left.replace('|', chr(92) + '|')}` | {_cell(right)} |" for left, right in records)
    yield ""


def python_page(module: Any, title: str, intro: str) -> str:
    """Return the page of a module's public names, which autodoc fills."""
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": [], "Data": []}
    for name in module.__all__:
        groups[_group(getattr(module, name))].append(name)
    parts = [f"# {title}\n", intro + "\n"]
    for group, names in groups.items():
        directives = [_directive(module.__name__, name, group) for name in names if name != "analysis"]
        parts += [f"## {group}\n", "```{eval-rst}", *directives, "```\n"] if directives else []
    return "\n".join(parts)


def _group(value: Any) -> str:
    if isinstance(value, type):
        return "Errors" if issubclass(value, Exception) else "Classes"
    return "Functions" if inspect.isfunction(value) else "Data"


def _directive(module: str, name: str, group: str) -> str:
    kind = {
        "Functions": "autofunction",
        "Classes": "autoclass",
        "Errors": "autoexception",
        "Data": "autodata",
    }[group]
    members = "\n   :members:" if group in ("Classes", "Errors") else ""
    return f".. {kind}:: {module}.{name}{members}\n"


def traces_page() -> str:
    """Return the page of what published trace files hold, from `docs/published_traces.csv`."""
    with (DOCS / "published_traces.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    parts = [
        "# Contents of published trace files\n",
        "What each file holds when it is imported alone, with the defaults. "
        "[Formats of published traces](../trace_formats.md#contents-of-published-files) has the same by folder. "
        "The table is also a [CSV file](../published_traces.csv).\n",
    ]
    for folder, members in groupby(rows, lambda row: row["file"].partition("/")[0]):
        parts += [f"## {folder}\n", *_trace_files(list(members)), ""]
    return "\n".join(parts)


def _trace_files(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yield a folder's tables: of the files that are imported, and of those that are refused alone."""
    refused = [row for row in rows if row["refused"]]
    if len(refused) < len(rows):
        yield "| file | format | clients | intervals | span |\n|---|---|---|---|---|"
    for row in rows:
        if not row["refused"]:
            facts = (row["clients"], row["intervals"], row["span"])
            yield f"| {_below(row)} | `{row['format']}` | {' | '.join(facts)} |"
    if refused:
        yield "\nRefused alone; most of these add facts to files given with them:\n"
        yield "| file | reason |\n|---|---|"
        yield from (f"| {_below(row)} | {_cell(row['refused'])} |" for row in refused)


def _below(row: dict[str, str]) -> str:
    return f"`{row['file'].partition('/')[2]}`"


def _text(docstring: str) -> str:
    """Return a docstring as Markdown, with links for the pages that it names."""
    return re.sub(r"`?\bdocs/([\w/]+\.md)`?", r"[\1](../\1)", docstring)


def _cell(text: str) -> str:
    return _text(" ".join(text.split())).replace("|", r"\|").replace("<", "&lt;")


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each generated page and its text."""
    yield GENERATED / "configuration.md", configuration_page()
    yield GENERATED / "plugins.md", plugins_page()
    for kind in TITLES:
        yield GENERATED / f"{LISTS[kind]}.md", plugin_page(kind)
    yield GENERATED / "commands.md", commands_page()
    yield GENERATED / "published_traces.md", traces_page()
    intro = "The public names of `fedsim`. [Python interface](../api.md) has them in one table."
    yield GENERATED / "python.md", python_page(fedsim, "Python: fedsim", intro)
    intro = (
        "The public names of `fedsim.analysis`. [Analysis in Python](../analysis.md) shows how to use them."
    )
    yield GENERATED / "python_analysis.md", python_page(analysis, "Python: fedsim.analysis", intro)


def _write(app: Any) -> None:
    for path, text in pages():
        write_if_changed(path, text)


def _plain_aliases(app: Any, what: str, name: str, obj: Any, options: Any, shown: str, returned: str) -> Any:
    """Show an alias of `autodoc_type_aliases` that is part of a union by its name."""
    return tuple(
        re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text or "") or None for text in (shown, returned)
    )


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("builder-inited", _write)
    app.connect("autodoc-process-signature", _plain_aliases)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
