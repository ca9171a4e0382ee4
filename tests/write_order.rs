//! The order in which a chunk reaches its file, by the system calls: what a crash of the machine could leave.
#![cfg(target_os = "linux")]

mod common;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use common::recorder::{command, parts, path_in, profile};
use common::{PROGRAM, not_installed, stream_of};

const CALLS: &str = "trace=write,pwrite64,writev,fdatasync,fsync,rename,renameat,renameat2";

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The header of a chunk was written, at this byte where the call says it.
    Header(Option<u64>),
    /// Something else was written.
    Body(Option<u64>),
    Sync,
    /// It got its name.
    Named,
}

/// Runs a command of the program; the steps of the file of this name. `None` without strace.
fn steps<'a>(
    folder: &Path,
    name: &str,
    args: impl IntoIterator<Item = &'a OsStr>,
    made_by: &str,
) -> Option<Vec<Step>> {
    let report = folder.join("strace");
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-s", "8", "-e", CALLS, "-o"]).arg(&report).arg(PROGRAM).args(args);
    match command.env("PARTS", parts().folder.path()).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            not_installed(&format!("strace: {error}"));
            return None;
        }
    }
    let text = std::fs::read_to_string(report).expect("written");
    Some(text.lines().filter_map(|line| step(line, name, made_by)).collect())
}

/// The step of a line of strace, if it is about the file under its name or the one that it has before.
fn step(line: &str, name: &str, made_by: &str) -> Option<Step> {
    let (_, call) = line.split_once(' ')?;
    let (kind, rest) = call.trim_start().split_once('(')?;
    if kind.starts_with("rename") {
        return rest.contains(&format!("{name}\")")).then_some(Step::Named);
    }
    let (path, rest) = rest.split_once('<')?.1.split_once('>')?;
    let file = Path::new(path).file_name()?.to_str()?;
    if file != name && !file.starts_with(made_by) {
        return None;
    }
    if kind.ends_with("sync") {
        return Some(Step::Sync);
    }
    let at = (kind == "pwrite64").then(|| {
        // Another thread may have called in between.
        let unfinished = rest.strip_suffix(" <unfinished ...>");
        let arguments = unfinished.or_else(|| Some(rest.rsplit_once(')')?.0))?;
        arguments.rsplit_once(", ")?.1.parse().ok()
    });
    let is_header = rest.starts_with(", \"HCAT");
    Some(if is_header { Step::Header(at.flatten()) } else { Step::Body(at.flatten()) })
}

/// A chunk that grows a file is stored before its header is written, and that before anything else.
fn is_stored_in_order(steps: &[Step], chunks: usize) {
    let named = steps.iter().position(|step| *step == Step::Named).expect("it gets its name");
    assert_eq!(steps[named - 1], Step::Sync, "what gets the name is stored: {steps:?}");
    let grown = &steps[named..];
    let headers = grown.iter().enumerate().filter(|(_, step)| matches!(step, Step::Header(_)));
    let mut count = 1;
    for (at, _) in headers {
        assert_eq!(grown[at - 1], Step::Sync, "its body is stored: {grown:?}");
        assert!(matches!(grown[at - 2], Step::Body(_)), "{grown:?}");
        assert_eq!(grown[at + 1], Step::Sync, "it is stored: {grown:?}");
        count += 1;
    }
    assert_eq!(count, chunks);
}

#[test]
fn a_chunk_is_stored_before_its_header_in_every_profile_that_grows() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, name) = path_in(&folder, "live.bin");
    let whole = command(&["-o", &name], "begin part:0 part:1 part:2 end");
    let Some(recorded) = steps(folder.path(), "live.bin", whole.get_args(), ".tachyon-jsonl-") else {
        return;
    };
    is_stored_in_order(&recorded, 3);

    let (stream, stream_name) = path_in(&folder, "stream.jsonl");
    std::fs::write(stream, stream_of(&profile(), &[])).expect("writable");
    let args =
        ["to-bin", &stream_name, "--layout", "v2", "--flush", "samples:500", "-o", &name].map(OsStr::new);
    let converted = steps(folder.path(), "live.bin", args, ".tachyon-jsonl-").expect("strace is there");
    let chunks = common::rfc::read(&std::fs::read(&name).expect("readable")).0.len();
    assert!(chunks > 2);
    is_stored_in_order(&converted, chunks);
}

#[test]
fn a_chunk_in_a_ring_has_no_header_until_its_body_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, name) = path_in(&folder, "app.ring");
    let whole = command(&["--ring", "64KiB", "--ring-file", &name], "begin all all end");
    let Some(steps) = steps(folder.path(), "app.ring", whole.get_args(), "app.ring") else { return };
    let mut count = 0;
    for (at, step) in steps.iter().enumerate() {
        if let Step::Header(Some(place)) = step {
            assert_eq!(steps[at - 1], Step::Body(Some(place + 64)), "its body is there: {steps:?}");
            assert_eq!(steps[at - 2], Step::Body(Some(*place)), "nothing stood in its place: {steps:?}");
            count += 1;
        }
    }
    assert_eq!(count, parts().count * 2);
}
