"""`fedsim list`: the kinds of plug-ins, the plug-ins of a kind, or one plug-in with its options."""

from __future__ import annotations

from typing import Annotated

from rich.table import Column, Table
from typer import Argument

from fedsim import plugins
from fedsim.common.errors import ConfigError, Error, closest
from fedsim.common.terminal import Terminal, say, shown

_KINDS = {facts.group.removeprefix("fedsim."): kind for kind, facts in plugins.KINDS.items()}
"""The kinds of plug-ins by their plurals, which the command line uses."""


def list_plugins(
    kind: Annotated[
        str, Argument(help=f"One of {', '.join(_KINDS)}; or a plug-in, such as fedfv.", show_default=False)
    ] = "",
    name: Annotated[
        str, Argument(help="A plug-in of this kind, such as fedfv or mine.py:mine.", show_default=False)
    ] = "",
) -> None:
    """List kinds of plug-ins, those of a kind, or one with its options."""
    if not kind:
        _show_kinds()
    elif kind not in _KINDS:
        _show_plugin(_KINDS[_kind_of(kind, name)], kind)
    elif name:
        _show_plugin(_KINDS[kind], name)
    else:
        _show_kind(_KINDS[kind])


def _kind_of(plugin: str, name: str) -> str:
    """Return the kind that has the plug-in, given in place of a kind. Raises ConfigError if it is not one alone."""
    kinds = [plural for plural, kind in _KINDS.items() if plugin in plugins.names(kind)]
    if name or not kinds:
        raise ConfigError(f"there is no kind of plug-in {plugin!r}{closest(plugin, _KINDS)}")
    if len(kinds) > 1:
        commands = (f"fedsim list {plural} {plugin}" for plural in kinds)
        raise ConfigError(f"there are several plug-ins {plugin!r}: {' or '.join(commands)}")
    return kinds[0]


def _table(*headings: str) -> Table:
    return Table(*(Column(heading, overflow="fold") for heading in headings), box=None, pad_edge=False)


def _show_kinds() -> None:
    table = Table("kind", "what it is", Column("how many", justify="right"), box=None, pad_edge=False)
    for plural, kind in _KINDS.items():
        table.add_row(plural, plugins.KINDS[kind].purpose, str(len(plugins.names(kind))))
    Terminal().print(table)
    say("\nfedsim list rules  lists the rules")
    say("fedsim list fedfv  shows one of them, with each option explained")


def _show_kind(kind: str) -> None:
    table = _table("name", "what it does")
    for name in plugins.names(kind):
        source = plugins.distribution(kind, name)
        title = f"{name} ({source})" if source else name
        try:
            told = plugins.summary(kind, name)
        except Error as error:  # of one package: the others can be used
            told = f"cannot be used: {error}"
        table.add_row(title, shown(told))
    for name, points in plugins.entry_points(kind, taken=True).items():
        for point in points:
            told = f"cannot be used by its name, which fedsim itself has: write {point.value!r}"
            table.add_row(f"{name} ({point.dist and point.dist.name})", shown(told))
    Terminal().print(table)


def _show_plugin(kind: str, name: str) -> None:
    """Show a plug-in's docstring and its options."""
    from fedsim.cli.option_descriptions import described_options
    from fedsim.plugins.options import documentation

    make = plugins.factory(kind, name)
    say(f"{kind} {name}\n\n{documentation(make)[0] or 'It has no docstring.'}\n")
    if kind == "metric":
        return

    options = described_options(make, plugins.KINDS[kind].supplied)
    if not options:
        say("It has no options.")
        return
    explained = any(option.meaning for option in options)
    table = _table("option", "value", "default", *(["what it does"] if explained else []))
    table.columns[0].no_wrap = True
    for option in options:
        cells = option.name, option.takes, option.default, *([option.meaning] if explained else [])
        table.add_row(*map(shown, cells))
    Terminal().print(table)
