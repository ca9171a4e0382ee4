"""What `tachyon-jsonl record` runs in CPython 3.15: its sampling profiler, with a collector that hands
over a finished profile once in a while and begins the next.

    python3.15 -P -c CODE PIPE INTERVAL SAMPLES UMASK run|attach ARGS...

PIPE is the descriptor of an inherited pipe, INTERVAL the most microseconds and SAMPLES (0: any
number) the samples of a profile, UMASK the program's file mode mask. Messages go through the pipe in packets so small that those of several
processes don't mix (schema: packets.rs). A message is a profile, or one JSON object.
"""

import signal

# Until there is something to hand over, who interrupts ends this without a word.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import fcntl
import json
import operator
import os
import select
import struct
import subprocess
import sys
import tempfile
import threading
import time

import _remote_debugging
from profiling.sampling import binary_collector, cli

PACKET = struct.Struct(">II")
LAST = 1 << 31
COORDINATOR = "profiling.sampling._sync_coordinator"
# Escaped names that are remembered.
ESCAPED = 1 << 16


class Recorder:
    """The process at the other end of the pipe."""

    def __init__(self, pipe):
        self.pipe = pipe
        # The packets of a message stand together, whichever thread sends it.
        self._lock = threading.Lock()
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
            with self._lock:
                for start in range(0, len(message), room):
                    piece = message[start : start + room]
                    is_last = start + room >= len(message)
                    head = PACKET.pack(os.getpid(), len(piece) | (LAST if is_last else 0))
                    os.write(self.pipe, head + piece)
        except BrokenPipeError:
            os._exit(1)

    def tell(self, kind, **facts):
        facts = {key: escaped(fact) if isinstance(fact, str) else fact for key, fact in facts.items()}
        self.send(json.dumps({"type": kind, **facts}).encode())


def escaped(text):
    """Text in which bytes that are not UTF-8 are escapes, as Python shows them (caf\\udce9.py)."""
    return text.encode("utf-8", "backslashreplace").decode()


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


class Names:
    """The names of a run. CPython's writer breaks at one that is not UTF-8, and all that it holds is lost,
    so that no other may reach it."""

    FILENAME, FUNCNAME = operator.itemgetter(0), operator.itemgetter(2)

    def __init__(self):
        self.escaped = {}
        self.forget()

    def forget(self):
        """Drops what is remembered of names that can be written: the program may make ever new ones."""
        self.writable = set()

    def writable_sample(self, interpreters):
        """A sample as it is, or with escapes in its names."""
        are_writable = self.writable.issuperset
        for interpreter in interpreters:
            for thread in interpreter.threads:
                frames = thread.frame_info
                if not (are_writable(map(self.FILENAME, frames)) and are_writable(map(self.FUNCNAME, frames))):
                    # Never seen before, or not writable.
                    return [self._interpreter(interpreter) for interpreter in interpreters]
        return interpreters

    def _interpreter(self, interpreter):
        number, threads = interpreter
        return type(interpreter)((number, [self._thread(thread) for thread in threads]))

    def _thread(self, thread):
        number, status, frames = thread
        return type(thread)((number, status, [self._frame(frame) for frame in frames]))

    def _frame(self, frame):
        filename, location, funcname, opcode = frame
        return type(frame)((self._name(filename), location, self._name(funcname), opcode))

    def _name(self, name):
        if name in self.writable:
            return name
        if name in self.escaped:
            return self.escaped[name]
        if (text := escaped(name)) == name:
            self.writable.add(name)
            return name
        if len(self.escaped) == ESCAPED:
            self.escaped.clear()
        self.escaped[name] = text
        RECORDER.tell("escaped", name=text)
        return text


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
        self._names = Names()
        now = time.monotonic()
        self._start_us = int(now * 1_000_000)
        # At once, also when there is nothing to sample: the recorder's stream begins.
        self._due = now
        self._has_begun = False
        self._settings = {
            "compression": binary_collector._resolve_compression(compression),
            "mode": -1 if mode is None else mode,
            "capture_features": binary_collector.encode_capture_config(capture_config),
        }
        self._begin()

    def _begin(self):
        self._names.forget()
        # The same start in every part, so that the run has one.
        self._writer = self._scratch.make(lambda path: _remote_debugging.BinaryWriter(
            path, self.sample_interval_usec, self._start_us, **self._settings))

    def _hand_over(self):
        if not self._has_begun:
            self._has_begun = True
            # Only now, when the process can be read, is there a run.
            RECORDER.tell(
                "begin", pid=self.pid, wall_us=time.time_ns() // 1000, monotonic_us=time.monotonic_ns() // 1000,
                host=os.uname().nodename, arguments=[escaped(argument) for argument in arguments_of(self.pid)])
        self._writer.finalize()
        RECORDER.send(self._scratch.take())

    def _pass(self, now):
        self._due = now + INTERVAL
        if self._writer.total_samples or not self._has_begun:
            self._hand_over()
            self._begin()

    def collect(self, stack_frames, timestamp_us=None):
        self.busy = True
        now = time.monotonic()
        if now >= self._due or (SAMPLES and self._writer.total_samples >= SAMPLES):
            self._pass(now)
        if timestamp_us is None:
            timestamp_us = int(now * 1_000_000)
        stack_frames = self._names.writable_sample(stack_frames)
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
        if IS_FORK and not self._has_begun:
            # It came too late.
            sys.exit(1)
        if monitor:
            monitor.stop_looking()
        RECORDER.tell("last")
        self._hand_over()
        RECORDER.tell("end")
        return True


def arguments_of(pid):
    """The command line of a process as ps shows it, without the profiler's part of it; empty where it can't be had."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            # A program that gives itself a title leaves zeros behind it.
            line = file.read().rstrip(b"\0")
        with open(f"/proc/{pid}/comm", "rb") as file:
            name = os.fsdecode(file.read().rstrip(b"\n"))
    except OSError:
        listed = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True)
        return os.fsdecode(listed.stdout).split()
    if not line:
        return [f"[{name}]"]
    arguments = [os.fsdecode(argument) for argument in line.split(b"\0")]
    if COORDINATOR in arguments[:8]:
        # python -m COORDINATOR PORT FOLDER script.py args
        at = arguments.index(COORDINATOR)
        arguments[at - 1 : at + 3] = []
    return arguments


target = None
monitor = None
collecting = None
# Signals by which the profiler itself has ended the target.
own_signals = set()
IS_FORK = False
stock = {"sample": cli.sample, "start": cli._run_with_sync, "check": cli._validate_args}


def start(*args, **kwargs):
    """Starts the target. What it ends by is told unless it is the profiler's own signal, which one that is
    about to end does not hear any more."""
    global target
    target = stock["start"](*args, **kwargs)

    def noting(number, send):
        def end():
            if not is_leaving(target.pid):
                own_signals.add(number)
            send()

        return end

    target.terminate = noting(signal.SIGTERM, target.terminate)
    target.kill = noting(signal.SIGKILL, target.kill)
    return target


def give_up(kind, detail, status=1):
    """Ends without a run. Whether a child is left out is for the monitor to tell."""
    if not IS_FORK:
        RECORDER.tell(kind, detail=detail)
    sys.exit(status)


def refuse(what):
    give_up("refused", what, 2)


def check(args, parser):
    """Refuses what has no place in a recording; the rest is a recording with --binary."""
    if args.command not in ("run", "attach"):
        refuse(f"only run and attach can be recorded, not {args.command}")
    if args.format != "pstats" or args.outfile or args.browser:
        refuse("the profiler's formats and its -o cannot be used after --: "
               "tachyon-jsonl's own -o, before it, says what is written")
    if args.live:
        refuse("--live cannot be used after --: a recording is live anyway")
    if args.async_aware:
        refuse("--async-aware cannot be recorded: CPython 3.15 has no binary form for it")
    args.format = "binary"
    stock["check"](args, parser)


def sample(pid, collector, **options):
    """Samples a process."""
    global collecting
    threading.Thread(target=RECORDER.watch, daemon=True).start()
    if not options.get("realtime_stats"):
        # What the profiler says of its work stands in the stream.
        sys.stdout = open(os.devnull, "w")
    collector.pid = pid
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
        give_up("unreadable", str(error))
    except Exception:
        # What was sampled before is sound.
        collector._hand_over()
        raise
    finally:
        collector.busy = True
    if target is None and not IS_FORK and is_leaving(pid):
        RECORDER.tell("exit", status=None)
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


def profile():
    """Does what the arguments say. Returns the exit status."""
    for number in STOPS:
        signal.signal(number, stop)
    try:
        # Not main, which wants the locale of the environment to be there, for numbers that nobody sees.
        cli._main()
    except PermissionError as error:
        give_up("denied", str(error))
    except (cli.SamplingUnknownProcessError, cli.SamplingModuleNotFoundError,
            cli.SamplingScriptNotFoundError) as error:
        refuse(str(error))
    except KeyboardInterrupt:
        if target and target.poll() is None:
            target.terminate()
        sys.exit(130)
    finally:
        status = target and target.poll()
        if status is not None and -status not in own_signals:
            RECORDER.tell("exit", status=status)
    return 0


def main():
    global RECORDER, INTERVAL, SAMPLES
    RECORDER = Recorder(int(sys.argv[1]))
    INTERVAL, SAMPLES = int(sys.argv[2]) / 1_000_000, int(sys.argv[3])
    os.umask(int(sys.argv[4]))
    sys.argv[:5] = ["tachyon-jsonl record --"]
    # The target's standard output is its own.
    sys.stdout = sys.stderr
    cli.COLLECTOR_MAP["binary"] = ChunkCollector
    cli.ChildProcessMonitor = ChildMonitor
    cli._run_with_sync, cli.sample, cli._validate_args = start, sample, check
    profile()
