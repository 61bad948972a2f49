"""The digests that the examples have, cut to a few steps, by the kind of machine that they were taken on.

    python tests/tools/golden_digests.py            # compare with tests/tools/golden_digests.json
    python tests/tools/golden_digests.py --update   # write tests/tools/golden_digests.json
    python tests/tools/golden_digests.py --again    # on a new kind of machine, compare with the commit that wrote it

What an update changes is taken out of the digests of other kinds: it is to be found out there again.

Examples whose data set is missing are left out of a comparison, and an update is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":  # else the packages of tests would be taken for those of fedsim
    sys.path[0:1] = [str(ROOT)]
    sys.path.append(str(ROOT / "tests" / "helpers"))

import inputs  # noqa: E402
from fedsim.config.load import load_config  # noqa: E402
from fedsim.records.environment import processor  # noqa: E402
from fedsim.runs.simulate import simulate  # noqa: E402

FILE = Path(__file__).with_suffix(".json")
CONFIGS = sorted((ROOT / "examples").glob("*.toml"))
STEPS = 3


def digests(path: Path) -> dict[str, str]:
    """Run a configuration for `STEPS` steps in this process; returns the digest of each run by its name."""
    with tempfile.TemporaryDirectory() as folder:
        results = simulate(load_config(path, (f"stop.steps={STEPS}",)), out=folder, workers=0, device="cpu")
        return {str(result.folder.relative_to(folder)): str(result.digest) for result in results}


def kind() -> dict[str, str]:
    """Return what sums of floating-point numbers depend on in their last bits: libraries and instruction sets."""
    return {
        "torch": ".".join(torch.__version__.split(".")[:2]),
        "numpy": ".".join(np.__version__.split(".")[:2]),
        "scipy": ".".join(scipy.__version__.split(".")[:2]),
        "machine": platform.machine(),
        **processor(),
    }


def records() -> list[dict[str, Any]]:
    """Return what the file holds: for each kind of machine what is known of its `kind`, and by run `digests`."""
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def recorded() -> dict[str, str]:
    """Return the digests that were taken on machines of this kind."""
    here = kind()
    return next((dict(record["digests"]) for record in records() if _fits(record, here)), {})


def _fits(record: dict[str, Any], here: dict[str, str]) -> bool:
    """Whether a record is of this kind in all that bits depend on; one that leaves something open is of no kind."""
    return bool(record["kind"] == here)


def difference() -> str | None:
    """Say in what this machine is of another kind than that of the documents' figures; None if in nothing.

    Those were taken on machines of the kind that the file names first.
    """
    expected, here = records()[0]["kind"], kind()
    parts = [f"{what} {then}, here {here[what]}" for what, then in expected.items() if then != here[what]]
    return f"the figures were taken with {'; '.join(parts)}" if parts else None


def updated(found: dict[str, str]) -> list[dict[str, Any]]:
    """Return `records` with the digests found here; other kinds lose those that changed and those of no example."""
    here, before = kind(), recorded()
    same = {name for name in found if before.get(name, found[name]) == found[name]}
    others = [
        record | {"digests": {name: d for name, d in record["digests"].items() if name in same}}
        for record in records()
        if not _fits(record, here)
    ]
    mine = {"kind": here, "digests": found}
    return [mine, *others] if _fits(records()[0], here) else [*others, mine]


def unknown(names: Iterable[str]) -> str | None:
    """Say which of these runs have no digest for this kind of machine, and what records them; None if all have."""
    if not (lacking := sorted(set(names) - recorded().keys())):
        return None
    return (
        f"tests/tools/golden_digests.json has no digest of {', '.join(lacking)} for this kind of machine, {kind()}: "
        "nothing is compared. `python tests/tools/golden_digests.py --update`, run on the commit before your change, "
        "records them"
    )


def recording_commit(file: Path = FILE) -> str:
    """Return the last commit that wrote the file: what it records is what that commit's code computes."""
    return _git("log", "-1", "--format=%H", "--", file.name, cwd=file.parent).strip()


def digests_at(commit: str, examples: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Compute the digests of some examples, named by their files, with another commit's code on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        _git("clone", "--quiet", "--no-checkout", str(root), str(tree), cwd=root)
        _git("checkout", "--quiet", commit, cwd=tree)
        [script] = [*tree.glob(f"tests/{FILE.stem}.py"), *tree.glob(f"tests/*/{FILE.stem}.py")]
        places = [tree, script.parent, tree / "tests", tree / "tests" / "helpers"]
        done = subprocess.run(
            [sys.executable, "-c", _AT_COMMIT, ",".join(examples), *map(str, places)],
            cwd=tree,
            env=os.environ | {"FEDSIM_DATA": str(inputs.DATA)},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return found


_AT_COMMIT = f"""
import json, sys
examples, sys.path[:0] = sys.argv[1].split(","), sys.argv[2:]
import {FILE.stem} as golden
found = {{}}
for path in golden.CONFIGS:
    if path.stem in examples:
        found |= golden.digests(path)
print(json.dumps(found))
"""
"""Of the other commit's script this uses `CONFIGS` and `digests` alone, which must keep their names and arguments."""


def _git(*words: str, cwd: Path) -> str:
    return subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


def known_versions() -> bool:
    """Whether the file has digests of another kind of machine with the same versions of the packages."""
    packages, here = ("torch", "numpy", "scipy"), kind()
    return any(all(record["kind"].get(p) == here[p] for p in packages) for record in records())


def _partial(found: list[dict[str, Any]]) -> Iterator[str]:
    """Say of each kind of machine which digests it lacks."""
    names = {run.name for path in CONFIGS for run in load_config(path)}
    for record in found:
        if lacking := sorted(names - record["digests"].keys()):
            yield f"to be recorded with --update on {record['kind']}: {', '.join(lacking)}"


def _compare_again() -> None:
    """Compare with the commit that wrote the file, where it lacks digests of this kind of machine but has others."""
    names = {run.name for path in CONFIGS for run in load_config(path) if not inputs.missing(run.task.name)}
    lacking = names - recorded().keys()
    if not lacking or not known_versions():
        print(
            "the tests compare all digests"
            if not lacking
            else "digests of no machine with these packages are known"
        )
        return
    commit = recording_commit()
    paths = [path for path in CONFIGS if {run.name for run in load_config(path)} & lacking]
    before = digests_at(commit, [path.stem for path in paths])
    found = {name: digest for path in paths for name, digest in digests(path).items()}
    differ = sorted(name for name in lacking & before.keys() if before[name] != found[name])
    for name in differ:
        print(f"{name}: {before[name][:16]} at {commit[:10]} -> {found[name][:16]}")
    print(
        f"{len(lacking & before.keys())} digests computed again with {commit[:10]}, {len(differ)} of them changed"
    )
    if differ:
        sys.exit(1)


def main() -> None:
    """Compare each digest with the file, and write the file if asked to; the exit code is 1 if one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write what is found")
    parser.add_argument(
        "--again",
        action="store_true",
        help="compare with the commit that wrote the file where it has no digests",
    )
    given = parser.parse_args()
    if given.again:
        _compare_again()
        return
    tasks = {path: load_config(path)[0].task.name for path in CONFIGS}
    left = {path: reason for path, task in tasks.items() if (reason := inputs.missing(task))}
    for path, reason in left.items():
        print(f"{path.stem}: left out: {reason}")
    if left and given.update:
        sys.exit("nothing is written: an update needs the data of every example")
    names = {run.name for path in left for run in load_config(path)}
    before = {name: digest for name, digest in recorded().items() if name not in names}
    found = {name: digest for path in CONFIGS if path not in left for name, digest in digests(path).items()}
    differ = [name for name in sorted(before.keys() | found) if before.get(name) != found.get(name)]
    for name in differ:
        print(f"{name}: {before.get(name, 'none')[:16]} -> {found.get(name, 'none')[:16]}")
    print(f"{len(found)} digests, {len(differ)} of them new, changed or gone")
    if (reason := unknown(found)) and not given.update:
        print(reason)
    if given.update:
        FILE.write_text(json.dumps(written := updated(found), indent=2) + "\n", encoding="utf-8")
        print(*_partial(written), sep="\n")
    elif differ:
        sys.exit(1)


if __name__ == "__main__":
    main()
