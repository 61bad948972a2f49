"""Measures of one evaluation, one per file; file, function and column have the same name.

A metric is a function `metric(accuracy, n) -> float` of

* `accuracy`: float [K], the accuracy of each client as a fraction from 0 to 1, without NaN, K at least 1;
* `n`: int [K], the number of samples that each accuracy was measured on, at least 1 each.

The unit of the result is in the name: `_percent`, `_percent2`, `_rad`, `_deg`, `_nats`; the others are pure
numbers. Statistics are those of the population (divided by K). A metric placed in this folder is found by
its name and turns up in `analysis.summary` and `Run.history` without further registration;
`docs/metrics.md` lists the formulas. A file with `SMALLER_IS_BETTER = True` says that of its metric, for
tables that count in how many seeds a rule does better.

>>> import numpy as np
>>> from fedsim.analysis.metrics.worst10_percent import worst10_percent
>>> worst10_percent(np.array([0.2, 0.9, 0.8]), np.array([10, 10, 10]))
20.0
"""
