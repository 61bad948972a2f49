"""Open runs, measure their fairness, compare them, and write the report.

    from fedsim import analysis

    run = analysis.open_run("runs/quickstart/fedavg")
    run.frame("steps")                        # pandas; run.steps is the Arrow table
    run.final().summary()["worst10_percent"]  # metrics of the last evaluation on the test split
    run.history()                             # every metric at every evaluation
    arms = analysis.open_all(["runs/quickstart"])
    rich.print(analysis.closing_table(arms), analysis.compare(arms[0], arms[1]))
    analysis.write_report(arms, "report.html")
    study = analysis.open_study("runs/dropout")
    study.frame(["mean_percent"], at="time")                     # one row per run, after equal virtual time
    analysis.differences(study, "mean_percent")[0].interval      # paired by seed
    rich.print(*analysis.study_tables(study))

The analysis reads only what a run wrote and never imports the engine. Names, which
`__init__.pyi` lists, are imported when first used, so `from fedsim import analysis` costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
