"""TOML to checked objects, and back."""
