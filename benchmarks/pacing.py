"""What late and lost clients cost in speed: updates per second under buffered pacing in churn, against rounds.

W1 of `works.py` both times: rounds of 10 clients that are always online, and `fedbuff(50, 10)` among clients of whom a
third is online at any instant. Both run in turns, and a ratio is taken within each repetition.

    python benchmarks/pacing.py                 # one process
    python benchmarks/pacing.py --workers 2
"""

from __future__ import annotations

from statistics import median

from turns import arguments, closing, measure, ratio

PACINGS = {
    "sync, always online": (),
    "fedbuff(50, 10), churn": (
        'pacing={preset="fedbuff", concurrency=50, buffer=10}',
        "world.scenario=churn",
    ),
}


def main() -> None:
    """Run, and print a table."""
    given = arguments(__doc__).parse_args()
    found = measure(PACINGS, given)
    per_s = {name: [updates / s for s, updates in runs] for name, runs in found.items()}
    base = per_s[next(iter(PACINGS))]
    print("| pacing | updates a second | ratio |")
    print("|---|---|---|")
    for name, own in per_s.items():
        print(f"| {name} | {median(own):.0f} | {ratio(own, base):.2f} |")
    print(f"\n{closing(given)}")


if __name__ == "__main__":
    main()
