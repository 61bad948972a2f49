"""Ascent in place of descent (Li et al. 2019, "RSA: Byzantine-Robust Stochastic Aggregation Methods")."""

from __future__ import annotations

from fedsim.training.attack import Attack


def sign_flip() -> Attack:
    """Send the update with the opposite sign."""
    return Attack(send=lambda message: message.with_row(-message.row))
