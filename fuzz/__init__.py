"""Hostile bytes for everything that reads files or answers from elsewhere.

    python -m fuzz NAME [options of libFuzzer] [files to replay]    # coverage-guided, needs the group `fuzz`
    python -m fuzz all -max_total_time=60                           # every target, one after the other
    python -m fuzz.seeds                                            # write fuzz/corpus anew

`rule.py` says what a reader may do with any bytes; tests/test_fuzz.py replays the corpus and seeded mutations of it
under the same rule, without a fuzzer.
"""
