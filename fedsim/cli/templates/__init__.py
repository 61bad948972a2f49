"""The files that `fedsim init` copies. Nothing imports them."""
