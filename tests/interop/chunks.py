"""Chunks of format version 2 (and what recover makes) under CPython's own reader.

    python3.15 chunks.py --pairs A.bin CHUNKED.bin [A.bin CHUNKED.bin ...]
    python3.15 chunks.py --recover PROGRAM FILE.bin [FILE.bin ...]

A chunk is a small profile whose header is the narrow one; given the wide header
of version 1 CPython reads it as it is. --pairs: the samples of all chunks, one
behind the other, have to be those of A.bin. --recover: whatever PROGRAM's
recover makes of the files, of every cut and of flipped bits of the small
chunked ones among them, has to be readable to the last sample.
"""

import hashlib
import os
import struct
import subprocess
import sys
import tempfile

from replay import Threads, replay

LITTLE, BIG = b"HCAT", b"TACH"


def chunks(data):
    """The chunks of a file, each with the wide header of version 1."""
    at = 0
    while at < len(data):
        order = {LITTLE: "<", BIG: ">"}[data[at:at + 4]]
        version, = struct.unpack_from(order + "I", data, at + 4)
        if version != 2:
            raise ValueError(f"version {version} at byte {at}")
        size, = struct.unpack_from(order + "Q", data, at + 56)
        python, start, interval = data[at + 8:at + 12], *struct.unpack_from(order + "QQ", data, at + 12)
        samples, threads, strings, frames, compression = struct.unpack_from(order + "IIQQI", data, at + 28)
        header = data[at:at + 4] + struct.pack(order + "I", 1) + python + struct.pack(
            order + "QQQIQQII", start, interval, samples, threads, strings, frames, compression, 0)
        assert len(header) == 64
        yield header + data[at + 64:at + size]
        at += size


def replay_chunks(data, folder):
    whole = Threads()
    path = os.path.join(folder, "chunk.bin")
    for chunk in chunks(data):
        with open(path, "wb") as file:
            file.write(chunk)
        _, threads = replay(path)
        for thread, samples in threads.samples.items():
            whole.samples.setdefault(thread, []).extend(samples)
        whole.count += threads.count
    return whole


def check_pairs(paths, folder):
    for plain, chunked in zip(paths[::2], paths[1::2]):
        _, expected = replay(plain)
        with open(chunked, "rb") as file:
            found = replay_chunks(file.read(), folder)
        if found.samples != expected.samples:
            sys.exit(f"{chunked}: the samples are not those of {plain}")
    print(f"{len(paths) // 2} profiles in chunks: CPython finds the same samples")


def variants(data):
    """The file, and, where it is small and chunked, what may become of it."""
    yield data
    if data[4:8] == struct.pack("<I", 2) and data[:4] == LITTLE and len(data) < 4000:
        for cut in range(0, len(data), 7):
            yield data[:cut]
        for bit in range(0, 8 * len(data), 13):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            yield bytes(flipped)


def check_recovered(program, paths, folder):
    seen = set()
    recovered = 0
    target = os.path.join(folder, "recovered.bin")
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        for variant in variants(data):
            done = subprocess.run([program, "recover", "-q"], input=variant, capture_output=True)
            if done.returncode not in (0, 1, 3) or (done.returncode == 1) != (not done.stdout):
                sys.exit(f"{path}: recover gives {done.returncode}: {done.stderr.decode()}")
            # A sound file of version 1 is copied, whether CPython knows its layout or not.
            is_chunked = done.stdout[:4] in (LITTLE, BIG) and 2 in done.stdout[4:8]
            if done.returncode == 1 or done.returncode == 0 and not is_chunked:
                continue
            digest = hashlib.sha256(done.stdout).digest()
            if digest in seen:
                continue
            seen.add(digest)
            try:
                if is_chunked:
                    replay_chunks(done.stdout, folder)
                else:
                    with open(target, "wb") as file:
                        file.write(done.stdout)
                    replay(target)
            except Exception as error:
                sys.exit(f"{path}: CPython does not read what recover made of it: {error}")
            recovered += 1
    print(f"{recovered} different files by recover: CPython reads every one")


def main():
    what, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        if what == "--pairs":
            check_pairs(rest, folder)
        elif what == "--recover":
            check_recovered(rest[0], rest[1:], folder)
        else:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
