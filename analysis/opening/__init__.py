"""Open the folders of runs and studies."""
