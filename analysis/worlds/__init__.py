"""What is measured on worlds, and models fitted to them."""
