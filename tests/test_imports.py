"""Who may import what: the layers stay apart."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOMS = (
    "common",
    "plugins",
    "worlds",
    "scenarios",
    "data",
    "models",
    "training",
    "server",
    "engine",
    "algorithms",
    "execution",
    "config",
    "records",
    "analysis",
    "runs",
    "invariants",
    "studies",
    "integrations",
    "cli",
)
"""Folders of `fedsim` and the packages beside it: a room imports from rooms before it alone."""
PACKAGES = ("fedsim", "scenarios", "algorithms", "analysis")
MOST = 16
"""Modules in a room; folders of plug-ins have as many as there are plug-ins."""
PLUG_INS = (
    "attacks", "clients", "importers", "metrics", "models", "partitioners", "plots", "selection", "tasks",
    "wrappers", "algorithms", "scenarios",
)  # fmt: skip


pytestmark = pytest.mark.xdist_group("imports")  # one process parses the files


def modules(root: Path, package: str) -> list[Path]:
    found = sorted((root / package).rglob("*.py"))
    assert len(found) > 20, f"{package} has but {len(found)} modules"
    return found


def imports(path: Path) -> set[str]:
    return {name for name, _ in imported(path)}


@cache
def imported(path: Path) -> tuple[tuple[str, int], ...]:
    """Return what a file imports, for types alone included, and the line."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            yield node.module, node.lineno


@pytest.fixture(scope="module")
def arrows(root: Path) -> dict[tuple[str, str], str]:
    """By the importing and the imported module: file and line."""
    files = {
        name_of(path.relative_to(root)): path
        for package in PACKAGES
        for path in modules(root, package)
        if path != root / package / "__init__.py"
    }
    return {
        (module, name): f"{path.relative_to(root)}:{line}"
        for module, path in files.items()
        for name, line in imported(path)
        if name in files and name != module
    }


def name_of(path: Path) -> str:
    """Return the module that a file is imported as: the packages beside `fedsim` are linked into it."""
    parts = (path.parent if path.stem == "__init__" else path.with_suffix("")).parts
    return ".".join(parts if parts[0] == "fedsim" else ("fedsim", *parts))


def room(module: str) -> str:
    """Return the room that a module is in, or the name of one that is in none."""
    return module.split(".")[1]


def test_packages_beside_fedsim_are_imported_as_parts_of_it(root: Path) -> None:
    """A user's own `analysis.py` would else be taken for ours."""
    for package in PACKAGES[1:]:
        assert (root / "fedsim" / package).resolve() == root / package
    for folder in (*PACKAGES, "tests", "benchmarks", "examples"):
        for path in (root / folder).rglob("*.py"):
            wrong = [
                f"{path}:{line}: {name}"
                for name, line in imported(path)
                if name.split(".")[0] in PACKAGES[1:]
            ]
            assert not wrong, wrong


def test_no_room_imports_from_a_room_above(arrows: dict[tuple[str, str], str]) -> None:
    upward = [
        f"{where}: {module} imports {name}"
        for (module, name), where in arrows.items()
        if room(module) in ROOMS and ROOMS.index(room(name)) > ROOMS.index(room(module))
    ]
    assert not upward, "\n".join(upward)


def test_no_files_import_each_other(arrows: dict[tuple[str, str], str]) -> None:
    graph: dict[str, list[str]] = {}
    for module, name in arrows:
        graph.setdefault(module, []).append(name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]
        said = [f"{arrows[pair]}: {pair[0]} imports {pair[1]}" for pair in pairwise(circle)]
        raise AssertionError("\n".join(said)) from None


def test_rooms_are_small_enough_to_look_through(root: Path) -> None:
    sizes = {
        str(folder.relative_to(root)): len([path for path in folder.glob("*.py") if path.stem != "__init__"])
        for package in PACKAGES
        for folder in [root / package, *(root / package).rglob("*/")]
        if folder.name not in PLUG_INS
    }
    assert len(sizes) > 10
    assert not {name: size for name, size in sizes.items() if size > MOST}


def test_ray_is_imported_around_the_processes_alone(root: Path) -> None:
    users = {
        path.relative_to(root).as_posix()
        for package in ("fedsim", "scenarios", "algorithms", "analysis")
        for path in modules(root, package)
        if any(name.split(".")[0] == "ray" for name in imports(path))
    }
    assert users == {
        "fedsim/execution/ray_trainer.py",
        "fedsim/execution/cluster.py",
        "fedsim/execution/ray_actors.py",
    }


def test_no_private_name_of_a_dependency_is_used(root: Path) -> None:
    """An upgrade may change them without a word. Private names that our own files define are ours."""
    trees = {path: ast.parse(path.read_text()) for package in PACKAGES for path in modules(root, package)}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    ours = {"_field_defaults"}
    for _, node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            ours.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            ours.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            ours.add(node.id)
    private = re.compile(r"_[a-zA-Z]")
    for path, node in nodes:
        where = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute) and private.match(node.attr):
            public = isinstance(node.value, ast.Name) and (node.value.id, node.attr) == ("os", "_exit")
            assert public or node.attr in ours, f"{where}: {ast.unparse(node)}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            parts = [part for alias in node.names for part in alias.name.split(".")]
            parts += (getattr(node, "module", None) or "").split(".")
            foreign = [part for part in parts if private.match(part)]
            assert not foreign, f"{where}: {foreign}"


def test_simpy_is_imported_by_scenarios_alone(root: Path) -> None:
    for package in ("fedsim", "algorithms", "analysis"):
        for path in modules(root, package):
            assert not any(name.split(".")[0] == "simpy" for name in imports(path)), path


def test_public_names_are_exactly_what_can_be_imported() -> None:
    import fedsim

    for name in fedsim.__all__:
        assert getattr(fedsim, name) is not None
    with pytest.raises(AttributeError, match="fedsim attribute nothing"):
        _ = fedsim.nothing


def test_the_page_lists_the_public_names(root: Path) -> None:
    """A name that leaves the interface has to leave the page, and CHANGELOG says so."""
    import fedsim

    rows = re.findall(r"^\| `(\w+)` \|", (root / "docs" / "api.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(fedsim.__all__)
    for name in fedsim.__all__:
        assert fedsim.__dict__.get(name, getattr(fedsim, name)).__doc__, f"{name} has no docstring"


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import fedsim", {"torch", "ray", "pandas", "simpy", "matplotlib"}),
        ("import fedsim.cli.main", {"torch", "ray", "numpy", "pyarrow", "simpy", "matplotlib"}),
        ("import fedsim.runs.simulate", {"ray", "simpy", "matplotlib", "torch._dynamo", "cvxpy"}),
    ],
)
def test_starting_does_not_import_what_it_does_not_need(statement: str, absent: set[str]) -> None:
    code = f"{statement}; import sys; print(sorted({absent!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_of_the_package_is_no_module_of_it() -> None:
    """Importing such a module would put it in the place of the function."""
    import fedsim

    modules = {path.stem for path in Path(fedsim.__path__[0]).glob("*.py")}
    assert not modules & set(fedsim.__all__)


def test_a_configuration_is_read_without_torch_and_scipy(root: Path) -> None:
    """They take seconds to import, in which other processes make data and world."""
    code = (
        "import sys; from fedsim.config.load import load_config; import fedsim.cli.main, fedsim.runs.inputs; "
        "load_config('examples/oort_fedbuff.toml'); print({'torch', 'scipy', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_run_does_without_pandas_and_the_compiler(command: str, root: Path, tmp_path: Path) -> None:
    """Arrow imports pandas, half a second, where it converts a column itself; building an optimiser the compiler."""
    options = [
        "--set",
        "stop.steps=3",
        "--out",
        str(tmp_path),
        *(["--workers", "0"] if command == "run" else []),
    ]
    code = (
        "import sys; from fedsim.cli.main import main\n"
        "try:\n"
        f"    main(['{command}', 'examples/quickstart.toml', *{options!r}])\n"
        "finally:\n"
        "    print({'pandas', 'matplotlib', 'torch._dynamo', 'cvxpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_study_begins_its_processes_before_it_imports_torch(root: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from fedsim.studies import workers as study_pool; from fedsim.cli.main import main\n"
        "study_pool.begin_imports = lambda: sys.exit(8 if 'torch' in sys.modules else 7)\n"
        f"main(['study', 'examples/studies/smallest.toml', '--out', {str(tmp_path)!r}, '--jobs', '2'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr


def test_an_editor_finds_the_installed_package_on_the_path(tmp_path: Path) -> None:
    """Editors and type checkers look through `sys.path` alone, without the import hooks of an editable installation."""
    code = "import importlib.machinery as m, sys; print(m.PathFinder.find_spec('fedsim') is not None)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
