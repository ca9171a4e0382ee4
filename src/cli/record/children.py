"""The target's children: which there are, and a profiler for each. The rest of the program is
collector.py, which comes first.
"""

import os
import select
import signal
import struct
import sys
import time

import _remote_debugging
from profiling.sampling._child_monitor import ChildProcessMonitor

# Profilers of the target's children at the same time.
PROFILERS = 100
# Seconds between two looks for children, as a multiple of what a look takes, and between two at the same child.
LOOK, LOOK_SHARE, LOOK_LONG = 0.02, 20, 0.25
# What the process that forks profilers is asked, and answers: a process id, and how its profiler ended.
FORK = struct.Struct("ii")
FORK_PAUSE = 0.02
# Profilers may go on for so many seconds after the target's has ended.
LAST_WORDS = [(30, signal.SIGTERM), (35, signal.SIGKILL)]
# Fields of /proc/PID/stat, by their numbers in proc(5).
FLAGS, START_TIME, START_CODE, START_STACK = 9, 22, 26, 28
PF_EXITING = 4


def status_of(pid, *fields):
    """Fields of a process's status; None where there is no such process, or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command, in parentheses, may hold anything.
            values = file.read().rpartition(b")")[2].split()
        return tuple(int(values[field - 3]) for field in fields)
    except (OSError, IndexError):
        return None


def is_leaving(pid):
    """Whether a process has ended or is about to: that takes seconds where it has much memory."""
    status = status_of(pid, FLAGS)
    return not cli._is_process_running(pid) if status is None else bool(status[0] & PF_EXITING)


class Forks:
    """Profilers of other processes, forked by a process that has no threads and all modules: they begin in an
    instant, and inherit nobody's locks."""

    def __init__(self, args):
        wanted, self._wanted = os.pipe()
        self._ended, ended = os.pipe()
        self._server = os.fork()
        if self._server == 0:
            os.close(self._wanted)
            os.close(self._ended)
            try:
                serve(wanted, ended, args)
            finally:
                os._exit(1)
        os.close(wanted)
        os.close(ended)

    def start(self, pid):
        """Has a process profiled."""
        os.write(self._wanted, FORK.pack(pid, 0))

    def ended(self, timeout):
        """Processes whose profilers have ended since the last time, and whether they handed over a run; None
        once nothing more comes."""
        if not select.select([self._ended], [], [], timeout)[0]:
            return []
        said = os.read(self._ended, 512 * FORK.size)
        return [(pid, status == 0) for pid, status in FORK.iter_unpack(said)] or None

    def finish(self):
        """Waits for the profilers that are left: how they ended."""
        os.close(self._wanted)
        left = []
        while (ended := self.ended(None)) is not None:
            left += ended
        os.waitpid(self._server, 0)
        return left


def serve(wanted, ended, args):
    """Forks profilers until no more are wanted and all have ended."""
    for number in STOPS:
        # The recorder asks each profiler itself.
        signal.signal(number, signal.SIG_IGN)
    profilers, ends = {}, []
    while True:
        if wanted is not None:
            if select.select([wanted], [], [], FORK_PAUSE if profilers else None)[0]:
                # So few are asked for at once that one read has whole requests.
                asked = os.read(wanted, 512 * FORK.size)
                for pid, _ in FORK.iter_unpack(asked):
                    profiler = os.fork()
                    if profiler == 0:
                        os.close(wanted)
                        os.close(ended)
                        profile_child(pid, args)
                    profilers[profiler] = pid
                if not asked:
                    wanted, now = None, time.monotonic()
                    ends = [(now + wait, number) for wait, number in LAST_WORDS]
        else:
            time.sleep(FORK_PAUSE)
        while profilers:
            profiler, status = os.waitpid(-1, os.WNOHANG)
            if not profiler:
                break
            os.write(ended, FORK.pack(profilers.pop(profiler), status))
        if wanted is None and not profilers:
            os._exit(0)
        if ends and ends[0][0] <= time.monotonic():
            _, number = ends.pop(0)
            for profiler in profilers:
                os.kill(profiler, number)


def profile_child(pid, args):
    """A forked profiler of one process; it is left out unless its exit status is 0."""
    global IS_FORK
    IS_FORK = True
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    sys.argv[1:] = ["attach", str(pid), *args]
    status = 1
    try:
        status = profile()
    finally:
        os._exit(status)


class Child:
    """A process that the target has started."""

    def __init__(self):
        # Its memory since the last exec.
        self.image = None
        # Whether that is a CPython, and how often it was seen as one.
        self.is_python, self.sightings = False, 0
        # While it has a profiler, and once it has had one.
        self.is_profiled = self.is_done = False


class ChildMonitor(ChildProcessMonitor):
    """Profiles the target's children as this profiler does the target, and tells of those that it could not."""

    def __enter__(self):
        # By number and start time: a number may come again.
        self._children = {}
        self._parents_image = status_of(self.parent_pid, START_CODE, START_STACK)
        self._forks = Forks([arg for arg in self.cli_args if arg != "--binary"])
        global monitor
        # Not before the fork: it is this profiler's alone.
        monitor = self
        return super().__enter__()

    def __exit__(self, *error):
        self.stop_looking()
        self._note(self._forks.finish())
        self._forget(self._children.keys())
        return False

    def stop_looking(self):
        """The target's own run is over."""
        self._stop_event.set()
        self._monitor_thread.join()
        self._forget({key for key, child in self._children.items() if not child.is_profiled})

    def _monitor_loop(self):
        while not self._stop_event.is_set():
            begun = time.monotonic()
            try:
                self._look(_remote_debugging.get_child_pids(self.parent_pid, recursive=True), begun)
            except (OSError, RuntimeError):
                # Somebody ended while he was looked at. Without the target there are no children to be found.
                if is_leaving(self.parent_pid):
                    return
            # All processes of the machine were gone through: not all the time.
            ended = self._forks.ended(max(LOOK, LOOK_SHARE * (time.monotonic() - begun)))
            if ended is None:
                return
            self._note(ended)

    def _look(self, pids, now):
        alive = {}
        # Who has lost his parent is no child any more.
        for pid in {*pids, *(pid for pid, _ in self._children)}:
            status = status_of(pid, FLAGS, START_TIME, START_CODE, START_STACK)
            if status and not status[0] & PF_EXITING:
                alive[pid, status[1]] = status[2:]
        self._forget({key for key, child in self._children.items() if key not in alive and not child.is_profiled})
        for key, image in alive.items():
            child = self._children.setdefault(key, Child())
            if child.image != image:
                # New, or another program by exec.
                child.image, child.next_look, child.pause = image, now, LOOK
                child.is_python, child.sightings = False, 0
            child.sightings += child.is_python
            if child.is_done or now < child.next_look:
                continue
            # An interpreter that has just been started is none yet.
            child.next_look, child.pause = now + child.pause, min(2 * child.pause, LOOK_LONG)
            child.is_python = _remote_debugging.is_python_process(key[0])
            # One that has a profiler may have become another program before that could begin.
            profilers = sum(child.is_profiled for child in self._children.values())
            if child.is_python and not child.is_profiled and profilers < PROFILERS:
                child.is_profiled = True
                self._forks.start(key[0])

    def _note(self, ended):
        for pid, is_done in ended:
            for key, child in self._children.items():
                if key[0] == pid and child.is_profiled:
                    child.is_profiled, child.is_done = False, is_done

    def _forget(self, keys):
        for key in list(keys):
            child = self._children.pop(key)
            # One that is seen once, with the memory of its parent, may have been about to run something else.
            was_one = child.is_python and (child.sightings > 0 or child.image != self._parents_image)
            if was_one and not child.is_done:
                RECORDER.tell("missed", pid=key[0])


