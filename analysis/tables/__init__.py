"""Tables for terminals."""
