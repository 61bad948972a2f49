"""Checks the options of a plug-in against the parameters of its factory."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, partial
from itertools import pairwise, takewhile
from typing import Any, get_type_hints

import pydantic
import pydantic_core

from fedsim.common.errors import ConfigError, closest, in_words, one_per_value, shown

SIZES = (1e-30, 1e30)
"""Least and largest size of a fractional option other than 0, close to the limits of float32."""
NO_NUMBER = "expected a number, not true or false"


def options_of(make: Callable[..., Any], supplied: Iterable[str] = ()) -> dict[str, inspect.Parameter]:
    """Return what a configuration may set: the factory's parameters except those in `supplied`.

    A parameter `options` that is annotated with a dataclass stands for the dataclass's fields.
    """
    group, hidden = options_class(make), {*supplied, *_variable(make)}
    own = {n: p for n, p in _parameters(make).items() if n not in hidden}
    if group is None:
        return own
    del own["options"]
    return {**_parameters(group), **own}


def options_class(make: Callable[..., Any]) -> type | None:
    """Return the dataclass of the factory's parameter `options`, or None."""
    return _group_of(make) if "options" in _parameters(make) else None


@cache
def _group_of(make: Callable[..., Any]) -> type | None:
    hint = inspect.get_annotations(_without_return(make), eval_str=True).get("options")
    return hint if isinstance(hint, type) and is_dataclass(hint) else None


def documentation(make: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the docstring of a plug-in's factory without its `Args:`, and what these say of each argument."""
    text, _, below = (inspect.getdoc(make) or "").partition("\nArgs:\n")
    section = "".join(
        takewhile(lambda line: not line.strip() or line[0] == " ", below.splitlines(keepends=True))
    )
    rest = f"{text.rstrip()}\n\n{below[len(section) :]}".strip()
    arguments: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(section).strip()):
        names, colon, meaning = entry.partition(":")
        arguments |= (
            dict.fromkeys(map(str.strip, names.split(",")), " ".join(meaning.split())) if colon else {}
        )
    return rest, arguments


def field_docstrings(group: type) -> dict[str, str]:
    """Return the strings below the annotated fields of a class and of its bases, each as one line."""
    texts: dict[str, str] = {}
    for base in reversed(group.__mro__):
        if base.__module__.partition(".")[0] in ("builtins", "pydantic"):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # a class without a source file
            continue
        (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
        for field, below in pairwise(body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = " ".join(text.split())
    return texts


def call(make: Callable[..., Any], options: Mapping[str, Any], supplied: Mapping[str, Any]) -> Any:
    """Call a factory with checked options and with the arguments that fedsim supplies."""
    group = options_class(make)
    if group is None:
        return make(**options, **supplied)
    fields = _parameters(group)
    own = {name: value for name, value in options.items() if name not in fields}
    return make(options=group(**{n: v for n, v in options.items() if n in fields}), **own, **supplied)


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function or class."""
    lasting = isinstance(make, type) or (inspect.isfunction(make) and make.__closure__ is None)
    return _lasting_parameters(make) if lasting else inspect.signature(make).parameters


@cache
def _lasting_parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of what lives as long as its module; cached, because `inspect.signature` is slow."""
    return inspect.signature(make).parameters


def _variable(make: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters `*args` and `**kwargs`."""
    parameters = _parameters(make).values()
    return [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def checked_options(
    plugin: str,
    make: Callable[..., Any],
    options: Mapping[str, Any],
    supplied: Iterable[str],
    suggest: Callable[[str, Iterable[str]], str] = closest,
) -> dict[str, Any]:
    """Return `options` converted by the annotations of the factory's parameters; see `fedsim.plugins.check`.

    `plugin` names the plug-in in messages; `suggest` returns the hint for an option that is not among the known ones.
    """
    known = options_of(make, supplied)
    problems = [f"{plugin} has no option {key!r}{suggest(key, known)}" for key in options if key not in known]
    problems += _missing_arguments(plugin, make, supplied)
    valid = completed(options, known)
    try:
        values = options_model(make, tuple(supplied)).model_validate(valid)
    except pydantic.ValidationError as error:
        problems += [_problem(plugin, detail) for detail in one_per_value(error.errors())]
    else:
        taken = {key: value for key, value in valid.items() if counted(value, getattr(values, key))}
        problems += [f"{plugin}, option {key!r}: {NO_NUMBER}, found {shown(taken[key])}" for key in taken]
    changed = {key: value for key, value in valid.items() if value != known[key].default}
    problems += [f"{plugin}, option {key!r}: {fault}" for key, fault in _out_of_ranges(changed)]
    if problems:
        raise ConfigError("\n".join(problems))
    return {key: getattr(values, key) for key in options}


def counted(value: Any, parsed: Any) -> bool:
    """Return whether true or false became 1 or 0 in `parsed`, as pydantic takes them, also in lists and tables."""
    if isinstance(value, bool):
        return isinstance(parsed, int | float) and not isinstance(parsed, bool)
    if isinstance(value, list | tuple) and isinstance(parsed, list | tuple):
        return any(map(counted, value, parsed))
    if isinstance(value, Mapping):
        of = parsed.get if isinstance(parsed, Mapping) else partial(getattr, parsed)
        return any(counted(entry, of(key, None)) for key, entry in value.items())
    return False


def completed(options: Mapping[str, Any], known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return the known options; tables get what they lack of a default that has a method `completed`."""
    valid = {key: value for key, value in options.items() if key in known}
    for key, value in valid.items():
        complete = getattr(known[key].default, "completed", None)
        if isinstance(value, Mapping) and callable(complete):
            valid[key] = complete(value)
    return valid


def _missing_arguments(plugin: str, make: Callable[..., Any], supplied: Iterable[str]) -> list[str]:
    """Return a message for each argument that fedsim passes and the factory does not take."""
    parameters = _parameters(make)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return []
    taken = ", ".join(parameters)
    return [
        f"{plugin}: its function must take the argument {key!r}, found ({taken})"
        for key in supplied
        if key not in parameters
    ]


def _problem(plugin: str, detail: Mapping[str, Any]) -> str:
    option = ".".join(map(str, detail["loc"]))
    if detail["type"] == "missing" and len(detail["loc"]) > 1:
        return f"{plugin}, option {option!r}: missing in {shown(detail['input'])}"
    if detail["type"] == "missing":
        return f"{plugin} needs the option {option!r}: it is a parameter of its function, without a default"
    message = in_words(detail["msg"]).removeprefix("Value error, ")
    return f"{plugin}, option {option!r}: {message}, found {shown(detail['input'])}"


def _out_of_ranges(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the options, but for seeds, with which arithmetic would overflow or underflow, and their faults."""
    for key, value in options.items():
        if key != "seed" and (fault := _out_of_range(value)):
            yield key, fault


def _out_of_range(value: Any) -> str:
    """Return the fault of a number with which arithmetic would overflow or underflow; "" for other values."""
    if isinstance(value, (Mapping, list, tuple)):
        entries = value.values() if isinstance(value, Mapping) else value
        return next(filter(None, map(_out_of_range, entries)), "")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value == 0:
        return ""
    if isinstance(value, int):
        small = abs(value) < 2**31
        return "" if small else f"expected a whole number below 2^31 in size, found {shown(value)}"
    if not math.isfinite(value):
        return f"expected a finite number, found {value!r}"
    least, most = SIZES
    if least <= abs(value) <= most:
        return ""
    return f"expected a number that is 0, or from {least:g} to {most:g} in size, found {value!r}"


class _NoOptions(pydantic.BaseModel):
    """The options of a factory without options."""


def options_model(make: Callable[..., Any], supplied: tuple[str, ...]) -> type[pydantic.BaseModel]:
    """Return the model that checks a factory's options."""
    return _made_model(make, supplied) if options_of(make, supplied) else _NoOptions


@cache
def _made_model(make: Callable[..., Any], supplied: tuple[str, ...]) -> type[pydantic.BaseModel]:
    """Return such a model; cached, because making it is slow."""
    hints, group = inspect.get_annotations(_without_return(make), eval_str=True), options_class(make)
    if group is not None:
        hints |= get_type_hints(group, include_extras=True)  # also of inherited fields
    fields: dict[str, Any] = {
        n: (hints.get(n, Any), ... if p.default is p.empty else p.default)
        for n, p in options_of(make, supplied).items()
    }
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    return pydantic.create_model("Options", __config__=config, **fields)


def _without_return(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the annotations of a factory's parameters, without that of its return value.

    The latter may name torch, which reading a configuration should not import.
    """
    if isinstance(make, type) and not is_dataclass(make):
        return _without_return(make.__init__)  # type: ignore[misc]  # the annotations of a class are its attributes'
    if not inspect.isfunction(make):
        return make
    twin = types.FunctionType(make.__code__, make.__globals__, closure=make.__closure__)
    twin.__annotations__ = {n: a for n, a in make.__annotations__.items() if n != "return"}
    return twin


def plain(value: Any) -> Any:
    """Return an option as a TOML value: a path as text, a set as a list; None for other values, such as code."""
    try:
        jsonable = pydantic_core.to_jsonable_python(value, exclude_none=True)
    except ValueError:
        return None
    return None if _contains_none(jsonable) else jsonable


def _contains_none(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(_contains_none, parts))
