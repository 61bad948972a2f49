"""Runs in the formats of Perfetto and TensorBoard."""
