"""Attacks: one small file each; see `fedsim.adversary`."""
