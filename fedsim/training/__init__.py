"""One job: local SGD, losses, evaluation, what an attack does to it."""
