//! The recipes of `examples/`, with the real jq, DuckDB and Python where they are installed. CI runs them
//! all against each other (`tests/interop/consumers.py`).

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::consumer::{self, Message};
use common::{data, stream_of};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// Standard output of a command; `None`, said loudly, where the command is not installed.
fn output(command: &mut Command) -> Option<String> {
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).expect("UTF-8"))
        }
        Err(error) => {
            common::not_installed(&format!("{}: {error}", command.get_program().display()));
            None
        }
    }
}

fn stream_file(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("stream.jsonl");
    std::fs::write(&path, stream_of(&data("cpython/wall_all_100hz_none.bin"), &[])).expect("written");
    path
}

/// Most self samples of a frame, by the final table.
fn hottest(stream: &Path) -> u64 {
    let read = consumer::read(&std::fs::read(stream).expect("readable"));
    read.agg["final"].values().map(|counts| counts.0).max().expect("a frame")
}

fn total(stream: &Path) -> u64 {
    let read = consumer::read(&std::fs::read(stream).expect("readable"));
    match read.messages.last() {
        Some(Message::End { samples, .. }) => *samples,
        other => panic!("no end: {other:?}"),
    }
}

#[test]
fn jq_finds_the_hottest_frame_and_all_stacks() {
    let folder = tempfile::tempdir().expect("a folder");
    let stream = stream_file(&folder);
    let Some(rows) =
        output(Command::new("jq").args(["-nc", "-f"]).arg(example("hot_frames.jq")).arg(&stream))
    else {
        return;
    };
    let first = rows.lines().next().expect("a row");
    assert!(first.contains(&hottest(&stream).to_string()), "{first}");
    let stacks = output(Command::new("jq").args(["-nr", "-f"]).arg(example("flame_stacks.jq")).arg(&stream))
        .expect("jq is there");
    let counted: u64 = stacks
        .lines()
        .map(|line| line.rsplit(' ').next().expect("a count").parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(counted, total(&stream));
}

#[test]
fn duckdb_finds_the_hottest_frame() {
    let folder = tempfile::tempdir().expect("a folder");
    let stream = stream_file(&folder);
    let sql = format!(
        "SET VARIABLE stream = '{}'; {}",
        stream.display(),
        std::fs::read_to_string(example("hot_frames.sql")).expect("readable")
    );
    let Some(rows) = output(Command::new("duckdb").args(["-csv", "-c"]).arg(sql)) else { return };
    assert!(rows.lines().nth(1).expect("a row").contains(&hottest(&stream).to_string()), "{rows}");
}

#[test]
fn plain_python_reads_a_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let stream = stream_file(&folder);
    let Some(rows) = output(Command::new("python3").arg(example("read_stream.py")).arg(&stream)) else {
        return;
    };
    assert!(rows.lines().count() > 3, "{rows}");
}

#[test]
fn plain_python_ends_quietly_when_its_reader_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    let stream = stream_file(&folder);
    let script = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE); \
                  p.stdout.close(); print(p.stderr.read(), p.wait())";
    let mut command = Command::new("python3");
    command.args(["-c", script, "python3", "-u"]).arg(example("read_stream.py")).arg(&stream);
    let Some(said) = output(&mut command) else { return };
    assert_eq!(said.trim(), "b'' 0");
}
