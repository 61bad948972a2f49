"""Finds and builds plug-ins: a plug-in, its module and its factory have the same name.

The rule `fedfv` is `algorithms/fedfv.py: fedfv(...)`. Code in other places is named `package.module:factory` or
`path/to/file.py:factory`. There is no registry to edit. An installed distribution can give its plug-ins short names
with entry points of the groups in `GROUPS`:

    [project.entry-points."fedsim.rules"]
    strongest = "my_package.rules:strongest"

A factory in an installed module must annotate its return type. A plug-in that fedsim ships takes precedence over an
entry point of the same name.

A name with a colon is code: running a configuration runs the code that it names. `FEDSIM_ONLY_SHIPPED=1` refuses it.
"""

from __future__ import annotations

import dis
import importlib
import importlib.util
import inspect
import math
import os
import pkgutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import pydantic_core

from fedsim.common import option_requirements
from fedsim.common.errors import ConfigError, Error, RunError, closest, in_words, shown

if TYPE_CHECKING:
    import importlib.metadata

PACKAGES = {
    "rule": "fedsim.algorithms",
    "wrapper": "fedsim.algorithms.wrappers",
    "client": "fedsim.algorithms.clients",
    "selector": "fedsim.algorithms.selection",
    "scenario": "fedsim.scenarios",
    "importer": "fedsim.scenarios.importers",
    "task": "fedsim.data.tasks",
    "model": "fedsim.models",
    "partitioner": "fedsim.data.partitioners",
    "metric": "fedsim.analysis.metrics",
    "adversary": "fedsim.training.attacks",
}
GROUPS = {
    "rule": "fedsim.rules",
    "wrapper": "fedsim.wrappers",
    "client": "fedsim.clients",
    "selector": "fedsim.selectors",
    "scenario": "fedsim.scenarios",
    "importer": "fedsim.importers",
    "task": "fedsim.tasks",
    "model": "fedsim.models",
    "partitioner": "fedsim.partitioners",
    "metric": "fedsim.metrics",
    "adversary": "fedsim.adversaries",
}
"""The group of entry points of each kind."""

_provided: dict[str, Any] = {}
"""Modules made from source texts, by the path in a plug-in's name."""
_installed: set[str] = set()
"""Installed modules that names of plug-ins referred to."""

PRODUCTS = {
    "rule": "Algorithm",
    "wrapper": "Algorithm",
    "client": "ClientMethod",
    "selector": "Selector",
    "scenario": "Scenario",
    "importer": "Importer",
    "task": "Task",
    "model": "Module",
    "partitioner": "Partition",
    "metric": "float",
    "adversary": "Attack",
}
"""The return type of a factory of each kind (a metric is itself the function)."""
SIZES = (1e-30, 1e30)
"""Least and largest size of a fractional option other than 0, close to the limits of float32."""
_CHECKED = ("task", "client", "selector", "adversary")
"""Kinds whose products `build` checks by the names of their classes; the callers check the others."""
_PREFIX = "fedsim_plugin_"
"""Prefix of the names of modules that were read from files."""
ONLY_SHIPPED = "FEDSIM_ONLY_SHIPPED"
"""The environment variable that allows only the plug-ins that fedsim ships."""


def names(kind: str) -> list[str]:
    """Return the sorted names of the plug-ins of a kind (a key of `PACKAGES`), shipped and of entry points."""
    return sorted(shipped(kind) | entry_points(kind).keys())


def shipped(kind: str) -> set[str]:
    """Return the names of the plug-ins in the folder of a kind; modules that start with `_` are private."""
    package = importlib.import_module(PACKAGES[kind])
    modules = pkgutil.iter_modules(package.__path__)
    return {m.name for m in modules if not m.ispkg and not m.name.startswith("_")}


@cache
def entry_points(kind: str) -> Mapping[str, Sequence[importlib.metadata.EntryPoint]]:
    """Return the entry points of other distributions by name, except for names of shipped plug-ins."""
    import importlib.metadata  # slow: reads the metadata of all installed distributions

    points: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUPS[kind]):
        if point.name not in shipped(kind):
            points.setdefault(point.name, []).append(point)
    return points


def distribution(kind: str, name: str) -> str | None:
    """Return the distribution whose entry point names a plug-in; None for a shipped plug-in."""
    points = entry_points(kind).get(name, ())
    return ", ".join(str(point.dist and point.dist.name) for point in points) or None


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return the factory of a plug-in. Raises ConfigError that suggests the closest name."""
    if ":" in name:
        return _elsewhere(kind, name)
    if name.endswith(".py"):
        raise ConfigError(
            f"{kind} {name!r}: expected the name of the function too, such as '{name}:{Path(name).stem}'"
        )
    imported = getattr(sys.modules.get(f"{PACKAGES[kind]}.{name}"), name, None)
    if callable(imported):  # much faster than listing the folder
        return imported  # type: ignore[no-any-return]
    if name not in shipped(kind):
        if points := entry_points(kind).get(name, ()):
            if len(points) > 1:
                raise ConfigError(
                    f"there is more than one {kind} {name!r}, of {distribution(kind, name)}: write one of "
                    f"{', '.join(repr(point.value) for point in points)}"
                )
            return _elsewhere(kind, points[0].value)
        raise ConfigError(f"there is no {kind} {name!r}{closest(name, names(kind))}")
    return _member(_opened(kind, name, f"{PACKAGES[kind]}.{name}"), name, kind, name)


def build(kind: str, name: str, options: Mapping[str, Any], **supplied: Any) -> Any:
    """Call a plug-in's factory with `options` of a configuration and with the arguments `supplied` by fedsim.

    The options are checked against the factory's signature. Raises ConfigError that names each unknown option, with
    the closest known one, and each wrong type.
    """
    make = factory(kind, name)
    checked = checked_options(kind, name, make, options, supplied)
    if lines := [
        option_requirements.refusal(f"{kind} {name!r}, option {place!r}", lacks)
        for place, lacks in idle_options(kind, name, options, supplied)
        if lacks
    ]:
        raise ConfigError("\n".join(lines))
    with contained(f"{kind} {name!r}"):
        product = make(**checked, **supplied)
    if kind in _CHECKED and PRODUCTS[kind] not in (c.__name__ for c in type(product).__mro__):
        raise ConfigError(
            f"{kind} {name!r} returned {type(product).__name__}, expected an instance of {PRODUCTS[kind]}"
        )
    if kind == "partitioner" and not callable(product):
        raise ConfigError(f"partitioner {name!r} returned {type(product).__name__}, expected a function")
    return product


def summary(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring."""
    return (inspect.getdoc(factory(kind, name)) or "").strip().split("\n")[0]


def options_of(make: Callable[..., Any], supplied: Iterable[str] = ()) -> dict[str, inspect.Parameter]:
    """Return the factory's parameters that a configuration may set: all except those in `supplied`."""
    parameters = inspect.signature(make).parameters
    hidden = set(supplied)
    return {
        n: p
        for n, p in parameters.items()
        if n not in hidden and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }


def check(
    kind: str, name: str, options: Mapping[str, Any], supplied: Iterable[str], others: Iterable[str] = ()
) -> None:
    """Raise ConfigError if there is no such plug-in, or if it does not accept these options.

    Args:
        kind: a key of `PACKAGES`.
        name: the plug-in.
        options: its options in a configuration.
        supplied: parameters that fedsim sets.
        others: other keys of the plug-in's table, which a message may suggest.
    """
    checked_options(kind, name, factory(kind, name), options, supplied, others)


def idle_options(
    kind: str, name: str, options: Mapping[str, Any], supplied: Iterable[str]
) -> list[tuple[str, str]]:
    """Return the options that depend on another one, and what each lacks to have an effect, or ""."""
    make = factory(kind, name)
    known = {key: value for key, value in options.items() if key in options_of(make, supplied)}
    return list(
        option_requirements.lacks_in(_options_model(make, name, tuple(supplied)).model_validate(known))
    )


def resolved(kind: str, name: str, options: Mapping[str, Any], supplied: Iterable[str]) -> dict[str, Any]:
    """Return the options with all defaults, except for defaults that TOML cannot express, such as None."""
    known = options_of(factory(kind, name), supplied)
    defaults = {n: plain(p.default) for n, p in known.items() if p.default is not p.empty}
    values = {n: v for n, v in defaults.items() if v is not None} | dict(options)
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}


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


def checked_options(
    kind: str,
    name: str,
    make: Callable[..., Any],
    options: Mapping[str, Any],
    supplied: Iterable[str],
    others: Iterable[str] = (),
) -> dict[str, Any]:
    """Return `options` converted by the annotations of the factory's parameters. Raises ConfigError as `check` does."""
    plugin, known = f"{kind} {name!r}", options_of(make, supplied)
    problems = [
        f"{plugin} has no option {key!r}{closest(key, known, others)}" for key in options if key not in known
    ]
    parameters = inspect.signature(make).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        problems += [
            f"{plugin}: its function must take the argument {key!r}, found ({', '.join(parameters)})"
            for key in supplied
            if key not in parameters
        ]
    model, valid = (
        _options_model(make, name, tuple(supplied)),
        {k: v for k, v in options.items() if k in known},
    )
    try:
        values = model.model_validate(valid)
    except pydantic.ValidationError as error:
        problems += [_problem(plugin, detail) for detail in error.errors()]
    problems += [
        f"{plugin}, option {key!r}: {fault}"
        for key, value in valid.items()
        if key != "seed" and value != known[key].default and (fault := _out_of_range(value))
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return {k: getattr(values, k) for k in options}


def _problem(plugin: str, detail: Mapping[str, Any]) -> str:
    """Return the message for an error of pydantic."""
    option = ".".join(map(str, detail["loc"]))
    if detail["type"] == "missing":
        return f"{plugin} needs the option {option!r}: it is a parameter of its function, without a default"
    message = in_words(detail["msg"]).removeprefix("Value error, ")
    return f"{plugin}, option {option!r}: {message}, found {shown(detail['input'])}"


def _out_of_range(value: Any) -> str:
    """Return the fault of a number with which arithmetic would overflow or underflow; "" for other values."""
    if isinstance(value, Mapping):
        return next(filter(None, map(_out_of_range, value.values())), "")
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_out_of_range, value)), "")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value == 0:
        return ""
    if isinstance(value, int):
        return (
            "" if abs(value) < 2**31 else f"expected a whole number below 2^31 in size, found {shown(value)}"
        )
    if not math.isfinite(value):
        return f"expected a finite number, found {value!r}"
    least, most = SIZES
    if least <= abs(value) <= most:
        return ""
    return f"expected a number that is 0, or from {least:g} to {most:g} in size, found {value!r}"


@cache
def _options_model(
    make: Callable[..., Any], name: str, supplied: tuple[str, ...]
) -> type[pydantic.BaseModel]:
    """Return the model that checks a factory's options; cached, because making it is slow."""
    hints = inspect.get_annotations(_without_return(make), eval_str=True)
    fields: dict[str, Any] = {
        n: (hints.get(n, Any), ... if p.default is p.empty else p.default)
        for n, p in options_of(make, supplied).items()
    }
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    return pydantic.create_model(f"{name}_options", __config__=config, **fields)


def smaller_is_better(metric: str) -> bool:
    """Return whether smaller values of a metric are better, which its file states by `SMALLER_IS_BETTER = True`."""
    try:
        module = sys.modules[factory("metric", metric).__module__]
    except ConfigError:  # not a metric, but another column of a frame
        return False
    return bool(getattr(module, "SMALLER_IS_BETTER", False))


def number_of(metric: str, value: Any) -> float:
    """Return the value that a metric returned as a float. Raises RunError if it is no number."""
    import numpy as np  # not needed to list plug-ins

    if np.ndim(value) or not isinstance(value, (int, float, np.number, np.bool_)):
        fault = f"an array of shape {list(np.shape(value))}" if np.ndim(value) else type(value).__name__
        raise RunError(f"metric {metric!r}: expected a number, found {fault}")
    return float(value)


def _without_return(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with the annotations of a factory's parameters, without that of its return value.

    The latter may name torch, which reading a configuration should not import.
    """
    if not inspect.isfunction(make):
        return make
    twin = types.FunctionType(make.__code__, make.__globals__)
    twin.__annotations__ = {n: a for n, a in make.__annotations__.items() if n != "return"}
    return twin


def sources(plugins: Iterable[str]) -> dict[str, str]:
    """Return the text of each file that names of plug-ins refer to, by its path, for `provide` in another process."""
    paths = {where for where, _, _ in (name.rpartition(":") for name in plugins) if where.endswith(".py")}
    return {path: Path(path).read_text(encoding="utf-8") for path in sorted(paths)}


def provide(texts: Mapping[str, str]) -> None:
    """Use the texts of `sources` in place of the files at their paths, unless this process has equal files."""
    for where, text in texts.items():
        path = Path(where)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_text(text, encoding="utf-8")
            _provided[where] = _from_file(copy)


def _elsewhere(kind: str, name: str) -> Callable[..., Any]:
    if os.environ.get(ONLY_SHIPPED, "0") not in ("", "0"):
        raise ConfigError(f"{kind} {name!r} is code that fedsim does not ship, and {ONLY_SHIPPED} refuses it")
    where, _, member = name.rpartition(":")
    if not where.endswith(".py"):
        _installed.add(where)
    module = _provided.get(where) or _opened(kind, name, where)
    make = _member(module, member, kind, name)
    if not where.endswith(".py"):
        _check_returns(make, kind, name)
    return make


def _check_returns(make: Callable[..., Any], kind: str, name: str) -> None:
    """Raise ConfigError for functions that are no plug-ins; else a configuration could call `os.system`."""
    returned = make if isinstance(make, type) else getattr(make, "__annotations__", {}).get("return")
    if isinstance(returned, str):
        classes = {returned.rpartition(".")[2]}
    else:
        classes = {c.__name__ for c in getattr(returned, "__mro__", ())}
    if PRODUCTS[kind] not in classes:
        raise ConfigError(
            f"{kind} {name!r}: expected a function whose annotation says that it returns a {PRODUCTS[kind]}, "
            f"found {returned!r}"
        )


def _opened(kind: str, name: str, where: str) -> Any:
    """Import the module or file of a plug-in. Raises ConfigError with the fault and its line."""
    try:
        return _imported(where)
    except Error:
        raise
    except BaseException as error:  # a user's module may raise anything
        if not isinstance(error, Exception) and not _ends_the_process(error):
            raise
        plain_message = isinstance(error, (ImportError, OSError, SyntaxError))
        message = str(error) if plain_message else _with_type(error)
        raise ConfigError(f"cannot import the {kind} {name!r}: {message}{line_of(error)}") from error


@contextmanager
def contained(whose: str = "") -> Iterator[None]:
    """Raise RunError if a plug-in raises a BaseException such as SystemExit, which would end the process.

    Args:
        whose: the name of the plug-in in the message. If it is given, only the plug-in runs in the body, and any
            SystemExit is the plug-in's.
    """
    try:
        yield
    except BaseException as error:
        exits = whose != "" and isinstance(error, SystemExit)
        if isinstance(error, Exception) or not (exits or _ends_the_process(error)):
            raise
        prefix = f"{whose}: " if whose else ""
        raise RunError(
            f"{prefix}{_with_type(error)}{line_of(error)}: a plug-in may end a run by an Exception alone"
        ) from error


def _with_type(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _ends_the_process(error: BaseException) -> bool:
    """Return whether a plug-in raised this BaseException, which is not the case for a real Ctrl-C within one."""
    root = _root(error)
    if not line_of(error) or type(root).__module__.partition(".")[0] == "fedsim":
        return False
    if not isinstance(root, KeyboardInterrupt):
        return True
    *_, last = _tracebacks(root)
    ours = str(last.tb_frame.f_globals.get("__name__")).startswith("fedsim.")
    return not ours and last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _root(error: BaseException) -> BaseException:
    """Return the first cause of an error: SimPy raises copies of the errors of processes."""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error


def _tracebacks(error: BaseException) -> Iterator[types.TracebackType]:
    tb = error.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def line_of(error: BaseException) -> str:
    """Return the last line of a plug-in's file in the traceback of an error, as ` (file, line n)`, or "".

    It is empty for a syntax error, whose message has the line.
    """
    if isinstance(error, SyntaxError):
        return ""
    lines = [
        (Path(tb.tb_frame.f_code.co_filename).name, tb.tb_lineno)
        for through in (error, _root(error))
        for tb in _tracebacks(through)
        if (module := str(tb.tb_frame.f_globals.get("__name__"))).startswith(_PREFIX) or module in _installed
    ]
    return f" ({lines[-1][0]}, line {lines[-1][1]})" if lines else ""


class _TextLoader(SourceFileLoader):
    """Compiles a file each time: cached bytecode is matched by second and size, which an edit may not change."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Raise OSError, so that no cached bytecode is used."""
        raise OSError


def _imported(where: str) -> Any:
    return _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file, seen from {Path.cwd()}")
    qualified = f"{_PREFIX}{path.resolve().as_posix().replace('/', '_').removesuffix('.py')}"
    if qualified in sys.modules:
        return sys.modules[qualified]
    spec = importlib.util.spec_from_file_location(qualified, path, loader=_TextLoader(qualified, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[qualified]
        raise
    return module


def _member(module: Any, member: str, kind: str, name: str) -> Callable[..., Any]:
    value = getattr(module, member, None)
    if not callable(value):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and not n.startswith("_")]
        where = name.rpartition(":")[0] or module.__name__
        raise ConfigError(f"{kind} {name!r}: {where} has no function {member!r}{closest(member, functions)}")
    return value  # type: ignore[no-any-return]
