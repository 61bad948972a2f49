"""What a run writes and reads back: tables, manifest, checkpoints, the run folder."""
