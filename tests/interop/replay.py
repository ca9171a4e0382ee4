"""Compare profiles by what CPython's own reader finds in them.

    python3.15 replay.py A.bin B.bin [A.bin B.bin ...]
    python3.15 replay.py --samples FILE A.bin [FILE A.bin ...]

Pairs: what get_info says of the two, and every sample, have to be equal.
--samples: the samples of A.bin have to be those of FILE, one collect() call a
line (see tests/data/README.md; packed if it ends in .zst, `-` for standard
input). --ignore KEY leaves a key of get_info out; it may be repeated.

Samples are compared thread by thread: a list of (time, status, stack) for each
interpreter and thread. How they were grouped into records doesn't matter.
One line a pair; exit status 1 if any pair differs or can't be read.
"""

import argparse
import json
import sys

from profiling.sampling.binary_reader import BinaryReader
from profiling.sampling.collector import Collector


class Threads(Collector):
    """(interpreter, thread) -> [(time, status, frames)], as they come."""

    def __init__(self):
        self.samples = {}
        self.count = 0
        self._shared = {}

    def collect(self, stack_frames, timestamps_us=None):
        for interpreter in stack_frames:
            for thread in interpreter.threads:
                stack = tuple(
                    (frame.filename, frame.location and tuple(frame.location), frame.funcname, frame.opcode)
                    for frame in thread.frame_info
                )
                self.add(interpreter.interpreter_id, thread.thread_id, thread.status, timestamps_us, stack)

    def add(self, interpreter_id, thread_id, status, times, stack):
        stack = self._shared.setdefault(stack, stack)
        self.samples.setdefault((interpreter_id, thread_id), []).extend(
            (time, status, stack) for time in times
        )
        self.count += len(times)

    def export(self, filename):
        return False


def replay(path):
    """What get_info says, and all samples, of a profile."""
    threads = Threads()
    with BinaryReader(path) as reader:
        info = reader.get_info()
        replayed = reader.replay_samples(threads)
    if replayed != threads.count or replayed != info["sample_count"]:
        raise ValueError(f"{path}: get_info says {info['sample_count']} samples, "
                         f"replay says {replayed}, the collector saw {threads.count}")
    return info, threads


def read_samples(path):
    """All samples of a file with one collect() call a line."""
    threads = Threads()
    if path == "-":
        file = sys.stdin.buffer
    elif path.endswith(".zst"):
        from compression import zstd
        file = zstd.open(path)
    else:
        file = open(path, "rb")
    with file:
        for line in file:
            interpreter_id, thread_id, status, times, frames = json.loads(line)
            stack = tuple((name, place and tuple(place), function, opcode)
                          for name, place, function, opcode in frames)
            threads.add(interpreter_id, thread_id, status, times, stack)
    return threads


def differences(a, b, info_a=None, info_b=None, ignore=()):
    """The first few of what differs, as texts."""
    if info_a is not None:
        for key in sorted({*info_a, *info_b} - set(ignore)):
            # By repr: floats to the last bit, and 0.0 is not -0.0 or 0.
            if repr(info_a.get(key)) != repr(info_b.get(key)):
                yield f"{key} {info_a.get(key)!r} != {info_b.get(key)!r}"
    for key in sorted({*a.samples, *b.samples}):
        name = f"interpreter {key[0]} thread {key[1]}"
        left, right = a.samples.get(key, []), b.samples.get(key, [])
        if len(left) != len(right):
            yield f"{name}: {len(left)} != {len(right)} samples"
        for number, (x, y) in enumerate(zip(left, right)):
            if x != y:
                yield f"{name}: sample {number}: {short(x)} != {short(y)}"
                break


def short(sample, limit=300):
    text = repr(sample)
    return text if len(text) <= limit else text[:limit] + "..."


def main():
    parser = argparse.ArgumentParser(usage="%(prog)s [--ignore KEY] [--samples] A B [A B ...]")
    parser.add_argument("--samples", action="store_true", help="the first of each pair is a .samples.jsonl file")
    parser.add_argument("--ignore", action="append", default=[], metavar="KEY", help="a key of get_info")
    parser.add_argument("paths", nargs="+")
    options = parser.parse_intermixed_args()
    if len(options.paths) % 2:
        parser.error("files come in pairs")
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    failed = 0
    for left, right in zip(options.paths[::2], options.paths[1::2]):
        try:
            info_b, b = replay(right)
            if options.samples:
                info_a, a = None, read_samples(left)
            else:
                info_a, a = replay(left)
            found = list(differences(a, b, info_a, info_b, options.ignore))
        except (OSError, ValueError, RuntimeError) as error:
            found = [f"{type(error).__name__}: {error}"]
        if found:
            failed += 1
            print(f"FAILED {left} {right}: " + "; ".join(found[:3]), flush=True)
        else:
            print(f"ok {left} {right}: {a.count} samples, {len(a.samples)} threads", flush=True)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
