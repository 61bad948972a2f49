"""Attacks: one small file each; see `fedsim.training.attack`."""
