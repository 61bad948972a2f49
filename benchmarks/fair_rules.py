"""What fair rules and client methods cost beside FedAvg: rounds of W1 of `works.py` under each, fair rules with losses
on all samples and on some.

All run in turns, and a ratio is taken within each repetition.

    python benchmarks/fair_rules.py                 # one process
    python benchmarks/fair_rules.py --workers 2
"""

from __future__ import annotations

from turns import arguments, measure, show

SOME = 100
RULES = ("fedfv", "fedlf")


def main() -> None:
    """Run, and print a table."""
    given = arguments(__doc__).parse_args()
    variants = {"fedavg": ["algorithm.name=fedavg"]}
    variants |= {f"fedavg, clients {name}": [f"client.name={name}"] for name in ("fedprox", "ditto")}
    variants |= {name: [f"algorithm.name={name}", f"client.name={name}"] for name in ("scaffold", "feddyn")}
    for rule in RULES:
        variants[rule] = [f"algorithm.name={rule}"]
        variants[f"{rule}, losses on {SOME} samples"] = [
            f"algorithm.name={rule}",
            f"train.loss_samples={SOME}",
        ]
    found = measure(variants, given)
    ms = {name: [1e3 * s / given.steps for s, _ in runs] for name, runs in found.items()}
    show("rule", "ms a round", ms, given)


if __name__ == "__main__":
    main()
