"""What several plots draw."""
