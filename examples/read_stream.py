#!/usr/bin/env python3
"""Read a tachyon-jsonl stream (schema version 2) with nothing but Python.

    tachyon-jsonl from-bin prof.bin | python3 read_stream.py [STREAM] [-n ROWS]

prints the functions in which most samples were taken. As a module,
`samples(lines)` gives every sample, and `messages(lines)` every message with
the definitions that it needs. Python 3.9 or later, no other packages.
"""

import argparse
import base64
import json
import os
import sys
from collections import Counter
from typing import NamedTuple, Optional

VERSION = 2


class Frame(NamedTuple):
    """One line of a stack. None means that the profile doesn't know it.

    A frame without a line is not code but a marker, such as `<GC>`. Columns
    are byte offsets in the UTF-8 text of the line. A path or function that is
    no valid UTF-8 keeps its bytes as surrogates (see os.fsencode).
    """

    path: str
    function: str
    line: Optional[int]
    end_line: Optional[int]
    col: Optional[int]
    end_col: Optional[int]
    opcode: Optional[int]


def messages(lines):
    """Yield (message, frames) for each message that can be understood.

    `lines` is any iterable of str or bytes. `frames` maps the frame ids of
    the message's batch to Frame, as far as they are defined by then.
    Runs may be mixed: each has its own definitions, told apart by `run_id`.
    A part of a batch whose `meta` was not seen is passed over, so a stream may
    be joined at any time and may have lost messages.
    """
    runs = {}  # run_id -> (number, strings, frames) of the batch that is open
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        message = json.loads(line)
        if message.get("v") != VERSION:
            raise ValueError(f"line {number}: schema version {message.get('v')} is not known")
        kind, run = message["type"], message["run_id"]
        if kind == "meta":
            runs[run] = message["batch"], {}, {}
        batch, strings, frames = runs.get(run, (None, {}, {}))
        if kind in ("str_def", "frame_def", "raw", "agg") and message["batch"] != batch:
            continue
        try:
            if kind == "str_def":
                strings.update(zip(message["str_id"], message["value"]))
                for str_id, text in message.get("base64", {}).items():
                    strings[int(str_id)] = base64.b64decode(text).decode("utf-8", "surrogateescape")
            elif kind == "frame_def":
                frames.update(_frames(message, strings))
        except KeyError as missing:
            raise ValueError(f"line {number}: {kind} without {missing}") from None
        yield message, frames


def _frames(message, strings):
    """The frames of one frame_def. A column without any value is left out."""
    ids = message["frame_id"]
    nothing = [None] * len(ids)
    columns = [message.get(name, nothing) for name in Frame._fields[2:]]
    paths = (strings[i] for i in message["path_str_id"])
    functions = (strings[i] for i in message["func_str_id"])
    return zip(ids, map(Frame, paths, functions, *columns))


def samples(lines):
    """Yield (run_id, interpreter_id, thread_id, time_usec, status, stack).

    A stack is a list of Frames, innermost first; samples with equal stacks may
    share it, so don't change it. Each thread's samples come in the order in
    which they were taken, but thread by thread within a message. A thread_id
    is a string: it is a name, and may be too large for some readers' numbers.
    """
    for message, frames in messages(lines):
        if message["type"] != "raw":
            continue
        run = message["run_id"]
        stacks = _stacks(message, frames)
        for thread in message["threads"]:
            now = message["start_usec"]
            deltas = thread["ts_delta_usec"]
            nodes = thread.get("stack") or [None] * len(deltas)
            for delta, status, node in zip(deltas, thread["status"], nodes):
                now += delta
                yield run, thread["interpreter_id"], thread["thread_id"], now, status, stacks[node]


def _stacks(message, frames):
    """The stack that ends in each node of the message's call tree.

    Node i is a call of frame stack_frame_id[i] by node stack_parent[i], which
    comes before it; a node without a parent is a root.
    """
    calls = message["stack_frame_id"]
    parents = message.get("stack_parent") or [None] * len(calls)
    stacks = {None: []}
    for node, (frame_id, parent) in enumerate(zip(calls, parents)):
        if frame_id not in frames:
            raise ValueError(f"run {message['run_id']}, message {message['seq']}: "
                             f"frame {frame_id} is not defined in its batch")
        stacks[node] = [frames[frame_id], *stacks[parent]]
    return stacks


def hottest(lines):
    """Count samples by function: ({(path, function): [self, cumulative]}, total).

    self: the function was running; cumulative: it was somewhere in the stack,
    counted once a sample, however often it recurs. Empty stacks don't count.
    """
    leaves, anywhere, total = Counter(), Counter(), 0
    for *_, stack in samples(lines):
        if stack:
            total += 1
            leaves[stack[0][:2]] += 1
            anywhere.update({frame[:2] for frame in stack})
    return {name: [leaves[name], count] for name, count in anywhere.items()}, total


def printable(text):
    """Names may hold anything, such as line feeds and control characters."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def main():
    parser = argparse.ArgumentParser(description="Print the hottest functions of a stream.")
    parser.add_argument("stream", nargs="?", default="-", help="default: standard input")
    parser.add_argument("-n", type=int, default=20, metavar="ROWS", help="default: 20")
    options = parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8")
    source = sys.stdin.buffer if options.stream == "-" else open(options.stream, "rb")
    with source as lines:
        table, total = hottest(lines)
    print(f"{'self':>8} {'%':>6} {'cumul.':>8} {'%':>6}  function")
    order = sorted(table.items(), key=lambda row: (-row[1][0], -row[1][1], row[0]))
    for (path, function), (leaf, anywhere) in order[:options.n]:
        print(f"{leaf:8} {leaf / total:6.1%} {anywhere:8} {anywhere / total:6.1%}  "
              f"{printable(function)} ({printable(path)})")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # by head, for one: nobody wants the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
