"""Code that knows nothing of federated learning; every room may use it."""
