"""Stands in for CPython 3.15 under `tachyon-jsonl record --python`: says what its arguments ask for.

    run begin part:0 sleep:0.1 part:1 end exit:3

`PARTS` is the folder of the profiles 0.bin, 1.bin, ... `VERSION` is the version that it claims.
"""

import json
import os
import select
import signal
import sys
import time

if len(sys.argv) == 3:
    print(os.environ.get("VERSION", "3.15.2"))
    sys.exit(int(os.environ.get("PROBE_STATUS", "0")))

assert sys.argv[1:3] == ["-P", "-c"], sys.argv
pipe, interval, samples = map(int, sys.argv[4:7])
profiler = os.getpid()
stopped = False


def stop(number, frame):
    global stopped
    stopped = True


signal.signal(signal.SIGINT, stop)


def packets(message, profiler):
    room = select.PIPE_BUF - 8
    pieces = [message[at : at + room] for at in range(0, len(message), room)]
    for number, piece in enumerate(pieces):
        last = (number == len(pieces) - 1) << 31
        yield profiler.to_bytes(4, "big") + (len(piece) | last).to_bytes(4, "big") + piece


def send(message, profiler):
    try:
        for packet in packets(message, profiler):
            os.write(pipe, packet)
    except BrokenPipeError:
        os._exit(1)


def is_alone():
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def part(number):
    with open(os.path.join(os.environ["PARTS"], f"{number}.bin"), "rb") as file:
        return file.read()


def tell(kind, **facts):
    send(json.dumps({"type": kind, **facts}).encode(), profiler)


def is_last(actions, profiler):
    """Whether a profiler that is at work ends without another part."""
    at_work = profiler
    for action in actions:
        what, _, value = action.partition(":")
        if what == "as":
            at_work = int(value)
        elif at_work == profiler and what in ("part", "all", "damaged", "end"):
            return what == "end"
    return False


def tell_last(actions, profiler):
    if is_last(actions, profiler):
        send(b'{"type":"last"}', profiler)


def parts():
    return sum(name.endswith(".bin") for name in os.listdir(os.environ["PARTS"]))


assert sys.argv[8] == "run"
for at, action in enumerate(sys.argv[9:], 10):
    to_come = sys.argv[at:]
    what, _, value = action.partition(":")
    if what == "begin":
        tell("begin", pid=profiler, wall_us=1_790_000_000_000_000, monotonic_us=int(value or 0), host="web1",
             arguments=["python", "app.py", "--token", "secret"])
    elif what == "as":
        profiler = int(value)
    elif what == "part":
        tell_last(to_come, profiler)
        send(part(value), profiler)
    elif what == "all":
        for number in range(parts()):
            if number + 1 == parts():
                tell_last(to_come, profiler)
            send(part(number), profiler)
    elif what == "mixed":
        # Part 0 of this profiler and of another, their packets by turns.
        tell_last(to_come, profiler)
        if f"as:{value}" in to_come:
            tell_last(to_come[to_come.index(f"as:{value}"):], int(value))
        for both in zip(packets(part(0), profiler), packets(part(0), int(value))):
            for packet in both:
                os.write(pipe, packet)
    elif what == "damaged":
        message = bytearray(part(value))
        message[len(message) // 2] ^= 0xFF
        message[70] ^= 0xFF
        send(bytes(message), profiler)
    elif what == "half":
        # Its first packet, as of a message of which more should come.
        piece = part(value)[:100]
        os.write(pipe, profiler.to_bytes(4, "big") + len(piece).to_bytes(4, "big") + piece)
    elif what == "noise":
        os.write(pipe, b"this is no packet at all")
    elif what in ("denied", "refused"):
        tell(what, detail=value)
    elif what == "exit":
        tell("exit", status=int(value) if value else None)
    elif what == "end":
        tell("end")
    elif what == "say":
        print(value, flush=True)
    elif what == "asked":
        print(interval, samples, *sys.argv[3][:3], sep="|", flush=True)
    elif what == "hup":
        print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, flush=True)
    elif what == "umask":
        print(f"{int(sys.argv[7]):03o}", flush=True)
    elif what == "environment":
        print(sorted(name for name in os.environ if value in name), flush=True)
    elif what == "open":
        # What comes at once: a profile without samples.
        with open(os.path.join(os.path.dirname(__file__), "../data/cpython/edge_zero_samples_none.bin"), "rb") as file:
            send(file.read(), profiler)
    elif what == "escaped":
        tell("escaped", name=value)
    elif what == "missed":
        tell("missed", pid=int(value))
    elif what == "touch":
        open(os.environ[value], "w").close()
    elif what == "gate":
        while not os.path.exists(os.environ["GATE"]):
            if is_alone():
                os._exit(1)
            time.sleep(0.02)
    elif what == "sleep":
        time.sleep(float(value))
    elif what in ("wait", "deaf"):
        while what == "deaf" or not stopped:
            if is_alone():
                os._exit(1)
            time.sleep(0.02)
    elif what == "quit":
        os._exit(int(value))
