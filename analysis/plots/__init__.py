"""Pictures of runs, one per file: functions that return a `Picture`, which `analysis/report/svg.py` turns into SVG."""
