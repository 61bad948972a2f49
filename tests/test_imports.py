"""Who may import what: the layers stay apart."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = {
    "timeline",
    "course",
    "server",
    "trainer",
    "actors",
    "local",
    "simulation",
    "setup",
    "history",
    "recorder",
}
PROTOCOLS = {
    "errors",
    "files",
    "units",
    "rng",
    "stack",
    "linalg",
    "trace",
    "scenario",
    "selection",
    "client",
    "plugins",
    "importing",
    "idle",
}


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def modules(root: Path, package: str) -> list[Path]:
    found = sorted((root / package).rglob("*.py"))
    assert len(found) > 20, f"{package} has but {len(found)} modules"
    return found


def fedsim_modules(found: set[str]) -> set[str]:
    return {name.split(".")[1] for name in found if name.startswith("fedsim.")}


def test_ray_is_imported_around_the_processes_alone(root: Path) -> None:
    users = {
        path.relative_to(root).as_posix()
        for package in ("fedsim", "scenarios", "algorithms", "analysis")
        for path in modules(root, package)
        if any(name.split(".")[0] == "ray" for name in imports(path))
    }
    assert users == {"fedsim/actors.py", "fedsim/cluster.py", "fedsim/hosts.py", "fedsim/lean_ray.py"}


def test_simpy_is_imported_by_scenarios_alone(root: Path) -> None:
    for package in ("fedsim", "algorithms", "analysis"):
        for path in modules(root, package):
            assert not any(name.split(".")[0] == "simpy" for name in imports(path)), path


@pytest.mark.parametrize("package", ["algorithms", "scenarios"])
def test_plug_ins_see_only_the_protocols(root: Path, package: str) -> None:
    for path in modules(root, package):
        assert fedsim_modules(imports(path)) <= PROTOCOLS, path


def test_the_modules_that_the_layers_name_are_there(root: Path) -> None:
    """A name that is none keeps nothing apart."""
    there = {path.stem for path in (root / "fedsim").glob("*.py")}
    assert there >= ENGINE | PROTOCOLS


def test_analysis_never_imports_the_engine(root: Path) -> None:
    for path in modules(root, "analysis"):
        assert not fedsim_modules(imports(path)) & ENGINE, path


def test_public_names_are_exactly_what_can_be_imported() -> None:
    import fedsim

    for name in fedsim.__all__:
        assert getattr(fedsim, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedsim.nothing


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import fedsim", {"torch", "ray", "pandas", "simpy", "matplotlib"}),
        ("import fedsim.cli", {"torch", "ray", "numpy", "pyarrow", "simpy", "matplotlib"}),
        ("import fedsim.simulation", {"ray", "simpy", "matplotlib", "torch._dynamo", "cvxpy"}),
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
        "import sys; from fedsim.config import load; import fedsim.cli, fedsim.materials; "
        "load('examples/oort_fedbuff.toml'); print({'torch', 'scipy', 'ray'} & set(sys.modules))"
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
        "import sys; from fedsim.cli import main\n"
        "try:\n"
        f"    main(['{command}', 'examples/quickstart.toml', *{options!r}])\n"
        "finally:\n"
        "    print({'pandas', 'matplotlib', 'torch._dynamo', 'cvxpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_study_begins_its_processes_before_it_imports_torch(root: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from fedsim import study_pool; from fedsim.cli import main\n"
        "study_pool.begin_imports = lambda: sys.exit(8 if 'torch' in sys.modules else 7)\n"
        f"main(['study', 'examples/studies/smallest.toml', '--out', {str(tmp_path)!r}, '--jobs', '2'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
