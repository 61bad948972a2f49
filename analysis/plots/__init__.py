"""Pictures of runs, one per file; each returns a `Picture`, which `analysis.report.svg` turns into inline SVG."""
