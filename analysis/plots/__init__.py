"""Pictures of runs, one per file; each returns a `Picture`, which `analysis/report/svg.py` turns into inline SVG."""
