"""Live recordings by the real CPython 3.15.

    python3.15 record.py PROGRAM

Runs PROGRAM record on programs that end, crash, fork, start others and are attached to; ends recordings by
signals; kills the profiler and the recorder; takes snapshots of a ring. Every stream is held against
PROGRAM check, and every profile is read back.
"""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

PATIENCE = 30

TARGET = """
import os, subprocess, sys, threading, time
def leaf(n): return sum(i * i for i in range(n))
def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end: leaf(2000)
def threads(seconds):
    several = [threading.Thread(target=spin, args=(seconds,)) for _ in range(2)]
    for thread in several: thread.start()
    for thread in several: thread.join()
print("the target speaks", flush=True)
what, seconds = sys.argv[1], float(sys.argv[2])
if what == "exit":
    threads(seconds)
    sys.exit(3)
elif what == "crash":
    spin(seconds)
    os.abort()
elif what == "fork":
    child = os.fork()
    if child:
        print(child, flush=True)
        spin(seconds)
    else:
        time.sleep(60)
    os._exit(0)
elif what == "children":
    children = [subprocess.Popen([sys.executable, __file__, "exit", sys.argv[2]]) for _ in range(2)]
    spin(seconds + 1)
    for child in children: child.wait()
"""


class Tests:
    def __init__(self, program, folder):
        self.program = program
        self.folder = folder
        self.target = self.path("target.py")
        with open(self.target, "w") as file:
            file.write(TARGET)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *args, **options):
        command = [self.program, "record", "--python", sys.executable, "--flush", "interval:200ms", *args]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(command, **options)

    def record(self, *args, code=0, **options):
        """What a recording writes to its outputs."""
        process = self.start(*args, **options)
        out, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, (process.returncode, said)
        return out, said.decode()

    def run(self, *args, code=0, data=b""):
        done = subprocess.run([self.program, *args], input=data, capture_output=True, timeout=PATIENCE)
        assert done.returncode == code, (args, done.returncode, done.stdout[:500], done.stderr)
        return done.stdout

    def messages(self, stream):
        """The messages of a sound stream."""
        if isinstance(stream, str):
            with open(stream, "rb") as file:
                stream = file.read()
        self.run("check", data=stream)
        return [json.loads(line) for line in stream.splitlines()]

    def end_of(self, stream):
        (end,) = (message for message in self.messages(stream) if message["type"] == "end")
        return end

    def samples_in(self, profile, code=0):
        return self.end_of(self.run("-q", "from-bin", profile, code=code))["samples"]

    def wait_for(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert time.monotonic() < end, what
            time.sleep(0.02)
        return found

    def wait_for_size(self, path, size):
        self.wait_for(lambda: os.path.exists(path) and os.path.getsize(path) >= size, f"{path} grows")

    def child_of(self, process):
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            return int(file.read().split()[0])

    def ask(self, control, command):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(control)
            client.sendall(command.encode() + b"\n")
            return json.loads(client.makefile().readline())

    @contextlib.contextmanager
    def running(self, what, seconds):
        """A program to attach to."""
        process = subprocess.Popen([sys.executable, self.target, what, str(seconds)], stdout=subprocess.PIPE)
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def test_run(self):
        out, said = self.record("--label", "host=web1", "--", "run", "-a", self.target, "exit", "1")
        assert "the target speaks" in said and "with exit status 3" in said, said
        messages = self.messages(out)
        metas = [message for message in messages if message["type"] == "meta"]
        assert len(metas) >= 4, "a batch each 200 ms"
        assert metas[0]["labels"]["host"] == "web1" and metas[0]["labels"]["pid"].isdigit(), metas[0]
        assert metas[0]["labels"]["command"].endswith("target.py exit 1"), metas[0]
        assert abs(metas[0]["wall_usec"] / 1e6 - time.time()) < 60
        end = messages[-1]
        assert end["complete"] and end["samples"] == sum(meta["samples"] for meta in metas) > 0
        assert end["stats"]["duration_sec"] > 0.8 and end["stats"]["sample_rate"] > 0, end

    def test_stream_and_profile_at_once_and_the_targets_output(self):
        stream, profile = self.path("both.jsonl"), self.path("both.bin")
        for options in ([], ["--mode", "cpu"], ["--native", "--opcodes", "--no-gc"], ["--compression", "none"]):
            args = ["run", "-a", "-r", "5khz", *options, self.target, "exit", "0.6"]
            out, said = self.record("-o", stream, "-o", profile, "--", *args)
            assert out == b"the target speaks\n", out
            # But for the last table, which has a batch of its own in what is live.
            def samples(messages):
                return [{**m, "seq": 0} for m in self.messages(messages) if m["type"] == "raw"]
            assert samples(self.run("from-bin", profile)) == samples(stream) != [], "the same from both"

    def test_a_module(self):
        out, _ = self.record("--", "-m", "timeit", "-n", "300", "sum(range(20000))")
        assert self.end_of(out)["samples"] > 0

    def test_attach(self):
        with self.running("exit", 60) as target:
            out, _ = self.record("--", "attach", "-a", "-d", "1", str(target.pid))
            assert target.poll() is None, "it goes on"
            end = self.end_of(out)
            assert end["complete"] and end["samples"] > 100, end

    def test_subprocesses(self):
        stream, profile = self.path("children.jsonl"), self.path("children.bin")
        self.record("-o", stream, "-o", profile, "--", "run", "-a", "--subprocesses", self.target, "children", "3")
        ends = [message for message in self.messages(stream) if message["type"] == "end"]
        assert len(ends) == 3 and all(end["complete"] and end["samples"] for end in ends), ends
        first = ends[-1]["run_id"]
        assert len({end["run_id"] for end in ends}) == 3
        assert all(end["run_id"].startswith(first + "-") for end in ends[:-1])
        of_children = [name for name in os.listdir(self.folder) if name.startswith("children_")]
        assert len(of_children) == 2, of_children
        counts = [self.samples_in(self.path(name)) for name in ["children.bin", *of_children]]
        assert sorted(counts) == sorted(end["samples"] for end in ends)

    def test_a_target_that_crashes(self):
        out, said = self.record("--", "run", self.target, "crash", "0.7")
        assert "by signal 6" in said, said
        end = self.end_of(out)
        assert end["complete"] and end["samples"] > 0 and "stats" in end, end

    def test_a_target_that_forks_does_not_hold_the_pipe(self):
        with open(self.path("said"), "w+") as said:
            process = self.start("-o", self.path("fork.jsonl"), "--", "run", self.target, "fork", "1",
                                 stdout=said, stderr=subprocess.DEVNULL)
            # The child goes on for longer than this waits.
            assert process.wait(timeout=PATIENCE) == 0
            said.seek(0)
            os.kill(int(said.read().split()[-1]), signal.SIGKILL)
        assert self.end_of(self.path("fork.jsonl"))["complete"]

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            path = self.path("signal.jsonl")
            process = self.start("-o", path, "--", "run", "-a", self.target, "exit", "60")
            self.wait_for_size(path, 1)
            process.send_signal(number)
            _, said = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, said
            end = self.end_of(path)
            assert end["complete"] and "stats" in end, end
            os.unlink(path)

    def test_the_profiler_is_killed(self):
        with self.running("exit", 60) as target:
            path = self.path("killed.jsonl")
            process = self.start("-o", path, "--", "attach", str(target.pid))
            self.wait_for_size(path, 1)
            os.kill(self.child_of(process), signal.SIGKILL)
            _, said = process.communicate(timeout=PATIENCE)
            assert process.returncode == 3, said
            messages = self.messages(path)
            assert [m for m in messages if m["type"] == "loss" and m["reason"] == "truncated"]
            assert not messages[-1]["complete"]

    def test_the_recorder_is_killed(self):
        with self.running("exit", 60) as target:
            stream, profile = self.path("dead.jsonl"), self.path("dead.bin")
            process = self.start("-o", stream, "-o", profile, "--", "attach", "-a", str(target.pid))
            self.wait_for_size(stream, 50_000)
            last_us = time.monotonic_ns() // 1000
            process.kill()
            process.wait()
            process.stdout.close(), process.stderr.close()
            assert target.poll() is None, "it goes on"
            again = [json.loads(line) for line in self.run("-q", "from-bin", profile).splitlines()]
            ends = [m["start_usec"] + m["duration_usec"] for m in again if m["type"] == "meta"]
            # The interval, and time for a busy machine to hand over and write.
            assert last_us - ends[-1] < 200_000 + 800_000, (last_us - ends[-1]) / 1e6
            with open(stream, "rb") as file:
                whole = [json.loads(line) for line in file if line.endswith(b"\n")]
            assert [m["samples"] for m in whole if m["type"] == "meta"][: len(ends)], "batches"

    def test_nobody_is_left_when_the_recorder_is_killed(self):
        # A target of which nothing is sampled.
        target = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"],
                                  stdout=subprocess.PIPE)
        with target:
            target.stdout.readline()
            control = self.path("control")
            process = self.start("-o", self.path("idle.jsonl"), "--control", f"unix:{control}", "--",
                                 "attach", "--mode", "cpu", str(target.pid))
            self.wait_for(lambda: os.path.exists(control) and self.ask(control, "status")["runs"], "sampling")
            profiler = self.child_of(process)
            process.kill()
            process.communicate(timeout=PATIENCE)
            self.wait_for(lambda: not os.path.exists(f"/proc/{profiler}"), "the profiler ends")
            assert target.poll() is None, "it goes on"
            target.kill()

    def test_ctrl_c(self):
        path = self.path("interrupted.jsonl")
        process = self.start("-o", path, "--", "run", "-a", self.target, "exit", "60", start_new_session=True)
        self.wait_for_size(path, 1)
        # The target hears of it too.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        end = self.end_of(path)
        assert end["complete"] and "stats" in end, end

    def test_readers_of_sockets(self):
        live, profile = self.path("live"), self.path("live.bin")
        process = self.start("-o", f"unix-listen:{live}", "-o", profile, "--stream-types", "raw,heartbeat:100ms,loss",
                             "--", "run", "-a", "-r", "2khz", self.target, "exit", "2")
        self.wait_for(lambda: os.path.exists(live), "the socket")
        assert os.stat(live).st_mode & 0o777 == 0o600
        stalled, first, late = (socket.socket(socket.AF_UNIX) for _ in range(3))
        # It never reads.
        stalled.connect(live)
        first.connect(live)
        with first, first.makefile("rb") as lines:
            early = [line for _, line in zip(range(20), lines)]
            late.connect(live)
            with late, late.makefile("rb") as behind:
                whole, rest = [*early, *lines], list(behind)
        stalled.close()
        out, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and out == b"the target speaks\n", said
        end = self.end_of(b"".join(whole))
        assert end["complete"] and end["samples"] == self.samples_in(profile), end
        messages = self.messages(b"".join(rest))
        assert messages[0]["type"] == "meta" and messages[0]["run_id"] == end["run_id"]
        got = sum(m["samples"] for m in messages if m["type"] == "raw")
        # What went before it came.
        missed = messages[-1]["lost"]["gap"]["lost_samples"]
        assert got + missed == end["samples"] and got > 0 and missed > 0, (got, missed, end["samples"])

    def test_ring(self):
        ring, control = self.path("ring"), self.path("control")
        with self.running("exit", 60) as target:
            process = self.start("--ring", "1s,4MiB", "--ring-file", ring, "--control", f"unix:{control}",
                                 "-o", self.path("asked-{}.bin"), "--", "attach", "-a", str(target.pid))
            self.wait_for(lambda: os.path.exists(control), "the socket")

            ask = functools.partial(self.ask, control)
            self.wait_for(lambda: (ask("status")["ring"] or {}).get("gone_chunks", 0) > 2, "chunks go")
            now_us = time.monotonic_ns() // 1000
            snapshot = self.path("now.bin")
            self.run("snapshot", "--control", f"unix:{control}", "-o", snapshot)
            # Older data had gone, and from-bin says so.
            messages = self.messages(self.run("-q", "from-bin", snapshot, code=3))
            (gap,) = (m for m in messages if m["type"] == "loss" and m["reason"] == "gap")
            assert gap["duration_usec"] > 0, gap
            first = messages[0]["start_usec"]
            last = max(m["start_usec"] + m["duration_usec"] for m in messages if m["type"] == "meta")
            assert last - first >= 900_000, "a second, whole chunks"
            assert last > now_us - 2_000_000
            process.send_signal(signal.SIGUSR1)
            asked = lambda: [name for name in os.listdir(self.folder) if name.startswith("asked-")]
            assert self.samples_in(self.path(self.wait_for(asked, "SIGUSR1")[0]), code=3) > 0
            answer = ask(f"snapshot {self.path('later.jsonl')} after 300ms")
            assert answer["ok"] and self.end_of(self.path("later.jsonl"))["samples"] == answer["samples"]
            process.kill()
            process.wait()
            process.stdout.close(), process.stderr.close()
        self.run("recover", ring, "-o", self.path("recovered.bin"))
        assert self.samples_in(self.path("recovered.bin"), code=3) > 0

    def test_a_process_that_may_not_be_traced(self):
        if os.geteuid() != 0:
            return
        with self.running("exit", 60) as target:
            os.chmod(self.folder, 0o755)
            process = self.start("--", "attach", str(target.pid), user=65534, group=65534, extra_groups=[])
            out, said = process.communicate(timeout=PATIENCE)
            assert process.returncode == 1 and b"CAP_SYS_PTRACE" in said and out == b"", said

    def test_refusals(self):
        for args, why in [
            (["run", "--flamegraph", self.target], "formats"),
            (["run", "-o", "x", self.target], "-o"),
            (["run", "--async-aware", self.target], "async"),
            (["run", "nowhere.py"], "nowhere.py"),
            (["attach", "4194000"], "4194000"),
        ]:
            out, said = self.record("--", *args, code=2)
            assert out == b"" and why in said and said.startswith("tachyon-jsonl: "), said


def main():
    program = os.path.abspath(sys.argv[1])
    names = sys.argv[2:] or [name for name in dir(Tests) if name.startswith("test_")]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            getattr(Tests(program, folder), name)()
            print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)
    print(f"{len(names)} live recordings are right")


if __name__ == "__main__":
    main()
