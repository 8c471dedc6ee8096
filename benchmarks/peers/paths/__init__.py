"""What is measured, one file per group of paths."""
