"""`python -m atypicality` is the `atypicality` command."""

import sys

from atypicality.cli import main

if __name__ == "__main__":
    sys.exit(main())
