//! `diff`: two runs, whatever form they come in.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use common::{answer, answered_profiles, consumer, data, name, profile_of, run, stream_of, text};
use serde_json::Value;

/// The head and the rows.
fn diff(base: &Path, new: &Path, options: &[&str]) -> (Value, Vec<Value>) {
    let ran = run(&[&["diff", "--json", text(base), text(new)], options].concat(), b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let mut lines = ran.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let parse = |line: &[u8]| serde_json::from_slice(line).expect("JSON");
    (lines.next().map(parse).expect("a head"), lines.map(parse).collect())
}

/// A profile in every form in which it can be compared.
fn forms(profile: &Path, folder: &Path) -> Vec<PathBuf> {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("writable");
        path
    };
    let raw = stream_of(profile, &["--stream-types", "raw", "--flush", "samples:300", "--max-line", "8k"]);
    let cpython = run(&["from-bin", "-q", text(profile), "--schema", "cpython"], b"").stdout;
    vec![
        profile.to_path_buf(),
        write("raw.jsonl", &raw),
        write("all.jsonl", &stream_of(profile, &[])),
        write("agg.jsonl", &stream_of(profile, &["--stream-types", "agg"])),
        write("windows.jsonl", &stream_of(profile, &["--stream-types", "agg:300ms", "--max-line", "8k"])),
        write("chunks.bin", &profile_of(&raw, &["--layout", "v2", "--flush", "samples:400"])),
        write("cpython.jsonl", &cpython),
        write("upgraded.jsonl", &run(&["upgrade"], &cpython).stdout),
        write("packed.jsonl.zst", &zstd::encode_all(raw.as_slice(), 3).expect("zstd")),
    ]
}

#[test]
fn every_form_of_a_profile_has_the_same_counts() {
    for file in
        ["cpython/wall_all_100hz_none.bin", "cpython/edge_empty_stacks.bin", "cpython/native_all_2k_none.bin"]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = data(file);
        for form in forms(&profile, folder.path()) {
            let (head, rows) = diff(&profile, &form, &[]);
            assert_eq!(head["base"]["samples_total"], head["new"]["samples_total"], "{}", form.display());
            assert!(!rows.is_empty());
            for row in rows {
                let same = row["self_change"] == 0 && row["cumulative_change"] == 0;
                assert!(same, "{}: {row}", form.display());
            }
        }
    }
}

#[test]
fn the_counts_are_cpythons() {
    let [base, new] =
        ["wall_main_1k_none", "wall_main_1k_zstd"].map(|name| data(&format!("cpython/{name}.bin")));
    let tables =
        [&base, &new].map(|path| consumer::cpython_agg(&answer(path, "expected.jsonl").expect("an answer")));
    let (head, rows) = diff(&base, &new, &[]);
    assert_eq!(head["base"]["samples_total"], tables[0].1);
    assert_eq!(head["new"]["samples_total"], tables[1].1);
    let subjects: BTreeSet<_> = tables[0].0.keys().chain(tables[1].0.keys()).collect();
    assert_eq!(rows.len(), subjects.len());
    let mut shares = Vec::new();
    for row in &rows {
        let place = |key: &str| row.get(key).and_then(Value::as_i64);
        let key = (
            row["path"].as_str().expect("a text").to_string(),
            row["function"].as_str().expect("a text").to_string(),
            place("line").unwrap_or(0),
            place("end_line"),
            place("col"),
            place("end_col"),
        );
        for (side, (table, total)) in ["base", "new"].iter().zip(&tables) {
            let (self_, cumulative) = table.get(&key).copied().unwrap_or_default();
            assert_eq!(row[format!("self_{side}")], self_, "{key:?}");
            assert_eq!(row[format!("cumulative_{side}")], cumulative, "{key:?}");
            assert_eq!(row[format!("self_{side}_share")], self_ as f64 / *total as f64);
        }
        shares.push(row["self_share_change"].as_f64().expect("a number").abs());
    }
    assert!(shares.windows(2).all(|pair| pair[0] >= pair[1]), "the largest change comes first");
}

/// Counted anew from the samples that CPython replays: a function or a file counts once a sample.
#[test]
fn functions_and_files_count_once_a_sample() {
    for path in answered_profiles() {
        if !["recurse_3000_500hz_zstd", "wall_all_100hz_none", "subinterpreters_1k_none"]
            .contains(&name(&path).as_str())
        {
            continue;
        }
        for by in ["function", "file"] {
            let mut expected: BTreeMap<(String, Option<String>), (u64, u64)> = BTreeMap::new();
            for line in answer(&path, "samples.jsonl").expect("an answer").lines() {
                type Row = (u64, u64, u64, Vec<u64>, Vec<(String, Value, String, Value)>);
                let (.., times, frames): Row = serde_json::from_str(line).expect("a row");
                let counted = frames.iter().filter(|frame| !frame.0.ends_with("_sync_coordinator.py"));
                let subjects: Vec<_> = counted
                    .map(|frame| (frame.0.clone(), (by == "function").then(|| frame.2.clone())))
                    .collect();
                if let Some(innermost) = subjects.first() {
                    expected.entry(innermost.clone()).or_default().0 += times.len() as u64;
                }
                for subject in subjects.into_iter().collect::<BTreeSet<_>>() {
                    expected.entry(subject).or_default().1 += times.len() as u64;
                }
            }
            let folder = tempfile::tempdir().expect("a folder");
            let raw = folder.path().join("raw.jsonl");
            std::fs::write(&raw, stream_of(&path, &["--stream-types", "raw", "--max-line", "8k"]))
                .expect("writable");
            let (_, rows) = diff(&path, &raw, &["--by", by]);
            assert_eq!(rows.len(), expected.len());
            for row in rows {
                let function = row.get("function").map(|name| name.as_str().expect("a text").to_string());
                let counts = expected[&(row["path"].as_str().expect("a text").to_string(), function)];
                for side in ["base", "new"] {
                    assert_eq!(row[format!("self_{side}")], counts.0, "{row}");
                    assert_eq!(row[format!("cumulative_{side}")], counts.1, "{row}");
                }
            }
        }
    }
}

#[test]
fn what_tables_do_not_tell_is_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = data("cpython/wall_main_1k_none.bin");
    let agg = folder.path().join("agg.jsonl");
    std::fs::write(&agg, stream_of(&profile, &["--stream-types", "agg"])).expect("writable");
    let (_, rows) = diff(&profile, &agg, &["--by", "function"]);
    assert!(rows.iter().all(|row| row.get("cumulative_base").is_none() && row["self_change"] == 0));
}

#[test]
fn runs_that_were_recorded_differently_are_refused() {
    let file = |name: &str| data(&format!("cpython/{name}.bin"));
    let compare = |base: &str, new: &str, options: &[&str]| {
        run(&[&["diff", text(&file(base)), text(&file(new))], options].concat(), b"")
    };
    let ran = compare("wall_main_1k_none", "cpu_main_1k_zstd", &[]);
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    assert!(ran.stderr.contains("mode (wall and cpu)"), "{}", ran.stderr);
    assert_eq!(compare("wall_main_1k_none", "cpu_main_1k_zstd", &["--force"]).code, 0);
    let ran = compare("wall_main_1k_none", "nogc_2k_none", &[]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("gc (on and off)"), "{}", ran.stderr);
    // Known against unknown is no difference, but told.
    let ran = compare("cfg_mode_wall", "cfg_mode_unknown", &[]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("mode known for only one of the two"), "{}", ran.stderr);
    let ran = compare("cfg_features_1_mode_1", "cfg_mode_cpu", &[]);
    assert!(ran.code == 0 && ran.stderr.contains("capture settings known for only one"), "{}", ran.stderr);
}

#[test]
fn what_cannot_be_compared_is_named() {
    let profile = data("cpython/tiny_script_none.bin");
    let two = data("cases/two_runs.jsonl");
    let ran = run(&["diff", text(&profile), text(&two)], b"");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("several runs"), "{}", ran.stderr);
    assert_eq!(run(&["diff", "-", "-"], b"").code, 2);
    let ran = run(&["diff", text(&profile), "-"], b"hello\n");
    assert_eq!((ran.code, ran.stdout.len()), (1, 0));
    assert!(ran.stderr.starts_with("tachyon-jsonl: standard input: "), "{}", ran.stderr);
}

#[test]
fn the_table_fits_a_terminal() {
    let profile = data("cpython/wall_main_1k_none.bin");
    let ran = run(&["diff", text(&profile), text(&data("cpython/wall_main_1k_zstd.bin")), "--top", "3"], b"");
    let table = String::from_utf8(ran.stdout).expect("UTF-8");
    assert_eq!(table.lines().count(), 8, "{table}");
    assert!(table.ends_with("more: --top 0 lists all\n"), "{table}");
    let names = data("cpython/edge_strings.bin");
    let ran = run(&["diff", text(&names), text(&names), "--top", "0"], b"");
    assert!(ran.stdout.iter().all(|byte| *byte >= b' ' || *byte == b'\n'));
}
