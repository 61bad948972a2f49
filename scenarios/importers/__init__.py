"""One published trace format per module; see `fedsim.worlds.importer` for what an importer is."""
