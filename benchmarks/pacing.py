"""What late and lost clients cost in speed: updates per second under buffered pacing in churn, against rounds.

W1 of `works.py` both times: rounds of 10 clients that are always online, and `fedbuff(50, 10)` among clients of whom a
third is online at any instant. Both run in turns, and a ratio is taken within each repetition.

    python benchmarks/pacing.py                 # one process
    python benchmarks/pacing.py --workers 2
"""

from __future__ import annotations

from turns import arguments, measure, show

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
    show("pacing", "updates a second", per_s, given)


if __name__ == "__main__":
    main()
