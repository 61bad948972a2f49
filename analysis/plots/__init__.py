"""Pictures of runs, one per file; each returns a `Picture`, which `analysis.svg` turns into inline SVG."""
