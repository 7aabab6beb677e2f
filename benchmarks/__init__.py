"""Ratios against what a user would otherwise run, measured in one run: `make bench`."""
