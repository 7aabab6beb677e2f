"""`python -m benchmarks [stage ...] [--quick]`; see `benchmarks.command`."""

import sys

from benchmarks.command import main

sys.exit(main())
