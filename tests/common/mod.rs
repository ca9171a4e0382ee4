//! What the integration tests share: the program, the test data, CPython's answers.

#![allow(dead_code)]

pub mod consumer;
pub mod live;
#[cfg(unix)]
pub mod recorder;
pub mod rfc;
#[cfg(unix)]
pub mod writers;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tachyon_jsonl::protocol::{Checker, Finding};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_tachyon-jsonl");

/// Says that something cannot be tested on this machine, past the harness, which shows nothing of tests that pass.
pub fn not_tested(what: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "!! NOT TESTED: {what}");
}

/// The same of something that only needs to be installed, as CI has done.
pub fn not_installed(what: &str) {
    assert!(std::env::var_os("CI").is_none(), "it has to be installed here: {what}");
    not_tested(what);
}

/// What a run of the program gave.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// Starts the program, with a pipe to each of its ends.
pub fn start(args: &[&str]) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// The messages of a stream.
pub fn messages(stream: &[u8]) -> Vec<Value> {
    let lines = stream.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).expect("JSON")).collect()
}

/// What `check` finds in a stream, as the command shows it.
pub fn findings(stream: &[u8]) -> Vec<String> {
    let mut checker = Checker::default();
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(stream.split_inclusive(|byte| *byte == b'\n')) {
        let terminated = line.ends_with(b"\n");
        let mut line = line[..line.len() - usize::from(terminated)].to_vec();
        checker.line(number, &mut line, terminated, &mut findings);
    }
    checker.finish(&mut findings);
    findings.into_iter().map(|Finding { line, what }| format!("line {line}: {what}")).collect()
}

/// Runs the program.
pub fn run(args: &[&str], stdin: &[u8]) -> Ran {
    let mut child = start(args);
    let mut input = child.stdin.take().expect("a pipe");
    let stdin = stdin.to_vec();
    let feeder = std::thread::spawn(move || {
        // The program may end before it has read all.
        let _ = input.write_all(&stdin);
    });
    let output = child.wait_with_output().expect("the program ends");
    feeder.join().expect("the feeder ends");
    Ran {
        code: output.status.code().expect("no signal"),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).expect("messages are UTF-8"),
    }
}

/// `from-bin` of a file, which must succeed or be partial.
pub fn stream_of(path: &Path, options: &[&str]) -> Vec<u8> {
    let mut args = vec!["from-bin", path.to_str().expect("UTF-8"), "--run-id", "r"];
    args.extend(options);
    let ran = run(&args, b"");
    assert!(matches!(ran.code, 0 | 3), "{}: {}", path.display(), ran.stderr);
    ran.stdout
}

/// `to-bin` of a stream.
pub fn profile_of(stream: &[u8], options: &[&str]) -> Vec<u8> {
    let mut args = vec!["to-bin"];
    args.extend(options);
    let ran = run(&args, stream);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout
}

pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

/// A profile of several seconds and threads.
pub fn profile() -> PathBuf {
    data("cpython/wall_all_100hz_none.bin")
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// The profiles in a folder of the test data whose names begin with one of `prefixes`.
pub fn profiles(folder: &str, prefixes: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data(folder)).expect("the folder is there");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "bin"))
        .filter(|path| prefixes.iter().any(|prefix| name(path).starts_with(prefix)))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

pub fn name(path: &Path) -> String {
    path.file_stem().expect("a name").to_str().expect("UTF-8").to_string()
}

/// A file of CPython's answers beside a profile, if there is one.
pub fn answer(profile: &Path, ending: &str) -> Option<String> {
    let plain = profile.with_extension(ending);
    if plain.exists() {
        return Some(std::fs::read_to_string(plain).expect("readable"));
    }
    let packed = std::fs::File::open(profile.with_extension(format!("{ending}.zst"))).ok()?;
    Some(String::from_utf8(zstd::decode_all(packed).expect("zstd")).expect("UTF-8"))
}

/// Chunked, and died in its first chunk.
pub const TORN_FIRST: &str = "v2_torn_first";

/// All profiles of which CPython (or, for old and proposed layouts, the corpus) says what they hold.
pub fn answered_profiles() -> Vec<PathBuf> {
    let all = [profiles("cpython", &[""]), profiles("legacy", &[""]), profiles("malformed", &[""])];
    let all = all.into_iter().flatten().filter(|path| answer(path, "samples.jsonl").is_some());
    all.filter(|path| name(path) != TORN_FIRST).collect()
}

/// (interpreter id, thread id).
pub type Thread = (u64, u64);
/// Time, status, and the stack as text, innermost frame first.
pub type Sample = (u64, u64, String);

/// What a collector of CPython's is handed when the profile is replayed, by thread.
pub fn replayed(samples_jsonl: &str) -> BTreeMap<Thread, Vec<Sample>> {
    let mut threads: BTreeMap<Thread, Vec<Sample>> = BTreeMap::new();
    for line in samples_jsonl.lines() {
        type Row = (u64, u64, u64, Vec<u64>, Vec<serde_json::Value>);
        let (interpreter, thread, status, times, frames): Row = serde_json::from_str(line).expect("a row");
        let frames: Vec<String> = frames.iter().map(ToString::to_string).collect();
        let stack = frames.join(" ");
        let samples = threads.entry((interpreter, thread)).or_default();
        samples.extend(times.into_iter().map(|time| (time, status, stack.clone())));
    }
    threads
}
