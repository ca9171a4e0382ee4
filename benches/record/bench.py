"""What a live recording costs, beside CPython's own --binary.

    python3.15 benches/record/bench.py target/release/tachyon-jsonl [TABLE...]

TABLE is cpu, latency, readers or idle; all of them without one. Numbers are medians of PAIRS runs, each
with its counterpart right before it. See benches/README.md.
"""

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PAIRS = int(os.environ.get("BENCH_PAIRS", 3))
SECONDS = int(os.environ.get("BENCH_SECONDS", 6))

TARGET = """
import threading, time
def leaf(n): return sum(i * i for i in range(n))
def branch(depth, n): return branch(depth - 1, n) if depth else leaf(n)
def work():
    while True:
        for depth in range(0, 24, 3): branch(depth, 300)
def idle():
    while True: time.sleep(0.01)
for body in (work, work, idle, idle): threading.Thread(target=body, daemon=True).start()
print("up", flush=True)
time.sleep(3600)
"""
SLEEPER = "import time; print('up', flush=True); time.sleep(3600)"


@contextlib.contextmanager
def running(code):
    """A program to attach to."""
    target = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        target.stdout.readline()
        yield target.pid
    finally:
        target.kill()
        target.wait()
        target.stdout.close()


def cpu(usage):
    return usage.ru_utime + usage.ru_stime


def own_cpu(pid):
    """Seconds of a process alone, of its threads that still run, without its children."""
    seconds = 0.0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            seconds += int(file.read().split()[0]) / 1e9
    return seconds


def measured(command, **options):
    """Runs a command; its processor time with that of its children, and the last that was seen alone."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)
    alone = 0.0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        with contextlib.suppress(OSError, IndexError):
            alone = own_cpu(process.pid)
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return cpu(usage), alone


class Bench:
    def __init__(self, program, folder):
        self.program = program
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def record(self, *args):
        return [self.program, "record", "--python", sys.executable, *args]

    def samples(self, profile):
        out = subprocess.run([self.program, "-q", "from-bin", profile, "--stream-types", "meta,loss"],
                             stdout=subprocess.PIPE, check=True).stdout
        return json.loads(out.splitlines()[-1])["samples"]

    def cpu(self):
        """Samples and processor time beside CPython's own --binary, with and without a stream."""
        stock, ours, stream = self.path("stock.bin"), self.path("ours.bin"), self.path("ours.jsonl")
        own = [sys.executable, "-m", "profiling.sampling", "attach", "--binary", "-o", stock]
        kinds = {
            "own --binary": (own, os.devnull, stock),
            "-o prof.bin": (self.record("-o", ours, "--", "attach"), os.devnull, ours),
            "-o prof.bin -o -": (self.record("-o", ours, "-o", "-", "--", "attach"), stream, ours),
        }

        def used(kind, rate, seconds, pid):
            """Samples, processor seconds, those of our own process."""
            command, out, profile = kinds[kind]
            with open(out, "wb") as file:
                total, alone = measured([*command, "-a", "-r", rate, "-d", str(seconds), str(pid)], stdout=file)
            return self.samples(profile), total, alone

        print("| rate | recording | samples / own's | samples a CPU s / own's | CPU a sample of that process alone / own's "
              "| CPU s to start |")
        print("| --- | --- | ---: | ---: | ---: | ---: |")
        for rate in ("1khz", "10khz", "50khz"):
            with running(TARGET) as pid:
                start = {kind: min(used(kind, "1hz", 1, pid)[1] for _ in range(3)) for kind in kinds}
                runs = {kind: [] for kind in kinds}
                for _ in range(PAIRS):
                    for kind in kinds:
                        runs[kind].append(used(kind, rate, SECONDS, pid))
            for kind in kinds:
                rows = []
                for (own_count, own_total, _), (count, total, alone) in zip(runs["own --binary"], runs[kind]):
                    own_speed = own_count / (own_total - start["own --binary"])
                    rows.append((count / own_count, count / (total - start[kind]) / own_speed, alone / count * own_speed))
                counts, speed, alone = (statistics.median(column) for column in zip(*rows))
                print(f"| {rate} | {kind} | {counts:.3f} | {speed:.3f} | {alone:.4f} | {start[kind]:.2f} |", flush=True)

    def latency(self):
        """From the last and the first sample of a batch to a reader of a socket."""
        print("| rate | flush | last sample, median ms | last, 99 % | first sample, median ms | first, 99 % |")
        print("| --- | --- | ---: | ---: | ---: | ---: |")
        for rate in ("1khz", "10khz"):
            path = self.path("live")
            with running(TARGET) as pid:
                recorder = subprocess.Popen(
                    self.record("-o", f"unix-listen:{path}", "--flush", "interval:100ms", "--stream-types",
                                "raw", "--", "attach", "-a", "-r", rate, "-d", str(2 * SECONDS), str(pid)),
                    stderr=subprocess.DEVNULL)
                last, first = [], []
                batch = None
                for line in lines_of(path):
                    now_us = time.monotonic_ns() // 1000
                    kind = line[9 : line.index(b'"', 9)]
                    if kind == b"meta":
                        batch = json.loads(line)
                        messages = batch["messages"]
                    if batch and json.loads(line)["seq"] == batch["seq"] + messages - 1:
                        # All of the batch is there.
                        first.append((now_us - batch["start_usec"]) / 1000)
                        last.append((now_us - batch["start_usec"] - batch["duration_usec"]) / 1000)
                recorder.wait()
            worst = lambda values: sorted(values)[int(len(values) * 0.99)]
            numbers = (statistics.median(last), worst(last), statistics.median(first), worst(first))
            print(f"| {rate} | 100 ms | " + " | ".join(f"{number:.1f}" for number in numbers) + " |", flush=True)

    def readers(self):
        """How fast one stream goes to several readers who get all of it, beside a plain copy of its bytes."""
        profile, stream = self.path("big.bin"), self.path("big.jsonl")
        with running(TARGET) as pid:
            measured(self.record("-o", profile, "--", "attach", "-a", "-r", "20khz", "-d", "15", str(pid)),
                     stdout=subprocess.DEVNULL)
        # Runs in a row.
        convert = [self.program, "-q", "from-bin", *[profile] * 20, "-o"]
        subprocess.run([*convert, stream], check=True)
        size = os.path.getsize(stream) / 1e6
        print(f"A stream of {size:.0f} MB.\n")
        print("| readers | MB/s to all of them | time / copy's | time / that to a file |")
        print("| ---: | ---: | ---: | ---: |")
        for count in (1, 4, 16):
            rows = []
            for _ in range(PAIRS):
                begun = time.monotonic()
                subprocess.run([*convert, self.path("again.jsonl")], check=True)
                alone = time.monotonic() - begun
                plain = copied(stream, self.path("copy"), count)
                path = self.path("live")
                sender = subprocess.Popen(
                    [*convert, f"unix-listen:{path}", "--drop-policy", "block", "--wait-readers", str(count)],
                    stderr=subprocess.DEVNULL)
                took = drained(path, count)
                assert sender.wait() == 0
                rows.append((count * size / took, took / plain, took / alone))
            speed, ratio, beside = (statistics.median(column) for column in zip(*rows))
            print(f"| {count} | {speed:.0f} | {ratio:.1f} | {beside:.2f} |", flush=True)

    def idle(self):
        """The recorder's own processor time while its target sleeps and a reader gets heartbeats."""
        print("| rate | CPU of ours, % of a core | CPU of CPython's profiler, % of a core |")
        print("| --- | ---: | ---: |")
        for rate in ("1hz", "100hz", "1khz"):
            path = self.path("live")
            with running(SLEEPER) as pid:
                recorder = subprocess.Popen(
                    self.record("-o", f"unix-listen:{path}", "--stream-types", "raw,heartbeat:1s,loss", "--",
                                "attach", "-a", "-r", rate, str(pid)), stderr=subprocess.DEVNULL)
                threading.Thread(target=lambda: sum(map(len, lines_of(path)))).start()
                time.sleep(3)
                with open(f"/proc/{recorder.pid}/task/{recorder.pid}/children") as file:
                    pids = [recorder.pid, int(file.read().split()[0])]
                before = list(map(own_cpu, pids))
                time.sleep(2 * SECONDS)
                used = [(own_cpu(pid) - early) / (2 * SECONDS) * 100 for pid, early in zip(pids, before)]
                recorder.terminate()
                recorder.wait()
            print(f"| {rate} | {used[0]:.2f} | {used[1]:.2f} |", flush=True)


def connected(path):
    """A socket, once somebody listens there."""
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(path)
            return client
        except OSError:
            client.close()
            time.sleep(0.01)


def lines_of(path):
    with connected(path) as client, client.makefile("rb") as file:
        yield from file


def drained(path, count):
    """How long so many readers take to read all."""
    script = ("import socket, sys\nclient = socket.socket(socket.AF_UNIX)\nclient.connect(sys.argv[1])\n"
              "buffer = bytearray(1 << 20)\nwhile client.recv_into(buffer): pass")
    while not os.path.exists(path):
        time.sleep(0.01)
    begun = time.monotonic()
    readers = [subprocess.Popen([sys.executable, "-S", "-c", script, path]) for _ in range(count)]
    for reader in readers:
        assert reader.wait() == 0
    return time.monotonic() - begun


def copied(file, path, count):
    """How long a plain copy of a file to so many readers takes."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(count)

    def serve():
        clients = [server.accept()[0] for _ in range(count)]
        threads = [threading.Thread(target=send, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()

    def send(client):
        with client, open(file, "rb") as bytes_:
            while piece := bytes_.read(1 << 18):
                client.sendall(piece)

    threading.Thread(target=serve).start()
    took = drained(path, count)
    server.close()
    os.unlink(path)
    return took


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(program, folder)
        for table in sys.argv[2:] or ["cpu", "latency", "readers", "idle"]:
            print(f"\n{table}:\n", flush=True)
            getattr(bench, table)()


if __name__ == "__main__":
    main()
