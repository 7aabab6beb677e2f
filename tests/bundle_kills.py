"""Kill processes that save over one folder, at random moments, and count what the folder then loads as."""

import os
import random
import signal
import time

import bundle_cases as cases

from atypicality.shipping.bundle import load, save


def killed_writer(heads, folder, delay):
    """Save the heads in turn, over and over, in a process that is killed after a while."""
    child = os.fork()
    if child == 0:
        try:
            while True:
                for head in heads:
                    save(head, folder)
        finally:
            os._exit(1)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"


def counts(folder, n):
    """How often the folder was the first head, the second, neither, and had a file that was not finished."""
    heads = [cases.fitted(seed=0), cases.fitted(seed=7)]
    started = time.perf_counter()
    for head in heads:
        save(head, folder)
    both = time.perf_counter() - started  # what a writer needs for one round
    chance, found_as = random.Random(0), {"first": 0, "second": 0, "neither": 0, "unfinished": 0}
    for _ in range(n):
        killed_writer(heads, folder, chance.uniform(0, 1.5 * both))
        found_as["unfinished"] += any(name.endswith(".tmp") for name in os.listdir(folder))
        found = load(folder)
        same = [cases.difference(head, found) is None for head in heads]
        found_as["first" if same[0] else "second" if same[1] else "neither"] += 1
    return found_as
