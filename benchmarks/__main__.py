"""`python -m benchmarks [stage ...] [--quick]`; see `benchmarks.command`."""

import os
import sys

from benchmarks import THREAD_VARIABLES

os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")  # before anything that reads them is loaded

from benchmarks.command import main

sys.exit(main())
