"""SECURITY.md, promise 1: data are never run."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim.common.errors import TraceError
from fedsim.worlds.importer import Source, build_importer
from fedsim.worlds.trace import read_trace
from received import MARK, touching

PACKAGES = ("fedsim", "algorithms", "scenarios", "analysis")


class Calls:
    """A value whose pickle calls a function when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


BOMBS: dict[str, Callable[[], bytes]] = {
    "system": lambda: pickle.dumps(Calls(__import__("os").system, f"touch {MARK}")),
    "system-in-a-dict": lambda: pickle.dumps({1: {"x": Calls(__import__("os").system, f"touch {MARK}")}}),
    "oldest-protocol": lambda: pickle.dumps(Calls(__import__("os").system, f"touch {MARK}"), protocol=0),
    "exec": lambda: pickle.dumps(Calls(exec, touching())),
    "eval": lambda: pickle.dumps(Calls(eval, f"open({MARK!r}, 'w')")),
    "open": lambda: pickle.dumps(Calls(open, MARK, "w")),
    "nested": lambda: pickle.dumps(Calls(getattr, Calls(__import__, "os"), "system")),
    "getattr-chain": lambda: b"c__builtin__\ngetattr\n(c__builtin__\n__import__\nS'__call__'\ntR(S'os'\ntR.",
    "inst": lambda: b"(S'touch pwned'\nios\nsystem\n.",
    "obj": lambda: b"(cos\nsystem\nS'touch pwned'\no.",
    "newobj": lambda: b"\x80\x02csubprocess\nPopen\n(]X\x05\x00\x00\x00touchat\x81.",
    "dotted-stack-global": lambda: b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0btouch pwned\x85R.",
    "numpy-object": lambda: b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.",
    "reconstruct": lambda: b"ccopy_reg\n_reconstructor\n(cos\nsystem\nc__builtin__\nobject\nNtR.",
    "persistent": lambda: b"Pos.system\n.",
    "extension": lambda: b"\x80\x02\x82\x01.",
    "build": lambda: b"}(S'__class__'\ncos\nsystem\nu}b.",
    "huge-memo": lambda: b"\x80\x04}r\xff\xff\xff\x7f.",
    "huge-frame": lambda: b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",
    "huge-text": lambda: b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.",
    "list-in-itself": lambda: b"]q\x00h\x00a.",
    "unhashable-key": lambda: b"}(]S'x'\nu.",
}


@pytest.mark.parametrize("importer", ["device_spec", "fedscale_capacity", "fedscale_availability"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_pickle_calls_nothing(bomb: str, importer: str, here: Path) -> None:
    source = Source(Path("folder/devices.pkl"), BOMBS[bomb]())
    found = build_importer(importer, {})
    found.recognises(source)
    with pytest.raises(TraceError, match=r"devices\.pkl"):
        found.read([source])
    assert not any(here.iterdir())


def test_the_bombs_are_bombs(here: Path) -> None:
    """The same bytes do go off in Python's own unpickler, or the test above shows nothing."""
    pickle.loads(BOMBS["exec"]())
    assert (here / MARK).exists()


def test_an_arrow_extension_type_is_not_unpickled(here: Path) -> None:
    kept = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": BOMBS["exec"]()}
    table = pa.table([pa.array([1])], schema=pa.schema([pa.field("client", pa.int64(), metadata=kept)]))
    pq.write_table(table, here / "x.parquet")
    with pytest.raises(TraceError):
        read_trace(here / "x.parquet")
    assert not (here / MARK).exists()


FORBIDDEN = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cloudpickle.load",
    "cloudpickle.loads",
    "marshal.load",
    "marshal.loads",
    "shelve.open",
    "joblib.load",
    "torch.load",
    "torch.hub.load",
    "np.load",
    "numpy.load",
    "pd.read_pickle",
    "yaml.load",
    "yaml.full_load",
    "yaml.unsafe_load",
    "tarfile.open",
    "shutil.unpack_archive",
}


@cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Return every call in a file, with the dotted name of what is called."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]


def product(root: Path) -> list[Path]:
    found = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    assert len(found) > 100
    return found


FROM_MEMORY = ("fedsim/studies/workers.py", "pickle.loads")
"""The one exception, stated in SECURITY.md: what a process hands to one that it starts, never a file."""


def test_no_file_of_the_product_runs_what_it_reads(root: Path) -> None:
    excepted = []
    for path in product(root):
        for name, call in calls(path):
            shell = any(k.arg == "shell" for k in call.keywords)
            assert not shell, f"{path}:{call.lineno}: a shell"
            if (path.relative_to(root).as_posix(), name) == FROM_MEMORY:
                excepted.append(name)
                continue
            assert name not in FORBIDDEN or safely_loaded(name, call), f"{path}:{call.lineno}: {name}"
    assert len(excepted) == 1


def safely_loaded(name: str, call: ast.Call) -> bool:
    """Tell whether NumPy is told to refuse pickles."""
    says = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
    return name in ("np.load", "numpy.load") and says.get("allow_pickle") is False


def test_nothing_but_the_terminal_writes_to_the_terminal(root: Path) -> None:
    for path in product(root):
        if "templates" in path.parts:  # files of a user's own, which no process of fedsim runs
            continue
        for name, call in calls(path):
            fixed = all(isinstance(argument, ast.Constant) for argument in call.args)
            if path.name not in ("terminal.py", "progress.py") and not (name == "print" and fixed):
                assert name not in ("print", "typer.echo", "click.echo", "Console"), f"{path}:{call.lineno}"


def test_only_plugins_import_by_name(root: Path) -> None:
    """One place decides which code a configuration may name; the others name parts of fedsim."""
    allowed = {
        "fedsim/common/extras.py",  # an optional package that the caller names
        "fedsim/plugins/factories.py",
        "fedsim/plugins/kinds.py",
        "fedsim/plugins/loading.py",
        "fedsim/cli/trace/export.py",  # one of the three formats that its option accepts
        "fedsim/__init__.py",
        "fedsim/execution/cluster.py",
        "analysis/__init__.py",
    }
    for path in product(root):
        for name, call in calls(path):
            if name.startswith("importlib.") and "resources" not in name and "util.find_spec" not in name:
                constant = call.args and isinstance(call.args[0], ast.Constant)
                assert constant or path.relative_to(root).as_posix() in allowed, f"{path}:{call.lineno}"
