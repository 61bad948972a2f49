"""Finding plug-ins: the module's name is the plug-in's name, and its factory has the same name.

`fedfv` in the folder of rules is `algorithms/fedfv.py: fedfv(...)`. Code that lives elsewhere is named
`package.module:factory` or `path/to/file.py:factory`. There is no registry to edit.

A name with a colon is code: who runs a configuration of others runs what it names. `FEDSIM_ONLY_SHIPPED=1` refuses it.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pydantic
import pydantic_core

from fedsim import idle
from fedsim.errors import ConfigError, Error, RunError, closest, in_words
from fedsim.errors import found as as_found

PACKAGES = {
    "rule": "algorithms",
    "wrapper": "algorithms.wrappers",
    "client": "algorithms.clients",
    "selector": "algorithms.selection",
    "scenario": "scenarios",
    "importer": "scenarios.importers",
    "task": "fedsim.tasks",
    "model": "fedsim.models",
    "partitioner": "fedsim.partitioners",
    "metric": "analysis.metrics",
    "adversary": "fedsim.adversaries",
}

_provided: dict[str, Any] = {}
"""Modules that were made from texts, by the path that names them."""
_installed: set[str] = set()
"""Installed modules that plug-ins were named by, which are no files elsewhere."""

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
"""What the factory of a kind returns by its annotation (a metric is itself the function)."""
SIZES = (1e-30, 1e30)
"""Of an option that is no whole number, and not 0: float32 has hardly more."""
_CHECKED = ("task", "client", "selector", "adversary")
"""Kinds whose products are checked by the names of their classes; those who build the others say more."""
_PREFIX = "fedsim_plugin_"
"""What the names of modules begin with that were read from files elsewhere."""
ONLY_SHIPPED = "FEDSIM_ONLY_SHIPPED"
"""The environment variable that refuses all plug-ins but those of this installation's own folders."""


def names(kind: str) -> list[str]:
    """List the plug-ins of a kind (a key of `PACKAGES`), sorted; modules that start with `_` are private."""
    package = importlib.import_module(PACKAGES[kind])
    found = pkgutil.iter_modules(package.__path__)
    return sorted(m.name for m in found if not m.ispkg and not m.name.startswith("_"))


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return the factory of a plug-in. Raises ConfigError that suggests the closest name."""
    if ":" in name:
        return _elsewhere(kind, name)
    if name.endswith(".py"):
        raise ConfigError(
            f"{kind} {name!r}: expected the function in the file as well, such as '{name}:{Path(name).stem}'"
        )
    imported = getattr(sys.modules.get(f"{PACKAGES[kind]}.{name}"), name, None)
    if callable(imported):  # looking through the folder takes as long as reading the rest of a configuration
        return imported  # type: ignore[no-any-return]
    if name not in names(kind):
        raise ConfigError(f"there is no {kind} {name!r}{closest(name, names(kind))}")
    return _member(_opened(kind, name, f"{PACKAGES[kind]}.{name}"), name, kind, name)


def build(kind: str, name: str, options: Mapping[str, Any], **given: Any) -> Any:
    """Call a plug-in's factory with `options` from a config (checked against its signature) and `given` values.

    Raises ConfigError that names each unknown option, each wrong type and the closest known option.
    """
    make = factory(kind, name)
    checked = checked_options(kind, name, make, options, given)
    if lines := [
        idle.refusal(f"{kind} {name!r}, option {place!r}", lacks)
        for place, lacks in idle_options(kind, name, options, given)
        if lacks
    ]:
        raise ConfigError("\n".join(lines))
    with contained(f"{kind} {name!r}"):
        made = make(**checked, **given)
    if kind in _CHECKED and PRODUCTS[kind] not in (c.__name__ for c in type(made).__mro__):
        raise ConfigError(
            f"{kind} {name!r} returned {type(made).__name__}, expected an instance of {PRODUCTS[kind]}"
        )
    if kind == "partitioner" and not callable(made):
        raise ConfigError(f"partitioner {name!r} returned {type(made).__name__}, expected a function")
    return made


def summary(kind: str, name: str) -> str:
    """Return the first line of a plug-in's docstring."""
    return (inspect.getdoc(factory(kind, name)) or "").strip().split("\n")[0]


def options_of(make: Callable[..., Any], given: Iterable[str] = ()) -> dict[str, inspect.Parameter]:
    """Return the factory's parameters that a config may set: all but those in `given`."""
    parameters = inspect.signature(make).parameters
    hidden = set(given)
    return {
        n: p
        for n, p in parameters.items()
        if n not in hidden and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }


def check(
    kind: str, name: str, options: Mapping[str, Any], given: Iterable[str], beside: Iterable[str] = ()
) -> None:
    """Raise ConfigError if there is no such plug-in or it would not take these options; `given` are set elsewhere.

    `beside` are the keys that stand beside its options whatever the plug-in, of which one may have been meant.
    """
    checked_options(kind, name, factory(kind, name), options, given, beside)


def idle_options(
    kind: str, name: str, options: Mapping[str, Any], given: Iterable[str]
) -> list[tuple[str, str]]:
    """Return the options that need another one, and what each lacks to have an effect: see `fedsim.idle.given`."""
    make = factory(kind, name)
    known = {key: value for key, value in options.items() if key in options_of(make, given)}
    return list(idle.given(_options_model(make, name, tuple(given)).model_validate(known)))


def resolved(kind: str, name: str, options: Mapping[str, Any], given: Iterable[str]) -> dict[str, Any]:
    """Return the options with the defaults of those not named; defaults of None, or that TOML lacks, are left out."""
    known = options_of(factory(kind, name), given)
    defaults = {n: plain(p.default) for n, p in known.items() if p.default is not p.empty}
    given_or_not = {n: v for n, v in defaults.items() if v is not None} | dict(options)
    return {n: list(v) if isinstance(v, tuple) else v for n, v in given_or_not.items()}


def plain(value: Any) -> Any:
    """Return an option as TOML can say it: a path as text, a set as a list; None for what it cannot, such as code."""
    try:
        found = pydantic_core.to_jsonable_python(value, exclude_none=True)
    except ValueError:
        return None
    return None if _holds_none(found) else found


def _holds_none(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(_holds_none, parts))


def checked_options(
    kind: str,
    name: str,
    make: Callable[..., Any],
    options: Mapping[str, Any],
    given: Iterable[str],
    beside: Iterable[str] = (),
) -> dict[str, Any]:
    """Check and convert `options` by the annotations of the factory's parameters."""
    known = options_of(make, given)
    problems = [
        f"{kind} {name!r} has no option {key!r}{closest(key, known, beside)}"
        for key in options
        if key not in known
    ]
    parameters = inspect.signature(make).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        problems += [
            f"{kind} {name!r}: its function must take the argument {key!r}, found ({', '.join(parameters)})"
            for key in given
            if key not in parameters
        ]
    try:
        values = _options_model(make, name, tuple(given)).model_validate(
            {k: v for k, v in options.items() if k in known}
        )
    except pydantic.ValidationError as error:
        for found in error.errors():
            option = ".".join(map(str, found["loc"]))
            if found["type"] == "missing":
                problems.append(
                    f"{kind} {name!r} needs the option {option!r}: it is a parameter of its function, without a default"
                )
                continue
            what = in_words(found["msg"]).removeprefix("Value error, ")
            problems.append(f"{kind} {name!r}, option {option!r}: {what}, found {as_found(found['input'])}")
    problems += [
        f"{kind} {name!r}, option {key!r}: {wrong}"
        for key, value in options.items()
        if key in known and key != "seed" and value != known[key].default and (wrong := _out_of_range(value))
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return {k: getattr(values, k) for k in options}


def _out_of_range(value: Any) -> str:
    """Say what no option may be: a number with which arithmetic would overflow, or vanish; nothing if it may."""
    if isinstance(value, Mapping):
        return next(filter(None, map(_out_of_range, value.values())), "")
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_out_of_range, value)), "")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value == 0:
        return ""
    if isinstance(value, int):
        return (
            ""
            if abs(value) < 2**31
            else f"expected a whole number below 2^31 in size, found {as_found(value)}"
        )
    if not math.isfinite(value):
        return f"expected a finite number, found {value!r}"
    least, most = SIZES
    if least <= abs(value) <= most:
        return ""
    return f"expected a number that is 0, or from {least:g} to {most:g} in size, found {value!r}"


@cache
def _options_model(make: Callable[..., Any], name: str, given: tuple[str, ...]) -> type[pydantic.BaseModel]:
    """Return what checks a factory's options; making it takes milliseconds."""
    hints = inspect.get_annotations(_unreturning(make), eval_str=True)
    fields: dict[str, Any] = {
        n: (hints.get(n, Any), ... if p.default is p.empty else p.default)
        for n, p in options_of(make, given).items()
    }
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    return pydantic.create_model(f"{name}_options", __config__=config, **fields)


def smaller_is_better(metric: str) -> bool:
    """Say whether smaller values of a metric are the better ones: its file says so by `SMALLER_IS_BETTER = True`."""
    try:
        module = sys.modules[factory("metric", metric).__module__]
    except ConfigError:  # no metric, such as another column of a frame
        return False
    return bool(getattr(module, "SMALLER_IS_BETTER", False))


def number_of(metric: str, found: Any) -> float:
    """Return what the metric of this name returned, a number. Raises RunError."""
    import numpy as np  # not needed to list plug-ins

    if np.ndim(found) or not isinstance(found, (int, float, np.number, np.bool_)):
        what = f"an array of shape {list(np.shape(found))}" if np.ndim(found) else type(found).__name__
        raise RunError(f"metric {metric!r}: expected a number, found {what}")
    return float(found)


def _unreturning(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return something with the annotations of a factory's parameters alone.

    That of what it makes may name torch, which a factory may import when it is called: so that a configuration is read
    without it.
    """
    if not inspect.isfunction(make):
        return make
    twin = types.FunctionType(make.__code__, make.__globals__)
    twin.__annotations__ = {n: a for n, a in make.__annotations__.items() if n != "return"}
    return twin


def sources(plugins: Iterable[str]) -> dict[str, str]:
    """Return the text of each file that plug-ins are named by, by the path in the name, to `provide` elsewhere."""
    paths = {where for where, _, _ in (name.rpartition(":") for name in plugins) if where.endswith(".py")}
    return {path: Path(path).read_text(encoding="utf-8") for path in sorted(paths)}


def provide(texts: Mapping[str, str]) -> None:
    """Take the texts of `sources` for the files at their paths, where this process sees none or others."""
    for where, text in texts.items():
        path = Path(where)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        with tempfile.TemporaryDirectory() as folder:
            beside = Path(folder) / path.name
            beside.write_text(text, encoding="utf-8")
            _provided[where] = _from_file(beside)


def _elsewhere(kind: str, name: str) -> Callable[..., Any]:
    if os.environ.get(ONLY_SHIPPED, "0") not in ("", "0"):
        raise ConfigError(f"{kind} {name!r} is code from elsewhere, and {ONLY_SHIPPED} refuses it")
    where, _, member = name.rpartition(":")
    if not where.endswith(".py"):
        _installed.add(where)
    module = _provided.get(where) or _opened(kind, name, where)
    found = _member(module, member, kind, name)
    if not where.endswith(".py"):
        _check_meant(found, kind, name)
    return found


def _check_meant(found: Callable[..., Any], kind: str, name: str) -> None:
    """Refuse functions of a module that are no plug-ins: else the text of a configuration could call `os.system`."""
    said = found if isinstance(found, type) else getattr(found, "__annotations__", {}).get("return")
    known = (
        {said.rpartition(".")[2]}
        if isinstance(said, str)
        else {c.__name__ for c in getattr(said, "__mro__", ())}
    )
    if PRODUCTS[kind] not in known:
        raise ConfigError(
            f"{kind} {name!r}: expected a function whose annotation says that it returns a {PRODUCTS[kind]}, "
            f"found {said!r}"
        )


def _opened(kind: str, name: str, where: str) -> Any:
    """Import the module or file of a plug-in. Raises ConfigError that says what is wrong with it, and in which line."""
    try:
        return _imported(where)
    except Error:
        raise
    except BaseException as error:  # whatever somebody's own code raises
        if not isinstance(error, Exception) and not _ends_the_process(error):
            raise
        known = isinstance(error, (ImportError, OSError, SyntaxError))
        said = str(error) if known else _said(error)
        raise ConfigError(f"cannot import the {kind} {name!r}: {said}{line_of(error)}") from error


@contextmanager
def contained(whose: str = "") -> Iterator[None]:
    """Raise RunError for what a plug-in raises beyond `Exception`, such as SystemExit: it would end the process.

    whose: the plug-in, for the message; it may be `sys.exit` itself, which has no line of its own.
    """
    try:
        yield
    except BaseException as error:
        exits = whose != "" and isinstance(
            error, SystemExit
        )  # the program's own code raises none in such a call
        if isinstance(error, Exception) or not (exits or _ends_the_process(error)):
            raise
        named = f"{whose}: " if whose else ""
        raise RunError(
            f"{named}{_said(error)}{line_of(error)}: a plug-in may end a run by an Exception alone"
        ) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _ends_the_process(error: BaseException) -> bool:
    """Whether a plug-in raised this, beyond `Exception`; not so a real Ctrl-C in the middle of one."""
    root = _root(error)
    if not line_of(error) or type(root).__module__.partition(".")[0] == "fedsim":
        return False
    if not isinstance(root, KeyboardInterrupt):
        return True
    *_, last = _tracebacks(root)
    ours = str(last.tb_frame.f_globals.get("__name__")).startswith("fedsim.")
    return not ours and last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _root(error: BaseException) -> BaseException:
    """Return what an error was raised from first: SimPy raises a copy of what a process raises."""
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
    """Return the last line of a plug-in's own file that an error went through, in brackets; nothing if there is none.

    A syntax error says its own line.
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
    """Compiles a file's text each time: bytecode is looked up by second and size, which an edit may not change."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Say that there is no bytecode."""
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
    found = getattr(module, member, None)
    if not callable(found):
        known = [
            n for n, value in vars(module).items() if inspect.isfunction(value) and not n.startswith("_")
        ]
        where = name.rpartition(":")[0] or module.__name__
        raise ConfigError(f"{kind} {name!r}: {where} has no function {member!r}{closest(member, known)}")
    return found  # type: ignore[no-any-return]
