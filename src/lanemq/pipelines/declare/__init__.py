"""Declares pipelines in Python or TOML files and checks their options."""
