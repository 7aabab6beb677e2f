"""The only modules that import frameworks the user may not have."""
