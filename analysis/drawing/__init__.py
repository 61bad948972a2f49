"""Drawing functions that several plots share."""
