"""Pictures of runs, one per file: functions that return a `Picture`, which `analysis/drawing/svg.py` turns into SVG."""
