"""Change the code in small ways, and see whether a test fails each time: `make mutants MODULE=fedsim/server/server.py`.

Cosmic Ray makes the mutants, pytest collects the tests once. A fork of that process then has one mutant each: the code
of the functions is exchanged in place, and the tests that run the changed line follow, quick ones first, until one
fails.
At each place one of the possible mutants is tried, drawn by seed; a longer sample begins with the shorter one.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
import json
import math
import os
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from itertools import islice, zip_longest
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from cosmic_ray.exceptions import CosmicRayTestingException

from mutators import Makers, places

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fedsim", "algorithms", "analysis", "scenarios")
LEFT_OUT = "not slow and not ray and not gpu"
ACCEPTED = Path(__file__).with_suffix(".toml")
FUNCTIONS: dict[str, list[FunctionType]] = defaultdict(list)  # by the file that defines them
_UNFIT: dict[tuple[str, str], bool] = {}


@dataclass(frozen=True)
class Mutant:
    """One changed place of a file."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    source: str

    @property
    def key(self) -> str:
        return sha256(f"{self.file}\n{self.source}".encode()).hexdigest()[:16]

    @property
    def module(self) -> str:
        return name_of(self.file)


def name_of(file: str) -> str:
    """Return the module that a file is imported as: the packages beside `fedsim` are linked into it."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return module if module.partition(".")[0] not in PACKAGES[1:] else f"fedsim.{module}"


# ---------------------------------------------------------------- mutants


def drawn(files: list[str], seed: int, lines: dict[str, set[int]] | None = None) -> Iterator[Mutant]:
    """Yield one mutant for each place of the files, the places in an order drawn by seed."""
    found = []
    for file in files:
        source = (ROOT / file).read_text()
        ignored = annotations(source)
        for (line, column), makers in places(source).items():
            if lines is None or line in lines[file]:
                draw = random.Random(f"{seed} {file} {line} {column}")
                fit = [m for m in makers if (line, column) not in ignored or m[0] == "NumberReplacer"]
                found.append((draw.random(), file, line, draw.sample(fit, len(fit))))
    for _, file, line, makers in sorted(found, key=lambda place: place[:3]):
        yield from islice(working(file, line, makers), 1)


def working(file: str, line: int, makers: Makers) -> Iterator[Mutant]:
    """Yield the mutants of a place that are Python, and other code than before."""
    source = (ROOT / file).read_text()
    for operator, make in makers:
        mutated = make()
        if mutated is not None and compiled(mutated, file) not in (None, compiled(source, file)):
            yield Mutant(file, line, operator, *differing(source, mutated), mutated)


def annotations(source: str) -> set[tuple[int, int]]:
    """Return the places in annotations, of which only the numbers (bounds of options) matter when the code runs."""
    nodes = [
        note
        for node in ast.walk(ast.parse(source))
        for note in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if note is not None
    ]
    first = source.splitlines().index("if TYPE_CHECKING:") + 1 if "\nif TYPE_CHECKING:" in source else 0
    return {(first, 0), (first, 3)} | {
        (line, column)
        for note in nodes
        for line in range(note.lineno, note.end_lineno + 1)
        for column in range(
            note.col_offset if line == note.lineno else 0,
            note.end_col_offset if line == note.end_lineno else 200,
        )
    }


@cache
def compiled(source: str, file: str) -> CodeType | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compile(source, str(ROOT / file), "exec", dont_inherit=True)
        except SyntaxError:
            return None


def differing(source: str, mutated: str) -> tuple[str, str]:
    """Return the lines that differ, without what surrounds them."""
    old, new = source.splitlines(), mutated.splitlines()
    start = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    end = next(i for i, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b)
    tidy = partial(re.sub, r"\s+", " ")
    return tidy(" ".join(old[start : len(old) - end]).strip()), tidy(
        " ".join(new[start : len(new) - end]).strip()
    )


# ---------------------------------------------------------------- tests


def tests_for(files: Iterable[str]) -> list[str]:
    """Return the test files that import one of the modules, themselves or by a helper, or mirror it by name."""
    found = set()
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    for file in files:
        folder, stem = Path(file).parent, Path(file).stem.strip("_")
        near = {path for path, text in texts.items() if imports(text, name_of(file))}
        helpers = {path.stem for path in near if not path.stem.startswith("test_")}
        near |= {path for path, text in texts.items() if any(imports(text, helper) for helper in helpers)}
        mirrored = ROOT / "tests" / folder
        near |= set(mirrored.glob(f"test_{stem}*.py"))
        if folder.parts[0] in ("algorithms", "scenarios"):  # plug-ins: found by name, and by common tests
            near |= set(mirrored.glob("test_*.py")) | set(
                (ROOT / "tests" / folder.parts[0]).glob("test_*.py")
            )
            near |= {path for path, text in texts.items() if f'"{stem}"' in text}
        found |= {str(path.relative_to(ROOT)) for path in near if path.stem.startswith("test_")}
    return sorted(found)


def imports(text: str, name: str) -> bool:
    parent, _, last = name.rpartition(".")
    found = rf"^\s*(from {re.escape(name)} import|import {re.escape(name)}\b)"
    if parent:
        found += rf"|^\s*from {re.escape(parent)} import [^\n]*\b{last}\b"
    return re.search(found, text, re.MULTILINE) is not None


def statements(source: str) -> dict[int, range]:
    """Return for each line the lines of the innermost statement there; of a head or a default, those of the body."""
    found: dict[int, range] = {}
    for node in ast.walk(ast.parse(source)):  # from the outside to the inside
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            last = node.end_lineno or first
            body = getattr(node, "body", None)
            reached = range(first, last + 1)
            if body and not isinstance(node, ast.FunctionDef | ast.ClassDef):
                last = max(first, body[0].lineno - 1)
                reached = range(first, last + 1)
            for line in range(first, last + 1):
                found[line] = reached
    return found


class Reached:
    """Which tests pass, how long each takes, and which lines it runs: kept in a file, to which new tests are added."""

    def __init__(self, files: list[str], kept: Path) -> None:
        self.files = files
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, list[str]]] = {file: {} for file in files}
        self.of = sha256("".join((ROOT / file).read_text() for file in files).encode()).hexdigest()
        self.kept = kept
        if kept.exists():
            before = pickle.loads(kept.read_bytes())
            if before.of == self.of:
                self.seconds, self.lines = before.seconds, before.lines

    def learn(self, items: list[pytest.Item]) -> Reached:
        """Run the tests that are new, each as a context of the coverage."""
        from coverage import Coverage

        new = [item for item in items if item.nodeid not in self.seconds]
        if not new:
            return self
        cov = Coverage(data_file=None, include=[str(ROOT / file) for file in self.files], config_file=False)
        cov.set_option("run:disable_warnings", ["no-data-collected"])
        cov.start()
        silent(items)
        for item, following in in_order(new):
            cov.switch_context(item.nodeid)
            start, failed = time.process_time(), item.session.testsfailed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            passed = item.session.testsfailed == failed
            self.seconds[item.nodeid] = time.process_time() - start if passed else math.inf
        cov.stop()
        for file in self.files:
            for line, names in cov.get_data().contexts_by_lineno(str(ROOT / file)).items():
                self.lines[file][line] = [*self.lines[file].get(line, []), *names]
        self.kept.write_bytes(pickle.dumps(self))
        return self

    def tests(self, mutant: Mutant, budget: float, there: dict[str, Any]) -> list[str]:
        """Return the tests that run the statement, quick ones first, within a budget of seconds."""
        lines = self.lines[mutant.file]
        at = statements((ROOT / mutant.file).read_text()).get(mutant.line, range(0))
        names = {name for line in at for name in lines.get(line, [])} or {
            n for ns in lines.values() for n in ns
        }
        if (
            mutant.line not in lines
        ):  # a default, say: whoever looks at signatures runs none of the module's lines
            names |= {name for name in there if Path(mutant.file).stem in name}
        taken, left = [], budget
        for name in sorted(names & there.keys(), key=self.seconds.__getitem__):
            left -= self.seconds[name]
            if left < 0:
                break
            taken.append(name)
        return taken


def in_order(items: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip_longest(items, items[1:])


# ---------------------------------------------------------------- one mutant


def exchange(mutant: Mutant) -> None:
    """Make the imported module what the mutant's source says.

    Functions get new code where they are, so that every name and closure has it. What else changes as a module is
    imported (constants, defaults, classes) is imported anew, and put wherever the old things have a name in a module.
    """
    module = sys.modules[mutant.module]
    vars(builtins)[CosmicRayTestingException.__name__] = (
        CosmicRayTestingException  # what handlers name instead
    )
    old = compiled((ROOT / mutant.file).read_text(), mutant.file)
    new = compiled(mutant.source, mutant.file)
    assert old is not None
    assert new is not None
    pairs = list(paired(old, new, True))
    if all(a is not None for a, _, _ in pairs) and not any(at_import and a != b for a, b, at_import in pairs):
        changed = {(a.co_qualname, a.co_firstlineno): b for a, b, _ in pairs if a != b}
        there = [
            (f, changed.get((f.__code__.co_qualname, f.__code__.co_firstlineno)))
            for f in FUNCTIONS[old.co_filename]
        ]
        if all(code is None or f.__code__.co_freevars == code.co_freevars for f, code in there):
            for f, code in there:
                f.__code__ = code or f.__code__
            return
    import_again(module, new)


def paired(old: CodeType, new: CodeType, at_import: bool) -> Iterator[tuple[Any, Any, bool]]:
    """Yield the code of each function beside its mutant, and whether an import runs it."""
    inner_old, inner_new = nested(old), nested(new)
    if [c.co_qualname for c in inner_old] != [c.co_qualname for c in inner_new]:
        yield None, None, True
        return
    if at_import:
        yield shallow(old), shallow(new), True
    else:
        yield old, new, False
    for a, b in zip(inner_old, inner_new, strict=True):
        runs = not a.co_flags & 1 or (a.co_name.startswith("<") and a.co_name != "<lambda>")
        yield from paired(a, b, at_import and runs)


def nested(code: CodeType) -> list[CodeType]:
    """Return the code of the functions and classes that are written inside."""
    return [c for c in code.co_consts if isinstance(c, CodeType)]


def shallow(code: CodeType) -> tuple[Any, ...]:
    """Return what code does itself, without what is nested in it."""
    consts = [None if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts]
    return code.co_code, consts, code.co_names


def import_again(module: ModuleType, code: CodeType) -> None:
    """Run the module's code as an import does, and put what it made wherever the project has a name for the old."""
    before = dict(vars(module))
    new = ModuleType(module.__name__)
    vars(new).update(
        {k: before[k] for k in ("__file__", "__package__", "__spec__", "__loader__") if k in before}
    )
    sys.modules[module.__name__] = new
    exec(code, vars(new))
    replaced = {
        id(value): vars(new)[name]
        for name, value in before.items()
        if name in vars(new)
        and not name.startswith("__")
        and vars(new)[name] is not value
        and not isinstance(value, bool | int | str | types.NoneType)
    }
    replaced[id(module)] = new
    for other in [m for m in sys.modules.values() if isinstance(m, ModuleType)]:
        path = getattr(other, "__file__", None) or ""
        if path.startswith(str(ROOT)) and ".venv" not in path and other is not new:
            for name, value in list(vars(other).items()):
                if id(value) in replaced:
                    setattr(other, name, replaced[id(value)])
                elif (
                    other is not module
                    and name in before
                    and not name.startswith("__")
                    and value is before[name]
                    and name in vars(new)
                ):
                    setattr(other, name, vars(new)[name])  # small constants, imported under the same name
    vars(module).update({k: v for k, v in vars(new).items() if not k.startswith("__")})


def forked(work: Any, limit_s: float) -> tuple[str, Any]:
    """Run a function in a fork of this process; return how it ended, and what it returned."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 2))
            resource.setrlimit(resource.RLIMIT_AS, (memory() + 4 * 2**30, resource.RLIM_INFINITY))
            if "MUTANTS_SHOW" not in os.environ:
                quiet = os.open(os.devnull, os.O_RDWR)
                os.dup2(quiet, 1)
                os.dup2(quiet, 2)
            answer = work()
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(answer, pipe)
            status = 0
        except BaseException as err:
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(repr(err), pipe)
        finally:
            os._exit(status)
    os.close(writing)
    alarm = signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(int(20 * limit_s) + 60)
    try:
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        status = os.waitpid(pid, 0)[1]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, alarm)
    if os.WIFSIGNALED(status):
        return "timeout", None
    return ("done" if status == 0 else "crash"), pickle.loads(said) if said else None


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def silent(items: list[pytest.Item]) -> None:
    if items and "MUTANTS_SHOW" not in os.environ:
        items[0].config.pluginmanager.unregister(name="terminalreporter")


def first_failure(items: list[pytest.Item], mutant: Mutant | None) -> str | None:
    """Run tests until one fails, and return it."""
    silent(items)
    if mutant is not None:
        exchange(mutant)
    for item, following in in_order(items):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            return item.nodeid
    return None


# ---------------------------------------------------------------- all of them


@dataclass
class Options:
    files: list[str]
    sample: int | None
    seed: int
    budget: float
    results: Path
    lines: dict[str, set[int]] | None


class Hunt:
    """A pytest plug-in: instead of the tests, run them against each mutant."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.counts: Counter[str] = Counter()
        self.survivors: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        start = time.monotonic()
        for file in self.options.files:
            import_module(name_of(file))
        gc.collect()
        for thing in gc.get_objects():
            if type(thing) is FunctionType:
                FUNCTIONS[thing.__code__.co_filename].append(thing)
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        print(f"{len(items)} tests; which lines each runs ...", flush=True)
        kept = Reached(self.options.files, self.options.results.with_suffix(".reached"))
        state, reached = forked(lambda: kept.learn(session.items), 3000)
        if state != "done":
            raise RuntimeError(f"the tests do not run unchanged: {reached}")
        seconds = [reached.seconds[name] for name in items if reached.seconds[name] < math.inf]
        print(f"{sum(seconds):.0f} s of processor time for the {len(seconds)} that pass", flush=True)
        accepted = equivalents()
        known = dict(recorded(self.options.results))
        with self.options.results.open("a") as out:
            options = self.options
            for mutant in islice(drawn(options.files, options.seed, options.lines), options.sample):
                if (mutant.file, mutant.before, mutant.after) in accepted:
                    self.counts["equivalent"] += 1
                    continue
                row = known.get(mutant.key)
                if row is None or row["outcome"] == "survived":
                    row = self.tried(mutant, items, reached)
                    out.write(json.dumps(row) + "\n")
                    out.flush()
                self.counts[row["outcome"]] += 1
                if row["outcome"] == "survived":
                    self.survivors.append(mutant)
                    print(
                        f"{mutant.file}:{mutant.line}: {mutant.before}  ->  {mutant.after}  [{row['tests']}]",
                        flush=True,
                    )
        self.told(time.monotonic() - start)
        return True

    def tried(self, mutant: Mutant, items: dict[str, pytest.Item], reached: Reached) -> dict[str, Any]:
        start = time.monotonic()
        names = reached.tests(mutant, self.options.budget, items)
        limit = 5 + 5 * sum(map(reached.seconds.__getitem__, names))
        unfit: set[str] = set()
        while True:
            run = [items[name] for name in names if name not in unfit]
            state, failed = forked(lambda run=run: first_failure(run, mutant), limit)
            if state != "done" or failed is None or not fails_unchanged(mutant.file, items[failed], limit):
                break
            unfit.add(failed)
        outcome = "survived" if state == "done" and failed is None else "killed"
        by = failed if state == "done" else state
        row = {k: v for k, v in asdict(mutant).items() if k != "source"}
        return {
            **row,
            "key": mutant.key,
            "outcome": outcome,
            "by": by,
            "tests": len(names),
            "s": round(time.monotonic() - start, 2),
        }

    def told(self, seconds: float) -> None:
        killed, survived = self.counts["killed"], self.counts["survived"]
        score = 100 * killed / max(killed + survived, 1)
        equal = f"{self.counts['equivalent']} equivalent"
        print(f"{killed} killed, {survived} survived, {equal}: {score:.1f} % in {seconds:.0f} s")


def fails_unchanged(file: str, item: pytest.Item, limit: float) -> bool:
    """Whether a test fails as well when a module is imported again as it is, and so proves nothing against a mutant."""

    def again() -> str | None:
        code = compiled((ROOT / file).read_text(), file)
        assert code is not None
        import_again(sys.modules[name_of(file)], code)
        return first_failure([item], None)

    if (file, item.nodeid) not in _UNFIT:
        state, failed = forked(again, limit)
        _UNFIT[file, item.nodeid] = state != "done" or failed is not None
    return _UNFIT[file, item.nodeid]


def recorded(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            yield row["key"], row


def equivalents() -> set[tuple[str, str, str]]:
    rows = tomllib.loads(ACCEPTED.read_text()).get("equivalent", [])
    return {(row["file"], row["before"], row["after"]) for row in rows}


# ---------------------------------------------------------------- the command


def changed_lines() -> dict[str, set[int]]:
    """Return the lines that differ from main, or on main itself from the commit before."""
    git = partial(subprocess.run, cwd=ROOT, check=True, capture_output=True, text=True)
    base = git(["git", "merge-base", "main", "HEAD"]).stdout.strip()
    if base == git(["git", "rev-parse", "HEAD"]).stdout.strip():
        base = "HEAD~1"
    found: dict[str, set[int]] = defaultdict(set)
    file = ""
    for line in git(["git", "diff", "-U0", base, "--", *PACKAGES]).stdout.splitlines():
        if line.startswith("+++ "):
            file = line.removeprefix("+++ b/")
        elif line.startswith("@@") and file.endswith(".py"):
            start, _, count = line.split("+")[1].split(" ")[0].partition(",")
            found[file] |= set(range(int(start), int(start) + int(count or 1)))
    return found


def files_of(names: list[str]) -> list[str]:
    """Return the modules that are named, or lie in folders that are."""
    found = []
    for name in names:
        path = ROOT / name.rstrip("/")
        if not path.exists():
            raise SystemExit(f"there is no module {name}")
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [str(path.relative_to(ROOT)) for path in found if path.read_text().strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("modules", nargs="*", help="files or folders; without any, what changed since main")
    parser.add_argument("--sample", type=int, help="try that many mutants of all modules together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests for one mutant")
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / ".mutants.jsonl",
        help="what was killed there is not tried again",
    )
    parser.add_argument(
        "--tests",
        nargs="*",
        default=[],
        help="test files, where those found by imports are not the right ones",
    )
    args = parser.parse_args()
    lines = None if args.modules else changed_lines()
    files = files_of(args.modules) if lines is None else sorted(lines)
    if not files:
        print("no line of a module differs from main")
        return
    hunt = Hunt(Options(files, args.sample, args.seed, args.budget, args.results, lines))
    os.environ["CI"] = "true"  # the same examples of properties for each mutant
    with tempfile.TemporaryDirectory() as folder:
        how = [
            "-n0",
            "-qq",
            "-m",
            LEFT_OUT,
            "--durations=0",
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder}/tests",
        ]
        told = pytest.main([*(args.tests or tests_for(files)), *how], plugins=[hunt])
    sys.exit(bool(hunt.survivors) or told not in (0, 5))


if __name__ == "__main__":
    os.chdir(ROOT)
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[threads] = "1"
    sys.path[:0] = [str(ROOT)]
    main()
