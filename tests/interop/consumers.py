"""Load the program's streams with the tools that people use.

    VENV/bin/python consumers.py PROGRAM [--jq JQ]... [--jobs N] [PROFILE...]

VENV has duckdb and pyarrow; --jq may name several jq programs (default: jq).
Each PROFILE (default: the sound version-1 profiles of tests/data) goes through
`PROGRAM from-bin` with the options in VARIANTS, and then

- each line is one JSON object without duplicate keys, and no key has two JSON
  types in any of the streams, an integer and a float being two;
- DuckDB (read_json_auto, read_json) and pyarrow.json load the stream with
  their defaults, and find as many rows as it has lines;
- the samples that examples/read_stream.py reads, and the final agg table, are
  CPython's own (NAME.samples.jsonl and NAME.expected.jsonl, if they are there);
- examples/*.jq and examples/*.sql give what plain Python computes.

Then two runs, mixed line by line. One line a profile; exit status 1 if anything failed.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import duckdb
import pyarrow.json

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
DATA = ROOT / "tests" / "data"
sys.dont_write_bytecode = True
sys.path.insert(0, str(EXAMPLES))
import read_stream  # noqa: E402

VARIANTS = [
    [],
    ["--flush", "samples:700", "--max-line", "8k", "--stream-types", "raw,agg:1s,loss,heartbeat:1s"],
    ["--flush", "interval:250ms", "--stream-types", "raw,agg,loss"],
]

# Larger streams go through the recipes in their first variant only.
MANY_SAMPLES = 10_000

# Profiles of tests/data/cases that are damaged on purpose.
DAMAGED = {"count_low", "cut1", "cut_half", "killed", "killed_cut_plus_zero_page", "strings_huge", "threads_low"}


class Failure(Exception):
    """A check that failed; its text says which."""


def check(condition, text):
    if not condition:
        raise Failure(text)


# ---- the stream as JSON


def unique(pairs):
    keys = [key for key, _ in pairs]
    check(len(keys) == len(set(keys)), f"duplicate key in an object with the keys {keys}")
    return dict(pairs)


NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "float"}


def json_types(value, path, types):
    """Add the type of everything in `value` to types[path]; [] stands for an element."""
    if isinstance(value, dict):
        types[path].add("object")
        for key, inner in value.items():
            json_types(inner, f"{path}.{key}", types)
    elif isinstance(value, list):
        types[path].add("array")
        if value and all(type(element) in (int, type(None)) for element in value):  # quick, most of a stream
            types[path + "[]"].add("integer" if any(element is not None for element in value) else "null")
            check(any(element is not None for element in value), f"{path}: a column without any value")
        else:
            for element in value:
                json_types(element, path + "[]", types)
    elif value is None:
        check(path.endswith("[]"), f"{path} is null, which is for elements of columns only")
    else:
        types[path].add(NAMES[type(value)])


def one_type_each(types):
    for path, found in types.items():
        check(len(found) <= 1, f"{path} has the types {sorted(found)}")


def check_json(stream):
    """The messages of a stream, and the type of every path in them."""
    text = stream.read_bytes()
    check(text.endswith(b"\n"), "the last line has no line feed")
    lines = text.split(b"\n")[:-1]
    check(all(lines), "blank line")
    check(b"\r" not in text, "carriage return")
    messages = [json.loads(line, object_pairs_hook=unique) for line in lines]
    types, next_seq = defaultdict(set), Counter()
    for number, message in enumerate(messages, 1):
        check(list(message)[:4] == ["type", "v", "run_id", "seq"], f"line {number}: begins with {list(message)[:4]}")
        check(message["v"] == 2, f"line {number}: v is {message['v']}")
        check(message["seq"] == next_seq[message["run_id"]], f"line {number}: seq is {message['seq']}")
        next_seq[message["run_id"]] += 1
        json_types(message, "", types)
    one_type_each(types)
    by_name = defaultdict(set)
    for path, found in types.items():
        if path and not path.endswith("[]"):
            by_name[path.rsplit(".", 1)[1]] |= found
    one_type_each(by_name)
    return messages, types


# ---- what CPython says


def packed(path):
    """The lines of PATH or PATH.zst; None if neither is there or there is no zstd."""
    if path.exists():
        return path.read_bytes().splitlines()
    path = path.with_name(path.name + ".zst")
    if not path.exists():
        return None
    try:
        return subprocess.run(["zstd", "-dqc", path], check=True, capture_output=True).stdout.splitlines()
    except FileNotFoundError:
        return None


def replaced(text):
    """A name as CPython's reader and JSON show it, bad bytes replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@functools.lru_cache(maxsize=1)
def reference_samples(profile):
    """(interpreter, thread) -> [(time, status, stack)], and its stacks; None if it isn't known.

    Equal stacks are one object, which makes them quick to compare.
    """
    lines = packed(profile.with_suffix(".samples.jsonl"))
    if lines is None:
        return None
    expected, shared = defaultdict(list), {}
    for line in lines:
        interpreter, thread, status, times, frames = json.loads(line)
        stack = tuple((name, place and tuple(place), function, opcode) for name, place, function, opcode in frames)
        stack = shared.setdefault(stack, stack)
        expected[interpreter, str(thread)] += [(time, status, stack) for time in times]
    return expected, shared


def check_samples(profile, samples):
    reference = reference_samples(profile)
    if reference is None:
        return False
    expected, shared = reference
    found, stacks = defaultdict(list), {}
    for _, interpreter, thread, time, status, frames in samples:
        stack = stacks.get(id(frames))  # `samples` keeps them all, so an id is one list
        if stack is None:
            stack = tuple(map(as_cpython, frames))
            stack = stacks[id(frames)] = shared.get(stack, stack)
        found[interpreter, thread].append((time, status, stack))
    check(found.keys() == expected.keys(), f"threads {sorted(found)}, CPython has {sorted(expected)}")
    for thread, rows in expected.items():
        check(len(found[thread]) == len(rows), f"thread {thread}: {len(found[thread])} samples, not {len(rows)}")
        for number, (ours, theirs) in enumerate(zip(found[thread], rows)):
            if ours != theirs:
                raise Failure(f"thread {thread}, sample {number}: {ours}, CPython has {theirs}")
    return True


@functools.lru_cache(maxsize=100_000)
def as_cpython(frame):
    place = None
    if frame.line is not None:
        place = tuple(-1 if number is None else number for number in frame[2:6])
    return replaced(frame.path), place, replaced(frame.function), frame.opcode


def check_final_agg(profile, lines):
    """The final table against that of `replay --jsonl`, which knows frames by their export form."""
    reference = packed(profile.with_suffix(".expected.jsonl"))
    if reference is None:
        return False
    strings, frames, expected, total = {}, {}, {}, 0
    for message in map(json.loads, reference):
        for entry in message.get("strings", ()):
            strings[entry["str_id"]] = entry["value"]
        for entry in message.get("frames", ()):
            frames[entry["frame_id"]] = (
                strings[entry["path_str_id"]], strings[entry["func_str_id"]],
                entry["line"], entry.get("end_line"), entry.get("col"), entry.get("end_col"))
        for entry in message.get("entries", ()):
            expected[frames[entry["frame_id"]]] = entry["self"], entry["cumulative"]
        total = message.get("samples_total", total)
    found, end = {}, None
    for message, known in read_stream.messages(lines):
        if message["type"] == "end":
            end = message
        if message["type"] == "agg" and message["scope"] == "final":
            check(message["samples_total"] == total, f"agg.samples_total {message['samples_total']}, CPython has {total}")
            for frame_id, leaf, anywhere in zip(message["frame_id"], message["self"], message["cumulative"]):
                frame = known[frame_id]
                key = replaced(frame.path), replaced(frame.function), *exported_place(frame)
                check(key not in found, f"agg has {key} twice")
                found[key] = leaf, anywhere
    check(found == expected, f"final agg differs: {sorted(set(found.items()) ^ set(expected.items()), key=repr)[:4]}")
    check(end["samples_total"] == total, f"end.samples_total {end['samples_total']}, CPython has {total}")
    return True


def exported_place(frame):
    """A frame's place in CPython's JSON Lines; without a line it has none."""
    if frame.line is None:
        return 0, None, None, None
    rest = zip(frame[3:6], (1, 0, 0))  # end_line, col, end_col and the least that counts
    return frame.line, *(number if number is not None and number >= least else None for number, least in rest)


# ---- the recipes, in plain Python


@functools.lru_cache(maxsize=100_000)
def label(frame):
    text = f"{replaced(frame.function)} ({replaced(frame.path)})"
    return text.replace(";", ",").replace("\n", " ").replace("\r", " ")


def folded(stack):
    return ";".join(label(frame) for frame in reversed(stack))


class Expected:
    """What every recipe has to give, for one stream."""

    def __init__(self, messages, lines):
        self.start, self.interval = {}, {}
        for message in messages:
            if message["type"] == "meta":
                self.start[message["run_id"]] = message["run_start_usec"]
                self.interval[message["run_id"]] = message["sample_interval_usec"]
        self.lines = lines
        self.samples = list(read_stream.samples(lines))
        times = [time - self.start[run] for run, _, _, time, _, _ in self.samples]
        low, high = min(times, default=0), max(times, default=0)
        self.window = low + (high - low) // 4, low + (high - low) * 3 // 4
        threads = Counter(sample[2] for sample in self.samples)
        self.thread = threads.most_common(1)[0][0] if threads else "1"
        # Numbers above these lose their last digits in jq (a float), and in
        # DuckDB's JSON reader (64 bits, signed or not).
        numbers = [abs(time) for time in times] + [sample[3] for sample in self.samples] + [*self.start.values()]
        for message in messages:
            if message["type"] == "raw":
                numbers += [abs(delta) for thread in message["threads"] for delta in thread["ts_delta_usec"]]
        self.largest = max(numbers, default=0)

    def hot_frames(self):
        rows = []
        for message, frames in read_stream.messages(self.lines):
            if message["type"] == "agg" and message["scope"] == "final":
                for frame_id, leaf, anywhere in zip(message["frame_id"], message["self"], message["cumulative"]):
                    frame = frames[frame_id]
                    rows.append((leaf, anywhere, replaced(frame.path), replaced(frame.function),
                                 frame.line, frame.col, message["run_id"], frame_id))
        return sorted(rows, key=lambda row: (-row[0], -row[1], row[6], row[7]))[:20]

    def file_self_time(self):
        files = defaultdict(lambda: [0, 0])
        for run, _, _, time, _, stack in self.samples:
            if stack and self.window[0] <= time - self.start[run] < self.window[1]:
                entry = files[replaced(stack[0].path)]
                entry[0] += 1
                entry[1] += self.interval[run]
        return sorted(((path, *entry) for path, entry in files.items()), key=lambda row: (-row[1], row[0]))

    def thread_samples(self):
        rows = [
            (run, interpreter, time - self.start[run], status, folded(stack))
            for run, interpreter, thread, time, status, stack in self.samples
            if thread == self.thread and self.window[0] <= time - self.start[run] < self.window[1]
        ]
        return sorted(rows, key=lambda row: row[0])

    def flame_stacks(self):
        counts = Counter()
        texts = {}
        for *_, stack in self.samples:
            if stack:
                if id(stack) not in texts:
                    texts[id(stack)] = folded(stack)
                counts[texts[id(stack)]] += 1
        return [(f"{text} {count}",) for text, count in sorted(counts.items())]


RECIPES = ["hot_frames", "file_self_time", "thread_samples", "flame_stacks"]
TIMED = {"file_self_time", "thread_samples"}


def run_jq(jq, recipe, stream, expected):
    options = ["-nr" if recipe == "flame_stacks" else "-nc"]
    if recipe in TIMED:
        options += ["--argjson", "from", str(expected.window[0]), "--argjson", "to", str(expected.window[1])]
    if recipe == "thread_samples":
        options += ["--arg", "thread", expected.thread]
    done = subprocess.run([jq, *options, "-f", EXAMPLES / f"{recipe}.jq", stream], capture_output=True)
    check(done.returncode == 0 and not done.stderr, f"{jq} {recipe}: exit {done.returncode}: {done.stderr.decode()}")
    lines = done.stdout.decode().split("\n")[:-1]
    if recipe == "flame_stacks":
        return [(line,) for line in lines]
    rows = [tuple(json.loads(line).values()) for line in lines]
    return sorted(rows, key=lambda row: row[0]) if recipe == "thread_samples" else rows


def run_duckdb(recipe, stream, expected):
    for name, value in [("stream", str(stream)), ("thread", expected.thread),
                        ("from_usec", expected.window[0]), ("to_usec", expected.window[1])]:
        value = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else value
        duckdb.execute(f"SET VARIABLE {name} = {value}")
    return duckdb.execute((EXAMPLES / f"{recipe}.sql").read_text()).fetchall()


def check_recipes(stream, expected, jqs):
    """Names of the recipes that could not be compared because numbers are too large for the tool."""
    left_out = []
    for recipe in RECIPES:
        wanted = getattr(expected, recipe)()
        tools = [(jq, 2**53, lambda jq=jq: run_jq(jq, recipe, stream, expected)) for jq in jqs]
        tools.append(("duckdb", 2**63 - 1, lambda: run_duckdb(recipe, stream, expected)))
        for tool, limit, run in tools:
            if recipe in TIMED and expected.largest > limit:
                left_out.append(f"{Path(tool).name} {recipe}")
                continue
            found = run()
            if found != wanted:
                pairs = list(zip(found, wanted))
                at = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
                raise Failure(f"{tool} {recipe}: {len(found)} rows, not {len(wanted)}; row {at}: "
                              f"{found[at:at + 1]}, not {wanted[at:at + 1]}")
    return left_out


# ---- one profile


def check_loading(stream, rows):
    for reader in ("read_json_auto", "read_json"):
        try:
            # A table, not a bare count: every column of every row is really read.
            duckdb.execute(f"CREATE OR REPLACE TEMP TABLE stream AS FROM {reader}(?)", [str(stream)])
        except duckdb.Error as error:
            raise Failure(f"duckdb {reader}: {error}") from None
        found = duckdb.execute("SELECT count(*) FROM stream").fetchone()[0]
        check(found == rows, f"duckdb {reader}: {found} rows, not {rows}")
    try:
        found = pyarrow.json.read_json(stream).num_rows
    except pyarrow.ArrowException as error:
        raise Failure(f"pyarrow: {error}") from None
    check(found == rows, f"pyarrow: {found} rows, not {rows}")


def check_stream(stream, jqs, profile=None, final_agg=False, first=True):
    messages, types = check_json(stream)
    check_loading(stream, len(messages))
    lines = stream.read_bytes().split(b"\n")[:-1]
    expected, notes = Expected(messages, lines), []
    if first or len(expected.samples) <= MANY_SAMPLES:
        notes = check_recipes(stream, expected, jqs)
    if profile is not None:
        compared = check_samples(profile, expected.samples)
        if final_agg:
            compared = check_final_agg(profile, lines) and compared
        if not compared:
            notes = [*notes, "nothing of CPython's beside it"]
    return len(messages), len(expected.samples), types, notes


def convert(program, profile, options, stream):
    done = subprocess.run([program, "from-bin", profile, *options, "-o", stream], capture_output=True)
    check(done.returncode == 0, f"from-bin {' '.join(options)}: exit {done.returncode}: {done.stderr.decode()}")


def check_profile(program, profile, jqs):
    """(whether all is well, what to say, the JSON type of every path)."""
    all_types, notes, counts = defaultdict(set), set(), []
    with tempfile.TemporaryDirectory() as folder:
        for number, options in enumerate(VARIANTS):
            stream = Path(folder) / f"{number}.jsonl"
            final_agg = "agg:1s" not in " ".join(options)
            try:
                convert(program, profile, options, stream)
                lines, samples, types, more = check_stream(stream, jqs, profile, final_agg, first=number == 0)
            except Exception as error:  # also what a wrong stream makes of the readers here
                text = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
                text = text if len(text) < 1000 else text[:1000] + "..."
                return False, f"{' '.join(options) or 'defaults'}: {text}", all_types
            for path, found in types.items():
                all_types[path] |= found
            counts.append(lines)
            notes.update(more)
    text = f"{samples} samples in {', '.join(map(str, counts))} messages"
    return True, text + "".join(f"; not compared: {note}" for note in sorted(notes)), all_types


def check_interleaved(program, profiles, jqs):
    """Two runs whose messages stand alternately in one file."""
    with tempfile.TemporaryDirectory() as folder:
        streams = []
        for number, profile in enumerate(profiles):
            stream = Path(folder) / f"{number}.jsonl"
            convert(program, profile, ["--flush", "samples:300", "--run-id", f"run-{number}"], stream)
            streams.append(stream.read_bytes().splitlines(keepends=True))
        mixed = Path(folder) / "mixed.jsonl"
        longest = max(map(len, streams))
        mixed.write_bytes(b"".join(
            b"".join(lines[row:row + 1]) for row in range(longest) for lines in streams))
        lines, samples, *_ = check_stream(mixed, jqs)
    return f"{samples} samples in {lines} messages"


def default_profiles():
    found = [path for path in DATA.glob("cpython/*.bin") if path.with_suffix(".info.json").exists()]
    found += [*DATA.glob("legacy/v1_*.bin"), *DATA.glob("legacy/new_*.bin")]
    found += [path for path in DATA.glob("cases/*.bin") if path.stem not in DAMAGED]
    return sorted(found)


def main():
    parser = argparse.ArgumentParser(usage="%(prog)s PROGRAM [--jq JQ]... [--jobs N] [PROFILE...]")
    parser.add_argument("program", type=Path)
    parser.add_argument("profiles", nargs="*", type=Path)
    parser.add_argument("--jq", action="append", metavar="JQ")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    options = parser.parse_intermixed_args()
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    program, jqs = options.program.resolve(), options.jq or ["jq"]
    profiles = options.profiles or default_profiles()
    failed, all_types = 0, defaultdict(set)
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        jobs = [pool.submit(check_profile, program, profile, jqs) for profile in profiles]
        for profile, job in zip(profiles, jobs):
            sound, text, types = job.result()
            failed += not sound
            for path, found in types.items():
                all_types[path] |= found
            print(f"{'ok' if sound else 'FAILED'} {profile.parent.name}/{profile.name}: {text}", flush=True)
    pair = [DATA / "cpython" / "wall_main_1k_zstd.bin", DATA / "cpython" / "subinterpreters_1k_none.bin"]
    for name, run in [("types in all streams", lambda: one_type_each(all_types)),
                      ("two runs interleaved", lambda: check_interleaved(program, pair, jqs))]:
        try:
            print(f"ok {name}: {run() or 'one for each key'}")
        except Failure as failure:
            failed += 1
            print(f"FAILED {name}: {failure}")
    print(f"{len(profiles)} profiles, {failed} failed")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
