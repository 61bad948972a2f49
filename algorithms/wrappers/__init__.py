"""Wrappers, one file each: a wrapper takes a rule and returns a rule.

A wrapper changes what the rule sees (which rows, how long, in which blocks) or changes its direction, and leaves the
rule itself unchanged. In a config each is a table in `[[algorithm.wrap]]`; outside the simulator:

>>> import numpy as np
>>> from fedsim.server.combine import combine
>>> updates = np.array([[4.0, 0.0], [0.0, 2.0]])
>>> combine("fedavg", updates, losses=None, staleness=[3, 0], wrap=[("discounted", {"staleness": "sqrt"})]).direction
array([1., 1.])

The first wrapper in the list is the innermost. A combination that cannot work is refused with the reason.
"""
