"""What `tachyon-jsonl record` runs in CPython 3.15: its sampling profiler, with a collector that hands
over a finished profile once in a while and begins the next.

    python3.15 -P -c CODE PIPE INTERVAL SAMPLES run|attach ARGS...

PIPE is the descriptor of an inherited pipe, INTERVAL the most microseconds and SAMPLES (0: any
number) the samples of a profile. Messages go through the pipe in packets so small that those of several
processes don't mix (schema: packets.rs). A message is a profile, or one JSON object.
"""

import signal

# Until there is something to hand over, who interrupts ends this without a word.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import fcntl
import json
import os
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import threading
import time

import _remote_debugging
from profiling.sampling import binary_collector, cli
from profiling.sampling._child_monitor import ChildProcessMonitor

PACKET = struct.Struct(">II")
LAST = 1 << 31
COORDINATOR = "profiling.sampling._sync_coordinator"


class Recorder:
    """The process at the other end of the pipe."""

    def __init__(self, pipe):
        self.pipe = pipe
        # Neither the target nor its children may keep the pipe open.
        os.set_inheritable(pipe, False)
        try:
            # Room for some profiles, so that sampling need not wait for the recorder.
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
        except (AttributeError, OSError):
            pass

    def watch(self):
        """Ends the profiler when nobody is there to record for, also while there is nothing to hand over.
        The target is left alone."""
        poll = select.poll()
        # That the other end is closed is told in any case.
        poll.register(self.pipe, 0)
        poll.poll()
        os._exit(1)

    def send(self, message):
        room = select.PIPE_BUF - PACKET.size
        try:
            for start in range(0, len(message), room):
                piece = message[start : start + room]
                is_last = start + room >= len(message)
                head = PACKET.pack(os.getpid(), len(piece) | (LAST if is_last else 0))
                os.write(self.pipe, head + piece)
        except BrokenPipeError:
            os._exit(1)

    def tell(self, kind, **facts):
        self.send(json.dumps({"type": kind, **facts}).encode())


class Scratch:
    """A file without a name for the profile in the making."""

    def __init__(self):
        self.file = None
        if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
            self.file = os.memfd_create("profile")

    def make(self, writer_of):
        """What `writer_of` gives for the path of an empty file."""
        if self.file is not None:
            self.path = f"/proc/self/fd/{self.file}"
            return writer_of(self.path)
        self.named, self.path = tempfile.mkstemp()
        try:
            return writer_of(self.path)
        finally:
            os.unlink(self.path)

    def take(self):
        """The bytes of the finished file."""
        file = self.named if self.file is None else self.file
        size, parts = os.fstat(file).st_size, []
        while size > 0:
            parts.append(os.pread(file, size, sum(map(len, parts))))
            size -= len(parts[-1])
        if self.file is None:
            os.close(file)
        return b"".join(parts)


class ChunkCollector(binary_collector.BinaryCollector):
    """A binary collector that hands over what it has, and goes on with an empty profile of the same run."""

    def __init__(self, filename, sample_interval_usec, *, skip_idle=False, compression="auto", mode=None,
                 capture_config=None):
        self.filename = filename
        self.sample_interval_usec = sample_interval_usec
        self.skip_idle = skip_idle
        self.running = True
        # Whether a signal has to wait.
        self.busy = False
        self._scratch = Scratch()
        now = time.monotonic()
        self._start_us = int(now * 1_000_000)
        self._due = now + INTERVAL
        self._settings = {
            "compression": binary_collector._resolve_compression(compression),
            "mode": -1 if mode is None else mode,
            "capture_features": binary_collector.encode_capture_config(capture_config),
        }
        self._begin()

    def _begin(self):
        # The same start in every part, so that the run has one.
        self._writer = self._scratch.make(lambda path: _remote_debugging.BinaryWriter(
            path, self.sample_interval_usec, self._start_us, **self._settings))

    def _hand_over(self):
        self._writer.finalize()
        RECORDER.send(self._scratch.take())

    def _pass(self, now):
        self._due = now + INTERVAL
        if self._writer.total_samples:
            self._hand_over()
            self._begin()

    def collect(self, stack_frames, timestamp_us=None):
        self.busy = True
        now = time.monotonic()
        if now >= self._due or (SAMPLES and self._writer.total_samples >= SAMPLES):
            self._pass(now)
        if timestamp_us is None:
            timestamp_us = int(now * 1_000_000)
        try:
            self._writer.write_sample(stack_frames, timestamp_us)
        except OverflowError:
            if not self._writer.limit_reached:
                raise
            self._pass(now)
            self._writer.write_sample(stack_frames, timestamp_us)
        self.busy = False

    def collect_failed_sample(self):
        self.busy = True
        now = time.monotonic()
        if now >= self._due:
            self._pass(now)
        self.busy = False

    def export(self, filename=None):
        """Hands over the last part, which says what was measured over the run."""
        RECORDER.tell("last")
        self._hand_over()
        RECORDER.tell("end")
        return True


class ChildMonitor(ChildProcessMonitor):
    """Profiles the target's children as this profiler does the target."""

    def _spawn_profiler_for_child(self, child_pid):
        # -P -c CODE PIPE INTERVAL SAMPLES
        start = sys.orig_argv.index("-P")
        command = [sys.executable, *sys.orig_argv[start : start + 6], "attach", str(child_pid)]
        with self._lock:
            is_full = len(self._spawned_profilers) >= 100
            if self._stop_event.is_set() or is_full:
                if is_full:
                    print(f"Warning: no profiler for process {child_pid}: there are 100", file=sys.stderr)
                return
            self._spawned_profilers.append(subprocess.Popen(
                command + [arg for arg in self.cli_args if arg != "--binary"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[RECORDER.pipe]))


def text_of(argument):
    return argument.decode("utf-8", "replace")


def command_line(pid):
    """The command line of a process, without the profiler's part of it; None where it can't be had."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = [text_of(argument) for argument in file.read().split(b"\0")[:-1]]
    except OSError:
        listed = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True)
        return text_of(listed.stdout).strip() or None
    if COORDINATOR in arguments[:8]:
        # python -m COORDINATOR PORT FOLDER script.py args
        at = arguments.index(COORDINATOR)
        arguments[at - 1 : at + 3] = []
    return shlex.join(arguments) or None


target = None
# Whether the profiler itself has ended the target.
has_ended_target = False
collecting = None
stock = {"sample": cli.sample, "start": cli._run_with_sync, "check": cli._validate_args}


def start(*args, **kwargs):
    global target
    target = stock["start"](*args, **kwargs)
    terminate = target.terminate

    def end():
        global has_ended_target
        has_ended_target = True
        terminate()

    target.terminate = end
    return target


def refuse(what):
    RECORDER.tell("refused", detail=what)
    sys.exit(2)


def check(args, parser):
    """Refuses what has no place in a recording; the rest is a recording with --binary."""
    if args.command not in ("run", "attach"):
        refuse(f"only run and attach can be recorded, not {args.command}")
    if args.format != "pstats" or args.outfile or args.browser:
        refuse("the profiler's formats and its -o have no place behind --: "
               "tachyon-jsonl's own -o, before it, says what is written")
    if args.live:
        refuse("--live has no place behind --: what is recorded is live as it is")
    if args.async_aware:
        refuse("--async-aware cannot be recorded: CPython 3.15 has no binary form for it")
    args.format = "binary"
    stock["check"](args, parser)


def sample(pid, collector, **options):
    """Samples, between what the recorder has to know before and after."""
    global collecting
    wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    RECORDER.tell(
        "begin", pid=pid, wall_us=wall_ns // 1000, monotonic_us=monotonic_ns // 1000,
        host=os.uname().nodename, command=command_line(pid))
    if not options.get("realtime_stats"):
        # What the profiler says of its work stands in the stream.
        sys.stdout = open(os.devnull, "w")
    collecting = collector
    try:
        stock["sample"](pid, collector, **options)
    except KeyboardInterrupt:
        # Between sampling and what is left to say of it.
        pass
    except PermissionError:
        raise
    except SystemExit as error:
        # The process has ended, or is no CPython of this version.
        RECORDER.tell("unreadable", detail=str(error))
        sys.exit(1)
    except Exception:
        # What was sampled before is sound.
        collector._hand_over()
        raise
    finally:
        collector.busy = True
    return collector


def stop(number, frame):
    """Ends the sampling, but no profile in the middle of its way."""
    for number in STOPS:
        signal.signal(number, lambda number, frame: None)
    if collecting is None:
        raise KeyboardInterrupt
    collecting.running = False
    if not collecting.busy:
        raise KeyboardInterrupt


STOPS = [signal.SIGINT, signal.SIGTERM]
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
    # Else it is not to end with its terminal (nohup), and the target neither.
    STOPS.append(signal.SIGHUP)


def main():
    for number in STOPS:
        signal.signal(number, stop)
    sys.argv[:4] = ["tachyon-jsonl record --"]
    # The target's standard output is its own.
    sys.stdout = sys.stderr
    cli.COLLECTOR_MAP["binary"] = ChunkCollector
    cli.ChildProcessMonitor = ChildMonitor
    cli._run_with_sync, cli.sample, cli._validate_args = start, sample, check
    try:
        cli.main()
    except PermissionError as error:
        RECORDER.tell("denied", detail=str(error))
        sys.exit(1)
    except (cli.SamplingUnknownProcessError, cli.SamplingModuleNotFoundError,
            cli.SamplingScriptNotFoundError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        if target and target.poll() is None:
            target.terminate()
        sys.exit(130)
    finally:
        status = target and target.poll()
        is_own = has_ended_target and status in (-signal.SIGTERM, -signal.SIGKILL)
        if status is not None and not is_own:
            RECORDER.tell("exit", status=status)


if __name__ == "__main__":
    RECORDER = Recorder(int(sys.argv[1]))
    threading.Thread(target=RECORDER.watch, daemon=True).start()
    INTERVAL, SAMPLES = int(sys.argv[2]) / 1_000_000, int(sys.argv[3])
    main()
