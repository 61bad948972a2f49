"""Selectors: one strategy per file, `algorithms/selection/<name>.py` with a factory `<name>(**options) -> Selector`."""
