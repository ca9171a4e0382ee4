"""What CPython's replay makes of two profiles, in each of its formats.

    python3.15 formats.py A.bin B.bin [A.bin B.bin ...]

--jsonl, --collapsed, --gecko and --pstats of each pair have to be equal, but
for the run id and the starting time that CPython makes up.
"""

import contextlib
import io
import json
import marshal
import os
import sys
import tempfile

from profiling.sampling.binary_reader import convert_binary_to_format


def load(path, kind):
    with open(path, "rb") as file:
        data = file.read()
    if kind == "pstats":
        return marshal.loads(data)
    if kind == "gecko":
        profile = json.loads(data)
        # When the replay was made.
        del profile["meta"]["startTime"]
        return profile
    if kind == "jsonl":
        lines = [json.loads(line) for line in data.splitlines()]
        for line in lines:
            del line["run_id"]
        return lines
    return data


def main():
    paths = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for pair in zip(paths[::2], paths[1::2]):
            for kind in ("jsonl", "collapsed", "gecko", "pstats"):
                made = []
                for path in pair:
                    target = os.path.join(folder, f"{len(made)}.{kind}")
                    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                        convert_binary_to_format(path, target, kind)
                    made.append(load(target, kind))
                if made[0] != made[1]:
                    sys.exit(f"{pair[1]}: {kind} is not that of {pair[0]}")
    print(f"{len(paths) // 2} pairs: the same --jsonl, --collapsed, --gecko and --pstats")


if __name__ == "__main__":
    main()
