//! What commands hold in memory of inputs that are made to fill it: at most 200 MiB.

mod common;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

use common::{PROGRAM, Ran, run};
use tachyon_jsonl::limits::{THREAD_FRAMES, THREADS};

const LIMIT_KIB: u64 = 200 * 1024;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs a command on an input; its peak has to be within the limit. None where there is no python3.
fn within_the_limit(args: &[&str], input: &Path) -> Option<Ran> {
    let (peak, output) = (input.with_extension("peak"), input.with_extension("out"));
    let script = "import resource, subprocess, sys\n\
        code = subprocess.call(sys.argv[2:])\n\
        open(sys.argv[1], 'w').write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))\n\
        sys.exit(code)";
    let mut command = Command::new("python3");
    command.args(["-c", script, text(&peak), PROGRAM]).args(args).arg(text(input));
    if matches!(args[0], "diff") {
        command.arg(text(input));
    }
    if matches!(args[0], "from-bin" | "to-bin" | "recover") {
        command.args(["-o", text(&output)]);
    }
    let ended = match command.output() {
        Ok(ended) => ended,
        Err(error) => {
            common::not_installed(&format!("python3: {error}"));
            return None;
        }
    };
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    let peak: u64 = fs::read_to_string(&peak).expect("written").parse().expect("a number");
    assert!(peak <= LIMIT_KIB, "{args:?}: {} MiB of {}: {stderr}", peak / 1024, input.display());
    assert!(!stderr.contains("panicked"), "{stderr}");
    Some(Ran { code: ended.status.code().expect("no signal"), stdout: ended.stdout, stderr })
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends a record of a sample with another stack.
fn full(bytes: &mut Vec<u8>, thread: u64, delta: u64, frames: impl ExactSizeIterator<Item = u32>) {
    bytes.extend(thread.to_le_bytes());
    bytes.extend([0, 0, 0, 0, 1]);
    varint(bytes, delta);
    bytes.push(0);
    varint(bytes, frames.len() as u64);
    frames.for_each(|frame| varint(bytes, frame.into()));
}

/// Appends a record of samples with the same stack.
fn repeat(bytes: &mut Vec<u8>, thread: u64, samples: u64, delta: u64) {
    bytes.extend(thread.to_le_bytes());
    bytes.extend([0, 0, 0, 0, 0]);
    varint(bytes, samples);
    for _ in 0..samples {
        varint(bytes, delta);
        bytes.push(0);
    }
}

/// A packed profile of these records, with so many threads, samples and frames.
fn profile(path: &Path, records: &[u8], threads: u32, samples: u32, frames: u32) {
    let packed = zstd::encode_all(records, 1).expect("memory");
    let strings_at = 64 + packed.len() as u64;
    let mut bytes = Vec::new();
    bytes.extend(0x5441_4348u32.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([3, 15, 2, 0]);
    for number in [1_000_000_000u64, 1000, samples.into()] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(threads.to_le_bytes());
    bytes.extend(strings_at.to_le_bytes());
    bytes.extend((strings_at + 2).to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.resize(64, 0);
    bytes.extend(packed);
    bytes.extend(b"\x01a");
    for _ in 0..frames {
        bytes.extend([0, 0, 2, 0, 0, 0, 0xff]);
    }
    let size = bytes.len() as u64 + 32;
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(frames.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend([0; 16]);
    fs::write(path, bytes).expect("room");
}

const TYPES: [&str; 4] = ["raw,str_def,frame_def", "agg:5s", "agg:1ms,heartbeat", "raw,heartbeat"];

/// `from-bin` with each of the stream types, and other commands, on a profile that holds so many samples.
fn profile_commands(types: &[&str], others: &[&str], samples: u64, make: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("profile.bin");
    make(&path);
    for types in types {
        let Some(ran) = within_the_limit(&["from-bin", "--stream-types", types], &path) else { return };
        assert_eq!(ran.code, 0, "{types}: {}", ran.stderr);
    }
    for command in others {
        let Some(ran) = within_the_limit(&[command], &path) else { return };
        assert_eq!(ran.code, 0, "{command}: {}", ran.stderr);
    }
    let ran = run(&["inspect", "--json", text(&path)], b"");
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(report["profiles"][0]["samples"], samples);
}

#[test]
fn threads_up_to_the_limit() {
    let threads = THREADS as u64;
    profile_commands(&TYPES, &["inspect", "diff", "recover"], threads, |path| {
        let mut records = Vec::new();
        (0..threads).for_each(|thread| full(&mut records, thread, thread, [0].into_iter()));
        profile(path, &records, threads as u32, threads as u32, 1);
    });
}

#[test]
fn the_deepest_stacks_of_as_many_threads_as_there_may_be() {
    let threads = THREADS as u64;
    profile_commands(&TYPES, &["inspect", "diff", "recover"], threads, |path| {
        let mut records = Vec::new();
        let depth = THREAD_FRAMES / THREADS;
        for thread in 0..threads {
            full(&mut records, thread, thread, vec![0; depth].into_iter());
        }
        profile(path, &records, threads as u32, threads as u32, 1);
    });
}

#[test]
fn full_stacks_far_out_of_order() {
    const OF_A_THREAD: u64 = 250_000;
    profile_commands(&TYPES[..1], &[], 2 * OF_A_THREAD, |path| {
        let mut records = Vec::new();
        for thread in [1, 2] {
            (0..OF_A_THREAD).for_each(|_| full(&mut records, thread, 10, [0; 256].into_iter()));
        }
        profile(path, &records, 2, 2 * OF_A_THREAD as u32, 1);
    });
}

#[test]
fn stacks_that_all_differ() {
    const SAMPLES: u64 = 20_000;
    profile_commands(&TYPES, &["inspect", "diff", "recover"], SAMPLES, |path| {
        let mut records = Vec::new();
        let mut state = 1u64;
        for _ in 0..SAMPLES {
            let frames: Vec<u32> = (0..256)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 63) as u32
                })
                .collect();
            full(&mut records, 1, 10, frames.into_iter());
        }
        profile(path, &records, 1, SAMPLES as u32, 2);
    });
}

#[test]
fn a_window_and_a_thousand_heartbeats_a_sample() {
    const SAMPLES: u64 = 4000;
    profile_commands(&TYPES[2..], &[], SAMPLES + 1, |path| {
        let mut records = Vec::new();
        full(&mut records, 1, 10, 0..256);
        repeat(&mut records, 1, SAMPLES, 1 << 40);
        profile(path, &records, 1, SAMPLES as u32 + 1, 256);
    });
}

/// A stream of one `meta` and what `body` adds.
fn stream(path: &Path, meta: &str, body: impl FnOnce(&mut dyn Write)) {
    let mut file = BufWriter::new(File::create(path).expect("writable"));
    writeln!(
        file,
        r#"{{"type":"meta","v":2,"run_id":"r","seq":0,"batch":0,"messages":100,"run_start_usec":0,"sample_interval_usec":1000,"id_scope":"batch","stream_types":["raw"]{meta}}}"#
    )
    .expect("room");
    body(&mut file);
    file.flush().expect("room");
}

/// Messages of so many threads each, all at one time.
fn of_threads(file: &mut dyn Write, messages: usize, threads: usize) {
    for message in 0..messages {
        let rows: Vec<String> = (message * threads..(message + 1) * threads)
            .map(|id| {
                format!(r#"{{"thread_id":"{id}","interpreter_id":0,"ts_delta_usec":[0],"status":[0]}}"#)
            })
            .collect();
        writeln!(
            file,
            r#"{{"type":"raw","v":2,"run_id":"r","seq":{},"batch":0,"start_usec":5,"samples":{threads},"stack_frame_id":[],"threads":[{}]}}"#,
            message + 1,
            rows.join(",")
        )
        .expect("room");
    }
}

#[test]
fn a_batch_of_more_threads_than_a_profile_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("threads.jsonl");
    stream(&path, "", |file| of_threads(file, 12, 50_000));
    for command in ["inspect", "check", "diff"] {
        if within_the_limit(&[command], &path).is_none() {
            return;
        }
    }
    // Lines 4 and 5 are the second group, which ends where line 6 does not belong to it.
    let Some(ran) = within_the_limit(&["to-bin"], &path) else { return };
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains(&format!("more than {THREADS} threads, the limit (line 6)")),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("--layout v2"), "{}", ran.stderr);
    assert!(!path.with_extension("out").exists(), "nothing that from-bin refuses");
    // Chunks have room for all of them, and are read again.
    let Some(ran) = within_the_limit(&["to-bin", "--layout", "v2"], &path) else { return };
    assert_eq!(ran.code, 3, "the stream has no end: {}", ran.stderr);
    let chunks = path.with_extension("out");
    let ran = run(&["inspect", "--json", text(&chunks)], b"");
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(report["samples"], 600_000, "{}", ran.stderr);
}

#[test]
fn millions_of_labels() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("labels.jsonl");
    let labels: Vec<String> = (0..4_500_000).map(|label| format!(r#""{label:x}":"""#)).collect();
    stream(&path, &format!(r#","labels":{{{}}}"#, labels.join(",")), |_| ());
    for command in ["to-bin", "inspect", "check", "diff"] {
        let Some(ran) = within_the_limit(&[command], &path) else { return };
        assert_eq!(ran.code, 1, "{command}: {}", ran.stderr);
    }
}

#[test]
fn more_threads_than_a_profile_holds_are_not_saved_either() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("threads.bin");
    let threads = THREADS as u64 + 1;
    let mut records = Vec::new();
    (0..threads).for_each(|thread| full(&mut records, thread, 1, [0].into_iter()));
    profile(&path, &records, threads as u32, threads as u32, 1);
    let ran = run(&["from-bin", text(&path)], b"");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains(&format!("more than {THREADS} threads, the limit")), "{}", ran.stderr);
    let Some(ran) = within_the_limit(&["recover"], &path) else { return };
    assert_eq!(ran.code, 3, "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("more than {THREADS} threads, the limit")), "{}", ran.stderr);
    let saved = run(&["inspect", "--json", text(&path.with_extension("out"))], b"");
    let report: serde_json::Value = serde_json::from_slice(&saved.stdout).expect("JSON");
    assert_eq!(report["profiles"][0]["samples"], THREADS, "{}", saved.stderr);
}
