"""The files of a run folder and of a study's folder."""

from __future__ import annotations

MANIFEST, CONFIG, ARMS = "manifest.json", "config.resolved.toml", "arms.json"
WORLD, CLIENTS = "world.parquet", "clients.parquet"
MODEL, PERSONAL = "model.safetensors", "personal.safetensors"
PARTS = "parts"
"""The folder within a run folder for the numbered parts of tables of an unfinished run."""
STUDY, STUDY_CONFIG = "study.json", "study.toml"


def part_name(table: str, number: int) -> str:
    """Return the file name of a part of a table."""
    return f"{table}-{number:05d}.parquet"
