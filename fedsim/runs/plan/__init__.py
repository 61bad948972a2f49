"""What `fedsim plan` says of a run beforehand: its timeline, wall time and memory."""
