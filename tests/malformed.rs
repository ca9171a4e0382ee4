//! Broken files: each gives what CPython accepts, or one clear line with the place and a non-zero exit.

mod common;

use std::fmt::Write;
use std::path::Path;

use common::{answer, data, name, profiles, run};

/// Chunked profiles, which CPython does not read: see `chunks.rs`.
const CHUNKED: &str = "v2_";

/// Where CPython is lenient in a way that shows nonsense, and we say what is wrong.
const NONSENSE: [&str; 5] =
    ["footer_size_plus_1", "footer_size_zero", "extra_twice", "stats_no_room", "stats_twice"];

#[test]
fn every_broken_file_is_read_as_cpython_reads_it_or_refused_with_a_place() {
    let index = std::fs::read_to_string(data("malformed/index.json")).expect("readable");
    let index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
    for path in profiles("malformed", &[""]) {
        let name = name(&path);
        if name.starts_with(CHUNKED) || name.starts_with("zstd_bomb") {
            continue;
        }
        let accepted = index[&name]["step"] == "ok" || answer(&path, "samples.jsonl").is_some();
        let ran = run(&["from-bin", "-q", path.to_str().expect("UTF-8")], b"");
        if accepted && !NONSENSE.contains(&name.as_str()) {
            assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{name}");
            continue;
        }
        // Old layouts, odd statistics blocks and what zstd allows are read by us and not by CPython.
        if ran.code == 0 {
            assert!(
                name.starts_with("v1_alpha") || name.starts_with("stats_") || name == "extra_twice",
                "{name} is accepted"
            );
            continue;
        }
        let errors: Vec<&str> = ran.stderr.lines().filter(|line| !line.starts_with("hint: ")).collect();
        assert_eq!(errors.len(), 1, "{name}: {}", ran.stderr);
        assert!(errors[0].contains("(at byte "), "{name}: {}", errors[0]);
        assert!(matches!(ran.code, 1 | 3), "{name}");
        assert_eq!(ran.code == 1, ran.stdout.is_empty(), "{name}: exit 1 means that nothing was written");
        if ran.code == 3 {
            let end = String::from_utf8_lossy(&ran.stdout).lines().last().expect("an end").to_string();
            assert!(end.contains("\"complete\":false"), "{name}: {end}");
        }
    }
}

/// What a profile says of itself may be wrong while all its samples are sound.
#[test]
fn statistics_and_modes_that_cannot_be_cost_no_samples() {
    let good = run(&["from-bin", "-q", data("malformed/00_good_plain.bin").to_str().expect("UTF-8")], b"");
    let good = common::consumer::read(&good.stdout).threads;
    for (file, code) in [
        ("stats_nan_duration", "invalid_statistics"),
        ("stats_nan_rate", "invalid_statistics"),
        ("stats_nan_missed", "invalid_statistics"),
        ("stats_negative_rate", "invalid_statistics"),
        ("config_mode_6", "unsupported"),
        ("config_mode_7_features", "unsupported"),
        ("config_all_ones", "unsupported"),
    ] {
        let path = data(&format!("malformed/{file}.bin"));
        let path = path.to_str().expect("UTF-8");
        let ran = run(&["from-bin", "-q", path], b"");
        assert_eq!(ran.code, 3, "{file}: {}", ran.stderr);
        let messages = common::messages(&ran.stdout);
        let errors: Vec<&serde_json::Value> =
            messages.iter().filter(|message| message["type"] == "error").collect();
        assert!(errors.len() == 1 && errors[0]["code"] == code, "{file}: {errors:?}");
        assert!(messages.last().is_some_and(|end| end["complete"] == false), "{file}");
        assert!(common::consumer::read(&ran.stdout).threads == good, "{file}");
        for options in [&[][..], &["--outline"]] {
            let ran = run(&[&["inspect", "--json", path], options].concat(), b"");
            assert_eq!(ran.code, 3, "{file}: {}", ran.stderr);
            assert!(String::from_utf8_lossy(&ran.stdout).contains(code), "{file}");
        }
        assert_eq!(run(&["recover", path], b"").code, 3, "{file}");
    }
}

/// What the user is told about each of them, in one place to read.
#[test]
fn what_is_said_about_broken_files() {
    let mut said = String::new();
    for folder in ["malformed", "cases", "cpython", "legacy"] {
        for path in profiles(folder, &[""]) {
            if name(&path).starts_with("zstd_bomb") {
                continue;
            }
            let relative = Path::new("tests/data").join(folder).join(path.file_name().expect("a name"));
            let ran = run(&["from-bin", relative.to_str().expect("UTF-8")], b"");
            if !ran.stderr.is_empty() {
                write!(said, "exit {}\n{}\n", ran.code, ran.stderr).expect("a String takes all");
            }
        }
    }
    insta::with_settings!({ snapshot_path => "../snapshots", prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("broken-files", said);
    });
}

#[test]
fn strict_refuses_what_is_overlooked_otherwise() {
    for file in [
        "malformed/comp_2.bin",
        "malformed/stats_version_2.bin",
        "malformed/encoding_255.bin",
        "cases/count_low.bin",
    ] {
        let ran = run(&["from-bin", "--strict", data(file).to_str().expect("UTF-8")], b"");
        assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{file}: {}", ran.stderr);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_bomb_or_a_giant_count_takes_little_memory() {
    for file in [
        "malformed/zstd_bomb_1100mb.bin",
        "malformed/zstd_bomb_1100mb_sized.bin",
        "malformed/count_both_u32max.bin",
        "cases/strings_huge.bin",
    ] {
        // 200 MB of address space, most of it the program itself and its libraries.
        let command =
            format!("ulimit -v 200000; exec {} from-bin -q {}", common::PROGRAM, data(file).display());
        let output = std::process::Command::new("sh").args(["-c", &command]).output().expect("a shell");
        assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{file}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("memory allocation"), "{file}");
    }
}

/// Any bytes give a result or an error: every byte of a sound profile set to other values, and every
/// length of it.
#[test]
fn no_change_of_a_byte_and_no_cut_makes_a_panic() {
    use std::io::Cursor;
    use tachyon_jsonl::convert::{StreamOptions, to_stream};
    use tachyon_jsonl::format::{Part, Profile, Sequence};

    let options = StreamOptions::new("r").expect("an id");
    let counts = options.clone().types("agg:1ms".parse().expect("types"));
    let try_one = |bytes: &[u8]| {
        if let Ok(mut profile) = Profile::open(Cursor::new(bytes)) {
            to_stream(&mut profile, &options, &mut std::io::sink()).expect("a Vec has no errors of its own");
        }
        // The same, counted while it is opened.
        let mut source = Cursor::new(bytes);
        let mut sequence = Sequence::open(&mut source).expect("readable").counting(counts.counting());
        if let Ok(Some(Part::Profile(mut profile))) = sequence.next(&mut source) {
            to_stream(&mut profile, &counts, &mut std::io::sink()).expect("a Vec has no errors of its own");
        }
    };
    for file in ["malformed/00_good_plain.bin", "malformed/00_good_zstd.bin"] {
        let sound = std::fs::read(data(file)).expect("readable");
        for length in 0..sound.len() {
            try_one(&sound[..length]);
        }
        for at in 0..sound.len() {
            for change in [0x01, 0x02, 0x10, 0x80, 0xff] {
                let mut bytes = sound.clone();
                bytes[at] ^= change;
                try_one(&bytes);
            }
        }
    }
}
