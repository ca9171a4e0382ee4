//! Every output of the program, killed, on a full disk, in a folder that cannot be written to: what was
//! there, or what was committed, is whole, and the error names the cause.
#![cfg(unix)]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{PROGRAM, data, profile_of, run, stream_of, text};
use tachyon_jsonl::format::{Part, Sequence};

/// A long stream, in small messages.
fn stream() -> Vec<u8> {
    stream_of(&data("cpython/wall_all_100hz_none.bin"), &["--flush", "samples:60", "--max-line", "8k"])
}

fn shell(script: &str, arguments: &[&str]) -> Output {
    Command::new("sh").args(["-c", script, PROGRAM]).args(arguments).output().expect("a shell")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Samples of the chunks before the first that is not whole, and whether there is such a one.
fn whole_chunks(path: &Path) -> (u64, bool) {
    let mut file = std::fs::File::open(path).expect("readable");
    let mut sequence = Sequence::of_chunks();
    let mut samples = 0;
    while let Some(part) = sequence.next(&mut file).expect("readable") {
        match part {
            Part::Profile(profile) => samples += profile.contents().scan.samples,
            Part::Lost(lost) => {
                assert!(lost.is_tail, "{:?}", lost.error);
                return (samples, true);
            }
        }
    }
    (samples, false)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn start(arguments: &[&str]) -> Child {
    let pipe = Stdio::piped;
    Command::new(PROGRAM).args(arguments).stdin(pipe()).stderr(pipe()).spawn().expect("the program starts")
}

fn kill(child: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

/// Killed after more and more of its input: the file has all chunks that were committed.
#[test]
fn a_chunked_profile_survives_sigkill() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("live.bin");
    let stream = stream();
    let lines: Vec<&[u8]> = stream.split_inclusive(|byte| *byte == b'\n').collect();
    let mut seen = Vec::new();
    for share in 1..=20 {
        let _ = std::fs::remove_file(&target);
        let mut child = start(&["to-bin", "--layout", "v2", "--flush", "samples:100", "-o", text(&target)]);
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(&lines[..lines.len() * share / 20].concat()).expect("it reads");
        input.flush().expect("it reads");
        // Some are killed in the middle of a write, some later.
        std::thread::sleep(Duration::from_millis(12 * share as u64));
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        if target.exists() {
            let (samples, _) = whole_chunks(&target);
            assert!(samples > 0);
            seen.push(samples);
            // And all of that is what recover and from-bin give.
            let recovered = run(&["recover", "-q", text(&target)], b"");
            assert!(matches!(recovered.code, 0 | 3), "{}", recovered.stderr);
            std::fs::write(folder.path().join("saved.bin"), &recovered.stdout).expect("writable");
            assert_eq!(whole_chunks(&folder.path().join("saved.bin")), (samples, false));
        }
    }
    assert!(seen.len() >= 5, "{seen:?}");
    assert!(seen.iter().max() > seen.iter().min(), "{seen:?}");
}

/// Killed in the middle of a conversion, the target is as it was.
#[test]
fn another_output_is_as_it_was_after_sigkill() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("out");
    std::fs::write(&target, "what was there").expect("writable");
    let stream = stream();
    let profile = std::fs::read(data("cpython/wall_all_100hz_none.bin")).expect("readable");
    for (arguments, input) in
        [(&["to-bin", "-o"][..], &stream), (&["from-bin", "-o"], &profile), (&["recover", "-o"], &profile)]
    {
        for pause in [0, 1, 3, 10, 30] {
            let mut child = start(&[arguments, &[text(&target)]].concat());
            let mut pipe = child.stdin.take().expect("a pipe");
            pipe.write_all(&input[..input.len() - 40]).expect("it reads");
            std::thread::sleep(Duration::from_millis(pause));
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
            assert_eq!(std::fs::read(&target).expect("there"), b"what was there");
        }
    }
}

#[test]
fn a_request_to_end_leaves_no_file_in_the_making() {
    let stream = stream();
    for signal in ["-TERM", "-INT", "-HUP"] {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("out.bin");
        let mut child = start(&["to-bin", "-o", text(&target)]);
        let mut pipe = child.stdin.take().expect("a pipe");
        pipe.write_all(&stream[..stream.len() / 2]).expect("it reads");
        while names_in(folder.path()).is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        kill(&child, signal);
        let status = child.wait().expect("it ends");
        assert!(!status.success(), "{signal}");
        assert_eq!(names_in(folder.path()), [""; 0], "{signal}");
    }
}

/// Everything that is written to standard output.
#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let jsonl = folder.path().join("in.jsonl");
    std::fs::write(&jsonl, stream()).expect("writable");
    let bad = folder.path().join("bad.jsonl");
    std::fs::write(&bad, "no message\n".repeat(10)).expect("writable");
    let bin = data("cpython/wall_all_100hz_none.bin");
    let commands: [&[&str]; 9] = [
        &["from-bin", text(&bin)],
        &["to-bin", text(&jsonl)],
        &["to-bin", text(&jsonl), "--layout", "v2"],
        &["recover", text(&bin)],
        &["inspect", text(&bin)],
        &["inspect", text(&jsonl), "--json"],
        &["check", text(&bad)],
        &["schema"],
        &["completions", "bash"],
    ];
    for command in commands {
        let output = shell("exec \"$0\" \"$@\" > /dev/full", command);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {}", said(&output));
        assert!(said(&output).contains("No space left on device"), "{command:?}: {}", said(&output));
    }
    for option in
        [&["from-bin", text(&bin), "-o", "/dev/full"][..], &["to-bin", text(&jsonl), "-o", "/dev/full"]]
    {
        let output = shell("exec \"$0\" \"$@\"", option);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("/dev/full: No space left on device"), "{}", said(&output));
    }
}

/// A limit on the size of files, in blocks of 512 bytes.
/// <https://github.com/python/cpython/issues/151292>
#[test]
fn a_limit_on_file_size_ends_with_what_is_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let jsonl = folder.path().join("in.jsonl");
    std::fs::write(&jsonl, stream()).expect("writable");
    let bin = data("cpython/wall_all_100hz_none.bin");
    let target = folder.path().join("out");
    for command in [
        &["from-bin", text(&bin)][..],
        &["to-bin", text(&jsonl), "--compression", "none"],
        &["recover", text(&bin)],
    ] {
        std::fs::write(&target, "what was there").expect("writable");
        let output = shell("ulimit -f 8; exec \"$0\" \"$@\"", &[command, &["-o", text(&target)]].concat());
        assert_eq!(output.status.code(), Some(1), "{command:?}: {}", said(&output));
        assert!(said(&output).contains("File too large"), "{command:?}: {}", said(&output));
        assert_eq!(std::fs::read(&target).expect("there"), b"what was there");
        assert_eq!(names_in(folder.path()), ["in.jsonl", "out"], "{command:?}");
    }

    let chunks = ["to-bin", text(&jsonl), "--layout", "v2", "--flush", "samples:100", "-o", text(&target)];
    let output = shell("ulimit -f 16; exec \"$0\" \"$@\"", &chunks);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("File too large"), "{}", said(&output));
    let (samples, is_torn) = whole_chunks(&target);
    assert!(samples > 200 && !is_torn, "{samples} samples");
    assert_eq!(run(&["inspect", "--verify", text(&target)], b"").code, 3, "the last chunk is missing");
}

/// A place that cannot be written to whoever asks.
fn read_only_folder(folder: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let closed = folder.join("closed");
    std::fs::create_dir(&closed).expect("a folder");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o555)).expect("ours");
    let works = |folder: &Path| std::fs::write(folder.join("probe"), "").is_err();
    // The superuser may write anywhere but here.
    [closed, PathBuf::from("/proc/self")].into_iter().find(|folder| works(folder))
}

#[test]
fn a_read_only_folder_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(closed) = read_only_folder(folder.path()) else {
        common::not_tested("no folder here that cannot be written to");
        return;
    };
    let target = closed.join("out.bin");
    let stream = stream();
    let profile = std::fs::read(data("cpython/tiny_script_none.bin")).expect("readable");
    for (command, input) in [
        (&["from-bin"][..], &profile),
        (&["to-bin"], &stream),
        (&["to-bin", "--layout", "v2"], &stream),
        (&["recover"], &profile),
    ] {
        let ran = run(&[command, &["-o", text(&target)]].concat(), input);
        assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{command:?}");
        assert!(ran.stderr.contains(text(&target)), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
}

/// A disk that becomes full. Mounting needs the right to; where it is not to be had this says so.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_keeps_what_was_committed() {
    let folder = tempfile::tempdir().expect("a folder");
    let jsonl = folder.path().join("in.jsonl");
    let whole = stream();
    std::fs::write(&jsonl, &whole).expect("writable");
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let script = "mount -t tmpfs -o size=24k tmpfs \"$1\" || exit 77
        shift
        echo 'what was there' > \"$1/old\"
        \"$0\" to-bin \"$2\" --compression none -o \"$1/old\" 2>> \"$3\"
        echo \"old $?\" >> \"$3\"
        cat \"$1/old\" >> \"$3\"
        \"$0\" to-bin \"$2\" --layout v2 --flush samples:100 -o \"$1/new\" 2>> \"$3\"
        echo \"new $?\" >> \"$3\"
        ls -A \"$1\" >> \"$3\"
        cp \"$1/new\" \"$4\"";
    let report = folder.path().join("report");
    let copy = folder.path().join("copy.bin");
    let arguments = [text(&disk), text(&disk), text(&jsonl), text(&report), text(&copy)];
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script, PROGRAM])
        .args(arguments)
        .output();
    let output = match output {
        Ok(output) if output.status.code() == Some(0) => output,
        other => {
            common::not_tested(&format!("no small disk can be mounted here: {other:?}"));
            return;
        }
    };
    let report = std::fs::read_to_string(&report).expect("written");
    assert_eq!(report.matches("No space left on device").count(), 2, "{report} {}", said(&output));
    assert!(report.contains("old 1\nwhat was there\n"), "{report}");
    assert!(report.ends_with("new 3\nnew\nold\n"), "{report}");
    let (samples, is_torn) = whole_chunks(&copy);
    assert!(samples > 200 && !is_torn, "{samples} samples");
    assert!(
        profile_of(&whole, &["--layout", "v2", "--flush", "samples:100"])
            .starts_with(&std::fs::read(&copy).expect("copied"))
    );
}

/// A disk that is full, or a limit on sizes, while chunks are written: what is whole stays, and is told of.
#[test]
fn to_bin_names_the_output_that_is_full_and_keeps_whole_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("in.jsonl"), stream()).expect("writable");
    for (layout, flush, code) in [("v1", "", 1), ("v2", "--flush samples:100", 3)] {
        let output = path(&format!("{layout}.bin"));
        let script = format!(
            "ulimit -f 8; exec \"$0\" to-bin --layout {layout} {flush} --compression none \"$1\" -o \"$2\""
        );
        let ran = shell(&script, &[text(&path("in.jsonl")), text(&output)]);
        let told = said(&ran);
        assert_eq!(ran.status.code(), Some(code), "{told}");
        assert!(told.contains(&format!("{layout}.bin: File too large")), "{told}");
        assert!(!told.contains("in.jsonl"), "{told}");
        assert_eq!(output.exists(), code == 3);
        if code == 3 {
            let again = common::run(&["from-bin", "-q", text(&output)], b"");
            assert_eq!(again.code, 3, "{}", again.stderr);
            assert!(again.stderr.contains("the run goes on after its chunk"), "{}", again.stderr);
        }
    }
}

/// A socket is made aside in a folder, which has to go whenever the process does.
#[test]
fn a_listener_that_is_stopped_while_it_is_made_leaves_nothing() {
    use rustix::process::{Pid, Signal, kill_process};
    for _ in 0..20 {
        let folder = tempfile::tempdir().expect("a folder");
        let target = format!("unix-listen:{}", folder.path().join("s").display());
        let mut program = start(&["from-bin", "-o", &target]);
        let begun = std::time::Instant::now();
        while names_in(folder.path()).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it does not listen");
        }
        kill_process(Pid::from_child(&program), Signal::TERM).expect("it runs");
        program.wait().expect("it ends");
        assert_eq!(names_in(folder.path()), [""; 0]);
    }
}
