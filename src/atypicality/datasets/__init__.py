"""Data to try things on: synthetic worlds with known truth."""
