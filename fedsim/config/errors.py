"""Reads TOML files and `--set` assignments, and turns validation errors into one readable line each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import pydantic

from fedsim.common.errors import ConfigError, closest, described, in_words, one_per_value, short, shown
from fedsim.common.files import MOST_PARTS, from_toml
from fedsim.config.suggestions import key_text, missing_hint, name_hint, object_hint, scenario_option_hint

Model = TypeVar("Model", bound=pydantic.BaseModel)
_TABLE = "Input should be a valid dictionary or instance of "
_AT_LINE = re.compile(r"at line (\d+)")
_BARE = re.compile(r"=\s*[^\s\"'\[{#=][^\"']*[A-Za-z]")
"""An assignment of an unquoted word, or of an unquoted number with a unit."""
_PLACE = re.compile(r"here it is ([a-z_]+)")
"""The table, or the key above the first table, that a hint names."""
_QUOTED = re.compile(r"'([^']*)'")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^."']*))\s*(\.|$)""")
"""A part of a dotted key and what follows it."""
_LONGEST_LINE = 80


def read_toml(path: Path | str) -> dict[str, Any]:
    """Read a TOML file. Raises ConfigError that names the file and, for a syntax error, the line."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")  # Windows editors may write a byte order mark
    except FileNotFoundError:
        near = closest(file.name, [sibling.name for sibling in file.parent.glob("*.toml")])
        raise ConfigError(f"{file}: there is no such file{near if 'mean' in near else ''}") from None
    except IsADirectoryError:
        inside = [file / name for name in ("study.toml", "config.resolved.toml") if (file / name).is_file()]
        found = f"; it holds {inside[0]}" if inside else ""
        raise ConfigError(f"{file}: expected a TOML file, found a folder{found}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: cannot be read: expected text in UTF-8: {error}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    try:
        return from_toml(text)
    except ValueError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}{_in_line(text, str(error))}") from error


def _in_line(text: str, message: str) -> str:
    """Return the line that a TOML error is about, with a hint if the line lacks quotes."""
    if (match := _AT_LINE.search(message)) is None:
        return ""
    line = text.split("\n")[int(match[1]) - 1].strip()
    unquoted = "; text needs quotes" if _BARE.search(line) else ""
    return f": {line[:_LONGEST_LINE]!r}{unquoted}"


def assign(config: dict[str, Any], text: str, option: str = "--set") -> None:
    """Make an assignment such as `pacing.buffer=20` in nested tables, and create missing tables.

    The value is parsed as TOML; anything else is a string, so that text needs no quotes. Raises ConfigError that
    names the `option`.
    """
    path, sign, value = text.partition("=")
    keys = key_parts(path)
    if not sign or not keys or not all(keys):
        raise ConfigError(f"{option} {short(text)}: expected KEY=VALUE, such as pacing.buffer=20")
    if len(keys) > MOST_PARTS:
        raise ConfigError(
            f"{option} {short(text)}: expected a key of at most {MOST_PARTS} parts, found {len(keys):,}"
        )
    table = config
    for depth, key in enumerate(keys[:-1], start=1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{option} {text}: {'.'.join(keys[:depth])} is {table!r}, not a table")
    table[keys[-1]] = _value(value.strip())


def quoted(part: str) -> str:
    """Return a part of a dotted key, in quotes if it holds a point."""
    return f'"{part}"' if "." in part else part


def key_parts(key: str) -> list[str]:
    """Return the parts of a dotted key, as in TOML: in `axes.lr."0.05"` one holds a point. Empty if it is malformed."""
    parts, match = list[str](), _PART.match(key)
    while match is not None:
        parts.append(next(part for part in match.groups()[:3] if part is not None).strip())
        if not match[4]:
            return parts
        match = _PART.match(key, match.end())
    return []


def validated(model: type[Model], raw: Any, file: Path | str) -> Model:
    """Check nested dictionaries against a model.

    Raises ConfigError with a line for each problem, such as `file: sede: unknown key; did you mean 'seed'?`.
    """
    try:
        return model.model_validate(raw)
    except pydantic.ValidationError as error:
        lines = (
            line for detail in one_per_value(error.errors()) for line in _lines(detail, model, str(file))
        )
        raise ConfigError("\n".join(lines)) from error


def _value(text: str) -> Any:
    try:
        parsed = from_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def _lines(detail: Any, model: type[pydantic.BaseModel], file: str) -> Iterator[str]:
    loc, kind, value = detail["loc"], detail["type"], detail["input"]
    place = f"{file}: {'.'.join(map(str, loc))}:" if loc else f"{file}:"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        yield f"{place} unknown key{_meant(model, loc)}"
    elif kind in ("model_type", "model_attributes_type") or str(detail["msg"]).startswith(_TABLE):
        such = f", such as {loc[-1]}.KEY = VALUE" if loc else ""
        yield f"{place} expected a table{such}, found {_found(loc, value)}"
    elif kind == "missing":
        kinds = [getattr(table, "kind", None) for table in _tables(model, loc[:-1])]
        yield f"{place} missing{missing_hint(str(loc[-1]), *kinds[:1] or [None])}"
    elif kind in ("value_error", "assertion_error"):
        message = str(detail["ctx"]["error"]) if "error" in detail.get("ctx", {}) else detail["msg"]
        yield from (f"{place} {short(line, 1000)}" for line in message.split("\n"))
    elif kind == "tuple_type" and isinstance(value, Mapping):
        yield f"{place} expected a list of tables, each written [[{'.'.join(map(str, loc))}]], found a single table"
    else:
        message = in_words(detail["msg"])
        yield f"{place} {message[0].lower()}{message[1:]}, found {_found(loc, value)}{_value_hint(detail)}"


def _meant(model: type[pydantic.BaseModel], loc: tuple[int | str, ...]) -> str:
    """Return where the unknown key at the end of `loc` belongs, or the closest valid key."""
    key = str(loc[-1])
    if len(loc) == 1 and key in getattr(model, "run_keys", ()):
        return f"; it belongs to [run]: run.{key}"
    if len(loc) == 1 or key not in model.model_fields:
        known, in_world = _known(model, loc[:-1]) - {key}, len(loc) == 2 and loc[0] == "world"
        return (
            _elsewhere(model, key) or (scenario_option_hint(key) if in_world else "") or closest(key, known)
        )
    if (near := closest(key, _known(model, loc[:-1]))).endswith("?"):
        return near
    if key == "name" and loc[0] == "world":
        return "; did you mean 'scenario'?"
    if models_in(model.model_fields[key].annotation):
        return f"; [{key}] is a table of its own"
    return f"; {key!r} belongs above the first table"


def _elsewhere(model: type[pydantic.BaseModel], key: str) -> str:
    """Return the hint for a key in the words of others, or of another table, if the model has what it names."""
    text, below = key_text(key), getattr(model, "run_table", "")
    if (place := _PLACE.match(text)) is None:
        return f": {text}" if text and (below or "task" in model.model_fields) else ""
    if place[1] in model.model_fields:
        return f": {text}"
    return f": {text.replace(place[0], f'here it is {below}{place[1]}', 1)}" if below else ""


def _value_hint(detail: Any) -> str:
    """Return the name that a value stands for, or the closest, if it is none of the names that its key accepts."""
    value, accepted = detail["input"], str(detail.get("ctx", {}).get("expected", ""))
    if detail["type"] != "literal_error" or not isinstance(value, str):
        return ""
    if detail["loc"][-1] == "preset" and (hint := name_hint("preset", value)):
        return hint
    near = closest(value, _QUOTED.findall(accepted))
    return near if near.endswith("?") else ""


def _found(loc: tuple[int | str, ...], value: Any) -> str:
    return f"{described(value)}{hint}" if (hint := object_hint(loc, value)) else shown(value)


def _known(model: type[pydantic.BaseModel], loc: tuple[int | str, ...]) -> set[str]:
    """Return the keys of the table at `loc`."""
    known = {field.alias or n for table in _tables(model, loc) for n, field in table.model_fields.items()}
    return known if loc else known | set(getattr(model, "file_keys", ()))


def _tables(model: type[pydantic.BaseModel], loc: tuple[int | str, ...]) -> list[type[pydantic.BaseModel]]:
    """Return the models of the table at `loc`, whose list indices and tags of unions are skipped."""
    tables = [model]
    for step in loc:
        fields = [table.model_fields[str(step)] for table in tables if step in table.model_fields]
        tables = [table for field in fields for table in models_in(field.annotation)] or tables
    return tables


def models_in(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Return the models inside an annotation such as `dict[str, Table] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def assignments(sets: Sequence[Any] | Mapping[str, Any]) -> list[str]:
    """Return changes of a configuration as texts `a.b=value`. Raises ConfigError for values that TOML lacks."""
    if isinstance(sets, Mapping):
        return [f"{key}={_toml(value, str(key))}" for key, value in sets.items()]
    if isinstance(sets, str):
        raise ConfigError(f"sets: expected several assignments, such as [{sets!r}], found the text {sets!r}")
    made = list(sets) if isinstance(sets, Iterable) else [None]
    if not all(isinstance(text, str) for text in made):
        raise ConfigError(
            "sets: expected assignments such as ['train.lr=0.1'] or values such as {'train.lr': 0.1}, found "
            f"{described(sets)}"
        )
    return made


def key_of(text: str) -> str:
    """Return the key of an assignment `a.b=value`, with quotes around parts that hold a point alone."""
    path = text.partition("=")[0]
    return ".".join(map(quoted, key_parts(path))) or path.strip()


def _toml(value: Any, key: str) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, Path)):
        return json.dumps(str(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        keys = [f"{json.dumps(str(k))} = {_toml(v, key)}" for k, v in value.items()]
        return f"{{{', '.join(keys)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(each, key) for each in value)}]"
    raise ConfigError(
        f"sets: {key}: expected a number, text, truth value, list or dict, found {described(value)}"
    )
