"""The command line: one file per command, each a thin caller of a public function."""

from atypicality.cli.app import main

__all__ = ["main"]
