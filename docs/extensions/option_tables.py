"""Markdown tables of the fields of pydantic models: name, values and default in words, meaning."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import annotated_types
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedsim.common.option_requirements import Unless, Where, With
from fedsim.common.units import US, duration_us, size_bytes

HEAD = ("key", "values", "default", "meaning")
_LARGE = 1e8
"""Bounds of this size keep numbers finite; they are not ranges that a reader chooses from."""
_WORDS = {bool: "`true` or `false`", str: "text", Path: "a path", dict: "a table", type(None): "none"}
_READ_FROM_TEXT: dict[Any, str] = {duration_us: "a duration", size_bytes: "a size"}
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def option_table(model: type[BaseModel], docs: Mapping[str, str], hidden: Iterable[str] = ()) -> str:
    """Return the table of a model's fields; "" if there are none. `docs` has their meanings."""
    fields = {name: field for name, field in model.model_fields.items() if name not in hidden}
    rows = [_cells(name, field, docs.get(name, "")) for name, field in fields.items()]
    columns = len(HEAD) if any(row[-1] for row in rows) else len(HEAD) - 1
    lines = [HEAD, ["---"] * len(HEAD), *rows] if rows else []
    return "".join(f"| {' | '.join(cells[:columns])} |\n" for cells in lines)


def tables_inside(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel], bool]]:
    """Yield the fields that are tables: name, model, and whether it is a list of tables."""
    for name, field in model.model_fields.items():
        for part in _parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield name, part, "tuple" in str(field.annotation)


def attribute_docs(owner: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.startswith("fedsim"):
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(tree, ast.ClassDef)
            found |= dict(_documented(tree.body))
    return found


def _documented(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(text.value, ast.Constant)
            yield field.target.id, inspect.cleandoc(text.value.value)


def in_words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return which values an annotation allows, such as "a number from 0 to 1"."""
    origin, entries = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return in_words(entries[0], [*_flat(entries[1:]), *metadata])
    if origin in (typing.Union, types.UnionType):
        texts = [in_words(part, metadata) for part in entries if part is not type(None)]
        return _either(list(dict.fromkeys(texts)))
    readers = [entry.func for entry in metadata if isinstance(entry, BeforeValidator)]
    if text := next((_READ_FROM_TEXT[reader] for reader in readers if reader in _READ_FROM_TEXT), None):
        return text
    if origin is typing.Literal:
        return _either([f"`{toml(value)}`" for value in entries])
    if origin is not None and issubclass(origin, Sequence):
        return _list_in_words(entries)
    if annotation in (int, float):
        return _number_in_words("a whole number" if annotation is int else "a number", metadata)
    if isinstance(origin or annotation, type) and issubclass(origin or annotation, BaseModel | dict):
        return "a table"
    return _WORDS.get(annotation, f"`{getattr(annotation, '__name__', annotation)}`")


def toml(value: Any) -> str:
    """Return a default as a configuration writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else str(value)


def _cells(name: str, field: FieldInfo, doc: str) -> list[str]:
    metadata = _flat(field.metadata)
    needs = [_requirement(entry) for entry in metadata if isinstance(entry, With | Where)]
    meaning = " ".join([*doc.split(), *needs])
    return [
        f"`{name}`",
        in_words(field.annotation, metadata),
        _default(field, metadata, meaning),
        meaning.replace("|", r"\|"),
    ]


def _default(field: FieldInfo, metadata: Sequence[Any], meaning: str) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return meaning.partition("; by default ")[2].rstrip(".") or "required"
    if value is None:
        return "none"
    if isinstance(value, BaseModel) or value in ((), {}):
        return ""
    if "a duration" in in_words(field.annotation, metadata) and isinstance(value, int) and value:
        seconds = value / US
        return next(
            f'`"{seconds / size:g}{unit}"`' for unit, size in _UNITS if seconds % size == 0 or size == 1
        )
    return f"`{toml(value)}`"


def _requirement(entry: With | Where) -> str:
    if isinstance(entry, Where):
        return f"No effect {entry.reason}."
    unless = isinstance(entry, Unless)
    if entry.values == (None,):
        return f"Only with `{entry.option}`." if unless else f"Not beside `{entry.option}`."
    values = _either([f"`{entry.option} = {toml(value)}`" for value in entry.values])
    return f"Not with {values}." if unless else f"Only with {values}."


def _number_in_words(noun: str, metadata: Iterable[Any]) -> str:
    low = high = ""
    for bound in metadata:
        match bound:
            case annotated_types.Ge(ge=least) if abs(least) < _LARGE:
                low = f"from {least:g}"
            case annotated_types.Gt(gt=least) if abs(least) < _LARGE:
                low = f"from {least + 1:g}" if "whole" in noun else f"above {least:g}"
            case annotated_types.Le(le=most) if abs(most) < _LARGE:
                high = f"to {most:g}" if low.startswith("from") else f"up to {most:g}"
            case annotated_types.Lt(lt=most) if abs(most) < _LARGE:
                high = f"to below {most:g}" if low.startswith("from") else f"below {most:g}"
    between = " and " if low.startswith("above") and high else " "
    return f"{noun} {low}{between}{high}".strip()


def _list_in_words(entries: Sequence[Any]) -> str:
    kinds = [entry for entry in entries if entry is not ...]
    each = in_words(kinds[0]) if kinds else "a value"
    count = "" if len(kinds) == 1 else f" of {len(kinds)} values"
    return f"a list{count}, each {each}"


def _either(texts: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _flat(metadata: Iterable[Any]) -> list[Any]:
    """Return annotations with those inside a `Field`."""
    return [
        inner
        for entry in metadata
        for inner in (entry.metadata if isinstance(entry, FieldInfo) else (entry,))
    ]


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all that it is composed of."""
    yield annotation
    for entry in typing.get_args(annotation):
        yield from _parts(entry)
