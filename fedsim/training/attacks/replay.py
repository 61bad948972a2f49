"""Old updates in place of new ones."""

from __future__ import annotations

from fedsim.training.attack import Attack


def replay() -> Attack:
    """Send the honest update of the client's previous job. In its first job the client sends its new update."""
    return Attack(
        send=lambda message: message if message.before is None else message.with_row(message.before),
        remembers=True,
    )
