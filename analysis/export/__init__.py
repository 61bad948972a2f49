"""Runs in the formats of Perfetto, TensorBoard, Weights & Biases and MLflow."""
