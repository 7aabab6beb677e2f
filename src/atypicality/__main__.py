"""`python -m atypicality` is the `atypicality` command."""

from atypicality.cli import run

if __name__ == "__main__":
    run()
