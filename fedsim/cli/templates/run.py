"""Run the experiment, compare its two arms client by client, and write a report: python run.py."""

from rich import print

import fedsim
from fedsim import analysis


def main() -> None:
    """Simulate both arms, print tables, and write a page."""
    configs = fedsim.load_config("experiment.toml")  # one configuration for each arm
    results = fedsim.simulate(configs, out="runs", force=True)  # force replaces the runs of last time
    baseline, mine = (fedsim.open_run(result.folder) for result in results)
    print(analysis.closing_table([baseline, mine]))
    print(analysis.compare(baseline, mine))
    print(baseline.history().tail(3))  # a pandas DataFrame, as is baseline.frame("jobs")
    print("report:", analysis.write_report([baseline, mine], "runs/experiment"))


if __name__ == "__main__":  # as with multiprocessing
    main()
