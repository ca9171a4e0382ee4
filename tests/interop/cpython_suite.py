"""CPython's own tests of the binary format, with our program in the path.

    python3.15 cpython_suite.py PROGRAM [to-bin OPTION ...]

Every profile that a test opens goes through `from-bin` and `to-bin` first, and
CPython reads ours instead. Where we refuse a file, or find something wrong in
it, CPython gets the file as it is, and has to find it wrong, too: by the time
that every sample has been replayed. What we read without a fault CPython has
to accept, with the same samples. Exit status 0: all tests passed but those of
KNOWN, and the two always agreed.
"""

import os
import subprocess
import sys
import tempfile
import unittest

import _remote_debugging

from replay import Threads

PROGRAM, *OPTIONS = sys.argv[1:]
SUITE = "test.test_profiling.test_sampling_profiler.test_binary_format"
# Tests that ask how a reader groups what no writer writes.
KNOWN = {
    "test_rle_long_run_splits_batches":
        "puts one record of 8,193 samples into a file by hand and counts the batches that the reader makes "
        "of it; written again by CPython's own rules a record holds at most 8,187",
}
Real = _remote_debugging.BinaryReader
folder = tempfile.TemporaryDirectory()
opened = refused = 0
disagreements = []


def samples(path):
    """All samples of a file, thread by thread, and why CPython does not read it, if it doesn't."""
    threads = Threads()
    try:
        with Real(path) as reader:
            reader.replay(threads)
        return threads.samples, None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def through(path):
    """The file that our program makes of a profile; None where it finds fault with it."""
    global opened, refused
    opened += 1
    ours = os.path.join(folder.name, f"{opened}.bin")
    stream = subprocess.run([PROGRAM, "from-bin", path], capture_output=True)
    if stream.returncode == 0:
        subprocess.run([PROGRAM, "to-bin", "-o", ours, *OPTIONS], input=stream.stdout, check=True)
    expected, theirs = samples(path)
    if (stream.returncode == 0) != (theirs is None):
        disagreements.append(f"we say {stream.returncode} {stream.stderr.decode().strip()!r}, CPython says {theirs}")
    elif stream.returncode == 0 and samples(ours) != (expected, None):
        disagreements.append(f"profile {opened}: the samples differ")
    if stream.returncode == 0:
        return ours
    refused += 1
    return None


def reader(path, *args, **kwargs):
    if isinstance(path, (str, os.PathLike)) and os.path.isfile(path):
        path = through(os.fspath(path)) or path
    return Real(path, *args, **kwargs)


def main():
    _remote_debugging.BinaryReader = reader
    suite = unittest.defaultTestLoader.loadTestsFromName(SUITE)
    result = unittest.TextTestRunner(stream=open(os.devnull, "w"), verbosity=0, buffer=True).run(suite)
    print(f"CPython's own suite: {result.testsRun} tests, {opened} profiles through our program, "
          f"{refused} of them refused by both")
    failed = {test.id().rpartition(".")[2]: text for test, text in result.failures + result.errors}
    for name in sorted(failed.keys() | KNOWN.keys()):
        if name not in KNOWN:
            print(f"{name} fails:\n{failed[name]}")
        elif name in failed:
            print(f"{name} fails as it has to: it {KNOWN[name]}")
        else:
            print(f"{name} passes, although it is known to fail")
    for line in disagreements:
        print(f"disagreement: {line}")
    if failed.keys() != KNOWN.keys() or disagreements or opened < 50:
        sys.exit(1)


if __name__ == "__main__":
    main()
