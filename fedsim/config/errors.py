"""Reading TOML, `--set` assignments, and saying what pydantic finds wrong in lines to act on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import pydantic

from fedsim.common.errors import ConfigError, closest, in_words, short
from fedsim.common.errors import found as as_found
from fedsim.common.files import MOST_PARTS, from_toml

Model = TypeVar("Model", bound=pydantic.BaseModel)
_SHOULD = "Input should be "
_TABLE = "Input should be a valid dictionary or instance of "
_TAG = re.compile(r"(constrained-)?(int|float|str|bool)|literal\[.*\]")
"""What pydantic calls the kinds of a value that may be of several kinds."""
_AT_LINE = re.compile(r"at line (\d+)")
_BARE = re.compile(r"=\s*[^\s\"'\[{#=][^\"']*[A-Za-z]")
"""An assignment of a word, or of a number with a unit, without quotes."""
_LONGEST_LINE = 80


def read_toml(path: Path | str) -> dict[str, Any]:
    """Read a TOML file. Raises ConfigError that names the file and, for a syntax error, the line."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")  # Windows may put a mark before the text
    except FileNotFoundError:
        siblings = [p.name for p in file.parent.glob("*.toml")] if file.parent.is_dir() else []
        near = closest(file.name, siblings) if siblings else ""
        raise ConfigError(f"{file}: there is no such file{near if 'mean' in near else ''}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: cannot be read: expected text in UTF-8, save it so: {error}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from error
    try:
        return from_toml(text)
    except ValueError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}{_in_line(text, str(error))}") from error


def _in_line(text: str, said: str) -> str:
    """Return the line of a text that an error is about, with what is mostly wrong there."""
    place = _AT_LINE.search(said)
    if place is None:
        return ""
    line = text.split("\n")[int(place[1]) - 1].strip()
    unquoted = "; text needs quotes" if _BARE.search(line) else ""
    return f": {line[:_LONGEST_LINE]!r}{unquoted}"


def assign(config: dict[str, Any], text: str) -> None:
    """Carry out an assignment such as `pacing.buffer=20` in nested tables; missing tables are made.

    The value is read as TOML; what is no TOML value is taken as text, so quotes are not needed. Raises
    ConfigError.
    """
    path, sign, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not sign or not all(keys):
        raise ConfigError(f"--set {short(text)}: expected KEY=VALUE, such as pacing.buffer=20")
    if len(keys) > MOST_PARTS:
        raise ConfigError(
            f"--set {short(text)}: expected a key of at most {MOST_PARTS} parts, found {len(keys):,}"
        )
    table = config
    for depth, key in enumerate(keys[:-1], start=1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {text}: {'.'.join(keys[:depth])} is {table!r}, not a table")
    table[keys[-1]] = _value(value.strip())


def problems(error: pydantic.ValidationError, model: type[pydantic.BaseModel], file: Path | str) -> str:
    """Write each error as `file: world.horizonn: unknown key; did you mean 'horizon'?`, one to a line."""
    return "\n".join(line for found in _merged(error.errors()) for line in _lines(found, model, str(file)))


def validated(model: type[Model], raw: Any, file: Path | str) -> Model:
    """Check nested dictionaries against a model. Raises ConfigError with a line for each problem."""
    try:
        return model.model_validate(raw)
    except pydantic.ValidationError as error:
        raise ConfigError(problems(error, model, file)) from error


def _value(text: str) -> Any:
    try:
        parsed = from_toml(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def _merged(errors: Sequence[Any]) -> list[dict[str, Any]]:
    """Put together what is wrong with a value that may be of several kinds: one error for each kind, with its tag."""
    merged: list[dict[str, Any]] = []
    for error in errors:
        loc, said = error["loc"], str(error["msg"]).partition(", unable to parse")[0]
        found = {**error, "msg": said}
        if said.startswith(_SHOULD) and len(loc) > 1 and _TAG.fullmatch(str(loc[-1])):
            found["loc"] = loc[:-1]
            if merged and merged[-1]["loc"] == loc[:-1]:
                merged[-1]["msg"] += f" or {said.removeprefix(_SHOULD)}"
                continue
        merged.append(found)
    return merged


def _lines(found: Any, model: type[pydantic.BaseModel], file: str) -> Iterator[str]:
    loc, kind = found["loc"], found["type"]
    place = ".".join([file + ":", *map(str, loc)]).replace(":.", ": ", 1) if loc else f"{file}:"
    place = place if place.endswith(":") else place + ":"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        key = str(loc[-1])
        if len(loc) > 1 and key in model.model_fields:
            table = _models(model.model_fields[key].annotation)
            yield f"{place} unknown key; " + (
                f"[{key}] is a table of its own" if table else f"{key!r} stands above the first table"
            )
        else:
            yield f"{place} unknown key{closest(key, _known(model, loc[:-1]))}"
    elif kind in ("model_type", "model_attributes_type") or str(found["msg"]).startswith(_TABLE):
        such = f", such as {loc[-1]}.KEY = VALUE" if loc else ""
        yield f"{place} expected a table{such}, found {as_found(found['input'])}"
    elif kind == "missing":
        yield f"{place} missing"
    elif kind in ("value_error", "assertion_error"):
        said = str(found["ctx"]["error"]) if "error" in found.get("ctx", {}) else found["msg"]
        yield from (f"{place} {short(line, 1000)}" for line in said.split("\n"))
    elif kind == "tuple_type" and isinstance(found["input"], Mapping):
        yield f"{place} expected a list of tables, each written [[{'.'.join(map(str, loc))}]], found a single table"
    else:
        said = in_words(found["msg"])
        yield f"{place} {said[0].lower()}{said[1:]}, found {as_found(found['input'])}"


def _known(model: type[pydantic.BaseModel], loc: tuple[int | str, ...]) -> set[str]:
    """Return the keys of the table at `loc`; list indices and tags of unions in it are passed over."""
    tables = [model]
    for step in loc:
        inner = [
            m for t in tables if step in t.model_fields for m in _models(t.model_fields[str(step)].annotation)
        ]
        tables = inner or tables
    return {field.alias or name for table in tables for name, field in table.model_fields.items()}


def _models(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """Return the models inside an annotation such as `dict[str, Table] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
