"""What `fedsim plan` tells of a run before it: its events, time and memory."""
