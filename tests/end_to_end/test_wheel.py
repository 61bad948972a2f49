"""Both distributions are fit for the index; the wheel works where a user's own files have the names of its parts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from fedsim import __version__

FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "MANIFEST.in")
PARTS = ("analysis", "algorithms", "scenarios")
SCRIPT = """
import fedsim
from fedsim import analysis

configs = fedsim.load_config("quickstart.toml", ["stop.steps=2"])
results = fedsim.simulate(configs, workers=0, out="from-a-script", device="cpu")
print(fedsim.__file__, analysis.open_run(results[0].folder).manifest["status"])
"""

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]  # one process builds it


@pytest.fixture(scope="module")
def source(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a clone holds, in which building leaves no trace in this one."""
    copy = tmp_path_factory.mktemp("source")
    for name in FILES:
        shutil.copy(root / name, copy / name)
    (copy / "tests").mkdir()
    shutil.copy(root / "tests" / "test_imports.py", copy / "tests")  # setuptools would take it along
    for name in ("fedsim", *PARTS):
        shutil.copytree(root / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def distributions(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it alone."""
    pytest.importorskip("build.env", reason="the package build is not installed: pip install build")
    folder = tmp_path_factory.mktemp("dist")
    made = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(made, check=True, timeout=180, capture_output=True)
    [archive], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return archive, wheel


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    made = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*made, "--wheel-dir", str(source / "dist"), str(source)], check=True, timeout=120)
    [found] = (source / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and, on its path, the packages that it needs; editable installs there are none."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    Path(paths["purelib"], "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    installed = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--no-deps"]
    subprocess.run([*installed, "--no-index", str(wheel)], check=True, timeout=120)
    return Path(paths["scripts"], "python")


@pytest.fixture
def place(root: Path, tmp_path: Path) -> Path:
    """A folder of a user, with files that have the names of our packages."""
    for name in PARTS:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('this {name} is the user\\'s own')\n")
    shutil.copy(root / "examples" / "quickstart.toml", tmp_path)
    return tmp_path


def test_the_wheel_has_one_name_and_all_files(wheel: Path, root: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert wheel.name.startswith("fedsim_dynamics-")
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"fedsim"}
    for folder in ("fedsim", *PARTS):
        for path in (root / folder).rglob("*"):
            if path.suffix in (".py", ".pyi", ".toml", ".html", ".css", ".md", ".typed") and path.is_file():
                inside = path.relative_to(root).as_posix()
                assert (inside if folder == "fedsim" else f"fedsim/{inside}") in names


def test_the_index_would_accept_both_distributions(distributions: tuple[Path, Path]) -> None:
    pytest.importorskip("twine", reason="the package twine is not installed: pip install twine")
    checked = [sys.executable, "-m", "twine", "--no-color", "check", "--strict", *map(str, distributions)]
    done = subprocess.run(checked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


def test_the_source_distribution_makes_the_same_wheel(distributions: tuple[Path, Path], wheel: Path) -> None:
    archive, from_source = distributions
    assert archive.name == f"fedsim_dynamics-{__version__}.tar.gz"
    hashes = [
        {m.filename: m.CRC for m in zipfile.ZipFile(path).infolist() if ".dist-info/" not in m.filename}
        for path in (wheel, from_source)
    ]
    assert hashes[0] == hashes[1]


def test_the_source_distribution_holds_the_package_and_no_part_of_the_tests(
    distributions: tuple[Path, Path], root: Path
) -> None:
    with tarfile.open(distributions[0]) as archive:
        top = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"fedsim", *FILES} <= top
    assert not top & {"tests", "build", "runs", *PARTS}
    said = " ".join((root / "CONTRIBUTING.md").read_text().split())
    assert "source distribution holds the package alone" in said


def test_a_script_works_beside_files_of_the_same_names(python: Path, place: Path) -> None:
    (place / "mine.py").write_text(SCRIPT)
    done = subprocess.run([python, "mine.py"], cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    where, status = done.stdout.split()[-2:]
    assert Path(where).is_relative_to(python.parent.parent)
    assert status == "done"


def test_the_command_works_beside_files_of_the_same_names(python: Path, place: Path) -> None:
    command = [python.parent / "fedsim", "run", "quickstart.toml", "--set", "stop.steps=2", "--workers", "0"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(list((place / "runs").glob("*/*/manifest.json"))) == 3
