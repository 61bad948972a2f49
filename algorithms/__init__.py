"""Aggregation rules, one file each: what a server does with the updates that clients sent.

A run names its rule in its configuration (`[algorithm]` with `name = "fedfv"`). Outside the simulator a rule is one
call on a matrix whose rows are updates `start - end`; the result is the direction to move along:

>>> import numpy as np
>>> from fedsim.server.combine import combine
>>> updates = np.array([[4.0, 0.0], [-1.0, 2.0]])
>>> combine("fedavg", updates, losses=[0.5, 2.0], n_samples=[300, 100]).direction
array([2.75, 0.5 ])
>>> combine("fedlf", updates, losses=[0.5, 2.0], options={"fair_row": "none"}).weights.round(3)
array([[0.377, 0.837]])

The new parameters are `params - direction`. To write a rule of your own, add `algorithms/<name>.py` with a
function `<name>` that returns a `fedsim.server.rule.Algorithm`. Configurations and the common tests find it by its
name.
"""
