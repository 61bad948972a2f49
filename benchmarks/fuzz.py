"""Random small runs of the whole simulator, each from one integer, and what is wrong with them.

A seed stands for a world, a pacing, a selector, a rule with wrappers, a client method, and ways to lose jobs. It is
run in this process, the invariants of `docs/invariants.md` are checked from its folder, and every so often it is run
again in other ways, to the same digest.

    python benchmarks/fuzz.py --runs 2000 --seed 1
    python benchmarks/fuzz.py --seed 1234 --runs 1 -v
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from fuzz_play import TREATMENTS, Played, play  # noqa: E402


def main() -> None:
    """Play seeds until there are enough of them or time is up; exit with 1 if something was found."""
    given = _arguments()
    warnings.simplefilter("error")
    started, players = time.monotonic(), []
    for seed in range(given.seed, given.seed + given.runs):
        if given.minutes and time.monotonic() - started > 60 * given.minutes:
            break
        players.append(play(seed, _treatments(seed, given)))
        _tell(players[-1], given.verbose)
    _close(players, time.monotonic() - started)
    sys.exit(any(played.findings for played in players))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=2000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first of them")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: when all are done")
    parser.add_argument(
        "--every", type=int, default=5, help="run every so manyth seed again, in one of the other ways"
    )
    parser.add_argument(
        "--treat", choices=TREATMENTS, nargs="*", help="run each seed again in these ways instead"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show configurations, and all that was seen"
    )
    return parser.parse_args()


def _treatments(seed: int, given: argparse.Namespace) -> list[str]:
    """Return the ways in which a seed is run again, which depend on the seed alone unless they are named."""
    if given.treat is not None:
        return list(given.treat)
    names = list(TREATMENTS)
    return [names[seed // given.every % len(names)]] if seed % given.every == 0 else []


def _tell(played: Played, verbose: bool) -> None:
    if verbose:
        print(
            json.dumps(played.config, indent=1),
            played.outcome,
            played.reason,
            *sorted(played.seen.items()),
            sep="\n",
        )
    for found in played.findings:
        print(f"seed {played.seed}: {found}", flush=True)
    if played.findings and not verbose:
        here = os.path.relpath(__file__)
        print(f"    again: python {here} --seed {played.seed} --runs 1 -v")


def _close(players: list[Played], took_s: float) -> None:
    """Print what ran, what occurred in it, and what was refused why."""
    seen: Counter[str] = Counter()
    for played in players:
        seen.update(played.seen)
    outcomes = Counter(played.outcome for played in players)
    print(f"{len(players)} seeds in {took_s:.0f} s ({took_s / max(len(players), 1):.3f} s each): ", end="")
    print(", ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common()))
    for kind in ("job", "step", "ended by", "treatment"):
        mine = {name.partition(": ")[2]: n for name, n in seen.items() if name.startswith(kind + ": ")}
        print(f"{kind}: " + ", ".join(f"{name} {n:,}" for name, n in sorted(mine.items())))
    slow = sorted(players, key=lambda p: p.took_s)[-3:]
    print("slowest: " + ", ".join(f"seed {p.seed} {p.took_s:.1f} s" for p in reversed(slow)))
    checked = sum(n for name, n in seen.items() if name.startswith("invariant: "))
    print(f"invariants checked: {checked:,}")
    for outcome in ("refused", "stopped"):
        for reason, n in Counter(p.reason for p in players if p.outcome == outcome).most_common():
            print(f"{outcome} {n:5d}  {reason}")


if __name__ == "__main__":
    main()
