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
import shutil
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
elif what == "killed":
    ballast = bytearray(int(sys.argv[4]) << 20)
    for page in range(0, len(ballast), 4096): ballast[page] = 1
    threading.Timer(seconds, os.kill, (os.getpid(), int(sys.argv[3]))).start()
    spin(60)
elif what == "names":
    scope = {}
    exec(compile("def bad(): spin(0.5)", "caf\\udce9.py", "exec"), globals() | scope, scope)
    spin(seconds)
    scope["bad"]()
    spin(seconds)
elif what == "exec":
    spin(seconds)
    os.execv(sys.executable, [sys.executable, __file__, "exit", sys.argv[2]])
elif what == "quiet":
    time.sleep(seconds)
elif what == "shell":
    subprocess.run(["sh", "-c", "sleep 0.6; exec " + sys.executable + " " + __file__ + " exit 1"])
elif what == "short":
    for _ in range(3): subprocess.run([sys.executable, __file__, "exit", "0.5"])
elif what == "children":
    children = [subprocess.Popen([sys.executable, __file__, "exit", sys.argv[2]]) for _ in range(2)]
    spin(seconds + 1)
    for child in children: child.wait()
"""


class Skipped(Exception):
    """A test cannot run here."""


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
        assert metas[0]["labels"]["command"].endswith("target.py"), metas[0]
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
            # What is live has more batches: an empty one before the first sample, one for the last table.
            def samples(messages):
                return [{**m, "seq": 0, "batch": 0} for m in self.messages(messages) if m["type"] == "raw"]
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

    def test_subprocesses_that_are_hard_to_see(self):
        # One that becomes a CPython later, and some that are short: in the recording, or a loss on a busy machine.
        for what, count in [("shell", 2), ("short", 4)]:
            process = self.start("--", "run", "-a", "--subprocesses", self.target, what, "1")
            out, said = process.communicate(timeout=PATIENCE)
            ends = [message for message in self.messages(out) if message["type"] == "end"]
            is_whole = len(ends) == count and all(end["complete"] for end in ends)
            assert process.returncode == (0 if is_whole else 3), (what, said, ends)
            assert is_whole or (not ends[-1]["complete"] and b"not in the recording" in said), (what, said, ends)
            assert len(ends) > 1, (what, said)

    def test_a_target_that_crashes(self):
        out, said = self.record("--", "run", self.target, "crash", "0.7")
        assert "by signal 6" in said, said
        end = self.end_of(out)
        assert end["complete"] and end["samples"] > 0 and "stats" in end, end

    def test_a_target_that_is_killed(self):
        for number, megabytes in [(signal.SIGKILL, 1), (signal.SIGKILL, 500), (signal.SIGTERM, 1)] * 2:
            out, said = self.record("--", "run", "-a", self.target, "killed", "0.5", str(int(number)), str(megabytes))
            assert f"by signal {int(number)} ({number.name})" in said, said
            assert self.end_of(out)["complete"], out
        # One that the profiler ends has not ended by itself.
        _, said = self.record("--", "run", "-d", "1", self.target, "exit", "60")
        assert "ended" not in said, said
        with self.running("exit", 60) as target:
            path = self.path("attached.jsonl")
            process = self.start("-o", path, "--", "attach", str(target.pid))
            self.wait_for_size(path, 1)
            target.kill()
            _, said = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0 and b"the program ended\n" in said, said

    def test_a_target_that_becomes_another_program(self):
        out, said = self.record("--", "run", "-a", self.target, "exec", "1")
        end = self.end_of(out)
        assert "with exit status 3" in said and end["complete"] and end["duration_usec"] > 1_500_000, (said, end)

    def test_names_that_are_not_utf8(self):
        stream, profile = self.path("names.jsonl"), self.path("names.bin")
        _, said = self.record("-o", stream, "-o", profile, "--", "run", "-a", self.target, "names", "0.4")
        assert "not UTF-8: 1, written with escapes, as in caf\\udce9.py" in said, said
        names = {name for m in self.messages(stream) if m["type"] == "str_def" for name in m["value"]}
        assert "caf\\udce9.py" in names and "bad" in names, names
        end = self.end_of(stream)
        assert end["complete"] and end["duration_usec"] > 1_000_000, end
        assert self.samples_in(profile) == end["samples"]
        # A script in such a folder, started and refused.
        folder = os.path.join(os.fsencode(self.folder), b"caf\xe9")
        os.mkdir(folder)
        script = os.path.join(folder, b"x.py")
        with open(script, "w") as file:
            file.write("for _ in range(3000000): pass")
        out, _ = self.record("--", "run", script)
        messages = self.messages(out)
        assert messages[0]["labels"]["command"].endswith("/caf\\udce9/x.py"), messages[0]
        assert messages[-1]["samples"] > 0
        _, said = self.record("--", "run", os.path.join(folder, b"none.py"), code=2)
        assert "none.py" in said and "Traceback" not in said, said

    def test_a_locale_that_is_not_installed(self):
        out, said = self.record("--", "run", self.target, "exit", "0.3", env={**os.environ, "LC_ALL": "xx_YY"})
        assert self.end_of(out)["samples"] > 0 and "Traceback" not in said, said

    def test_a_run_is_known_before_its_first_sample(self):
        with self.running("quiet", 60) as target:
            path = self.path("quiet.jsonl")
            begun = time.monotonic()
            process = self.start("-o", path, "--stream-types", "raw,heartbeat:200ms", "--", "attach", "--mode",
                                 "exception", str(target.pid))

            def kinds():
                with open(path) as lines:
                    return [json.loads(line)["type"] for line in lines if line.endswith("\n")]

            self.wait_for(lambda: os.path.exists(path) and "meta" in kinds(), "meta")
            assert time.monotonic() - begun < 5
            before = kinds().count("heartbeat")
            time.sleep(1)
            assert 3 <= kinds().count("heartbeat") - before <= 6, kinds()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
            messages = self.messages(path)
            meta = messages[0]
            assert abs(meta["wall_usec"] / 1e6 - time.time()) < 60 and meta["labels"]["pid"] == str(target.pid), meta
            for beat in (m for m in messages if m["type"] == "heartbeat"):
                assert beat["wall_usec"] - beat["ts_usec"] == meta["wall_usec"] - meta["start_usec"], (meta, beat)

    def test_what_a_process_says_of_itself(self):
        def labels(*options, name, script):
            target = subprocess.Popen(["bash", "-c", 'exec -a "$0" "$@"', name, sys.executable, *script], stdout=subprocess.PIPE)
            with target:
                target.stdout.readline()
                out, _ = self.record(*options, "--", "attach", "-d", "1", str(target.pid))
                ps = ["ps", "-ww", "-o", "args=", "-p", str(target.pid)]
                shown = subprocess.check_output(ps, text=True).strip() if shutil.which("ps") else None
                target.kill()
            return self.messages(out)[0]["labels"].get("command"), shown
        script = [self.target, "exit", "60", "--password", "secret"]
        # As with setproctitle, whose title is all that is left.
        for name, short in [("python3.15", "python3.15 " + self.target), ("app: worker", "app: worker")]:
            said, _ = labels(name=name, script=script)
            assert said == short, said
            said, shown = labels("--command-arguments", name=name, script=script)
            assert said == " ".join([name, *script]), said
            assert shown in (None, said), shown
        assert labels("--no-command", name="python3.15", script=script)[0] is None

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
            again = [json.loads(line) for line in self.run("-q", "from-bin", profile, code=3).splitlines()]
            ends = [m["start_usec"] + m["duration_usec"] for m in again if m["type"] == "meta"]
            # The interval, and time for a busy machine to hand over and write.
            assert last_us - ends[-1] < 200_000 + 800_000, (last_us - ends[-1]) / 1e6
            with open(stream, "rb") as file:
                whole = [json.loads(line) for line in file if line.endswith(b"\n")]
            in_batches = lambda messages: [m["samples"] for m in messages if m["type"] == "meta" and m["samples"]]
            # A part goes to the profile first.
            assert in_batches(whole) in (in_batches(again), in_batches(again)[:-1]), "the stream has the same"

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
        self.run("recover", ring, "-o", self.path("recovered.bin"), code=3)
        assert self.samples_in(self.path("recovered.bin"), code=3) > 0

    def test_a_process_that_may_not_be_traced(self):
        if os.geteuid() != 0:
            raise Skipped("only root can start it as somebody else")
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
            try:
                getattr(Tests(program, folder), name)()
            except Skipped as why:
                assert not os.environ.get("CI"), f"{name} has to run here: {why}"
                print(f"!! {name} WAS NOT RUN: {why}", file=sys.stderr, flush=True)
            print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)
    print(f"{len(names)} live recordings are right")


if __name__ == "__main__":
    main()
