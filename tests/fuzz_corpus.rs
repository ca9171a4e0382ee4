//! The inputs of the fuzz targets that are kept, and the small files of the test data, through the same
//! functions: `fuzz/invariants.rs` says what holds of each.

#[path = "../fuzz/invariants.rs"]
mod invariants;

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};

/// Bytes of the files that are taken: of larger ones the other tests take care.
const SMALL: u64 = 4 * 1024;

/// Files with this ending in these folders, and what is kept for the target itself.
fn replay(target: &str, check: fn(&[u8]), folders: &[&str], ending: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_folder = |folder: &str, ending: Option<&str>| -> Vec<PathBuf> {
        let entries = fs::read_dir(root.join(folder)).expect("the folder is there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let small = paths.filter(|path| fs::metadata(path).expect("a file").len() <= SMALL);
        small
            .filter(|path| ending.is_none_or(|ending| path.to_str().expect("UTF-8").ends_with(ending)))
            .collect()
    };
    let mut paths = in_folder(&format!("fuzz/seeds/{target}"), None);
    paths.extend(folders.iter().flat_map(|folder| in_folder(folder, Some(ending))));
    paths.sort();
    let breaks = |path: &PathBuf| {
        let input = fs::read(path).expect("readable");
        panic::catch_unwind(|| check(&input)).is_err()
    };
    paths.retain(breaks);
    assert!(paths.is_empty(), "an invariant is broken by {paths:#?}");
}

const PROFILES: [&str; 5] =
    ["schema/vectors", "tests/data/cases", "tests/data/cpython", "tests/data/legacy", "tests/data/malformed"];
const STREAMS: [&str; 3] = ["schema", "schema/vectors", "tests/data/cases"];

#[test]
fn any_bytes_are_profiles_or_none() {
    replay("profile", invariants::profile, &PROFILES, ".bin");
}

#[test]
fn what_is_recovered_is_sound() {
    replay("recover", invariants::recover, &PROFILES, ".bin");
}

#[test]
fn any_line_is_understood_or_refused() {
    replay("stream", invariants::stream, &STREAMS, ".jsonl");
}

#[test]
fn any_lines_become_a_sound_profile() {
    replay("to_binary", invariants::to_binary, &STREAMS, ".jsonl");
}

#[test]
fn frames_and_lines_become_each_other() {
    replay("msgpack", invariants::msgpack, &STREAMS, ".jsonl");
}

#[test]
fn cpythons_lines_become_a_well_formed_stream() {
    replay("upgrade", invariants::upgrade, &["tests/data/cases", "tests/data/cpython"], ".jsonl");
}
