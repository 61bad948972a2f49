"""Opening the folders of runs and studies."""
