"""Describes the options of a plug-in in words: what each may be, its default, and what it does."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedsim.common.arguments import unaliased
from fedsim.common.option_requirements import With
from fedsim.plugins.options import documentation, field_docstrings, options_class, options_model, plain

_WORDS: dict[Any, tuple[str, str]] = {
    bool: ("true or false", "truth values"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    Path: ("a path", "paths"),
    Any: ("any value", "values"),
}
"""The singular and the plural of a type; other types go by their names."""
_UNLIMITED = 2**63
"""Limits from this size on, which only say that a number fits into 64 bits, are not shown."""
_LISTS = (list, Sequence, Collection, Iterable)


@dataclass(frozen=True, slots=True)
class OptionDescription:
    """An option in words. An option of a table inside the options is `table.option`."""

    name: str
    takes: str
    """What the option may be, such as `a number from 0 to 1` or `"paper" or "fedscale"`."""
    default: str
    """The default as in TOML; `none` if leaving the option out means no value, `required` if it has no default."""
    meaning: str
    """What the docstring says of the option, and what it needs beside it; may be empty."""


def described_options(make: Callable[..., Any], supplied: Iterable[str] = ()) -> list[OptionDescription]:
    """Return the descriptions of a factory's options, without the parameters that fedsim supplies."""
    group, model = options_class(make), options_model(make, tuple(supplied))
    return list(
        _described(model, ({} if group is None else field_docstrings(group)) | documentation(make)[1])
    )


def _described(model: type[BaseModel], texts: dict[str, str], path: str = "") -> Iterator[OptionDescription]:
    for name, field in model.model_fields.items():
        table = _table(field.annotation)
        default = field.get_default(call_default_factory=True, validated_data={})
        if table is not None and isinstance(default, table):
            inner = field_docstrings(table)
            for option in _described(table, inner, f"{path}{name}."):
                value = getattr(default, option.name.rpartition(".")[2])
                yield OptionDescription(option.name, option.takes, _default(value), option.meaning)
            continue
        takes = _with_range(field.annotation, field.metadata)
        needs = [entry.sentence for entry in field.metadata if isinstance(entry, With)]
        meaning = " ".join(filter(None, [texts.get(name, ""), *needs]))
        yield OptionDescription(f"{path}{name}", takes, _default(default), meaning)


def _table(hint: Any) -> type[BaseModel] | None:
    return hint if isinstance(hint, type) and issubclass(hint, BaseModel) else None


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    return json.dumps(plain(value), ensure_ascii=False)


def _words(hint: Any, *, several: bool = False) -> str:
    """Return what an annotation accepts, in words; `several` asks for the plural."""
    hint = unaliased(hint)
    origin, of = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _with_range(of[0], _constraints(of[1:]), several=several)
    if origin in (Union, types.UnionType):
        kinds = dict.fromkeys(_words(kind, several=several) for kind in of if kind is not type(None))
        return " or ".join(kinds)
    if origin is Literal:
        *first, last = (json.dumps(value) for value in of)
        return f"{', '.join(first)} or {last}" if first else last
    if origin in _LISTS or (origin is tuple and of[-1] is ...):
        return f"{'lists' if several else 'a list'} of {_words(of[0], several=True)}"
    if origin is tuple:
        return f"[{', '.join(map(_words, of))}]"
    if table := _table(hint):
        return f"a table of {', '.join(table.model_fields)}"
    return _WORDS[hint][several] if hint in _WORDS else getattr(hint, "__name__", str(hint))


def _constraints(entries: Iterable[Any]) -> list[Any]:
    """Return annotations with those inside pydantic's `Field` in place of it."""
    return [part for each in entries for part in (each.metadata if isinstance(each, FieldInfo) else [each])]


def _with_range(hint: Any, constraints: Iterable[Any], *, several: bool = False) -> str:
    """Return a type in words with the range of its numbers, such as `a number from 0 to 1`."""
    limits = {
        sign: getattr(entry, sign)
        for entry in constraints
        for sign in ("ge", "gt", "le", "lt")
        if getattr(entry, sign, None) is not None and abs(getattr(entry, sign)) < _UNLIMITED
    }
    words = _words(hint, several=several)
    if not limits:
        return words
    if "ge" in limits and "le" in limits:
        return f"{words} from {limits['ge']} to {limits['le']}"
    phrases = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    text = " and ".join(f"{phrases[sign]} {limit}" for sign, limit in limits.items())
    return f"{words} of {text}" if text.startswith("at") else f"{words} {text}"
