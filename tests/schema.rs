//! `schema/` says what the program does: every line validates, every example is quoted as it is, every
//! vector is what the program makes.

mod common;

use std::path::{Path, PathBuf};

use common::{answered_profiles, name, profile_of, run};
use serde::Deserialize;

fn schema(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(path)
}

/// The JSON Schema, compiled.
struct Validator {
    schemas: boon::Schemas,
    index: boon::SchemaIndex,
}

impl Validator {
    fn new() -> Self {
        let text = std::fs::read_to_string(schema("stream.schema.json")).expect("readable");
        let mut compiler = boon::Compiler::new();
        compiler.set_default_draft(boon::Draft::V2020_12);
        compiler.add_resource("stream.json", serde_json::from_str(&text).expect("JSON")).expect("a resource");
        let mut schemas = boon::Schemas::new();
        let index = compiler.compile("stream.json", &mut schemas).expect("a sound schema");
        Validator { schemas, index }
    }

    fn is_valid(&self, value: &serde_json::Value) -> bool {
        self.schemas.validate(value, self.index).is_ok()
    }

    /// Validates every line of a stream; how many there are.
    fn validate(&self, stream: &[u8], what: &str) -> usize {
        let lines = stream.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines
            .map(|line| {
                let value: serde_json::Value = serde_json::from_slice(line).expect("JSON");
                if let Err(error) = self.schemas.validate(&value, self.index) {
                    panic!("{what}: {error}: {}", String::from_utf8_lossy(&line[..line.len().min(500)]));
                }
            })
            .count()
    }
}

#[test]
fn every_line_that_the_program_writes_validates() {
    let validator = Validator::new();
    let mut lines = 0;
    for path in answered_profiles() {
        if name(&path) == "zstd_bomb_50m_samples" {
            continue;
        }
        let options = [
            "--flush",
            "samples:2000",
            "--stream-types",
            "raw,agg:1s,heartbeat:500ms,loss",
            "--label",
            "a=b",
            "--wall-start",
            "1790000000",
        ];
        let ran = run(&[&["from-bin", "-q", path.to_str().expect("UTF-8")], &options[..]].concat(), b"");
        lines += validator.validate(&ran.stdout, &name(&path));
        lines += validator
            .validate(&run(&["from-bin", "-q", path.to_str().expect("UTF-8")], b"").stdout, &name(&path));
    }
    assert!(lines > 1000, "{lines}");
}

#[test]
fn what_is_made_of_counts_alone_validates() {
    let validator = Validator::new();
    for path in answered_profiles() {
        if let Some(jsonl) = common::answer(&path, "expected.jsonl") {
            let ran = run(&["upgrade"], jsonl.as_bytes());
            assert!(validator.validate(&ran.stdout, &path.display().to_string()) >= 2);
        }
    }
}

#[test]
fn a_wrong_line_does_not_validate() {
    let validator = Validator::new();
    let text = std::fs::read_to_string(schema("examples.jsonl")).expect("readable");
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        for key in ["seq", "run_id", "v"] {
            let mut wrong = value.clone();
            wrong.as_object_mut().expect("an object").remove(key);
            assert!(!validator.is_valid(&wrong), "without {key}: {line}");
        }
        let mut wrong = value.clone();
        wrong["no_such_key"] = 1.into();
        assert!(!validator.is_valid(&wrong), "{line}");
    }
}

#[test]
fn the_examples_validate_decode_and_stand_in_the_readme() {
    let validator = Validator::new();
    let text = std::fs::read_to_string(schema("examples.jsonl")).expect("readable");
    let readme = std::fs::read_to_string(schema("README.md")).expect("readable");
    validator.validate(text.as_bytes(), "examples.jsonl");
    let mut columns = tachyon_jsonl::protocol::RawColumns::default();
    for line in text.lines() {
        tachyon_jsonl::protocol::decode(line.as_bytes(), &mut columns)
            .unwrap_or_else(|error| panic!("{error}: {line}"));
    }
    let mut quoted = 0;
    let mut inside = false;
    for line in readme.lines() {
        match line.trim() {
            "```jsonl" => inside = true,
            "```" => inside = false,
            line if inside => {
                assert!(text.lines().any(|example| example == line), "not in examples.jsonl: {line}");
                quoted += 1;
            }
            _ => {}
        }
    }
    assert!(quoted >= tachyon_jsonl::protocol::MessageType::ALL.len());
    let checked = run(&["check", "-q"], text.as_bytes());
    assert_eq!((checked.code, String::from_utf8_lossy(&checked.stdout).as_ref()), (0, ""));
}

#[derive(Deserialize)]
struct Vector {
    stream: String,
    profile: String,
    options: Vec<String>,
    #[serde(default)]
    exit: i32,
    /// Whether `to-bin --compression none` gives the profile back.
    returns: bool,
}

/// Run with UPDATE_VECTORS=1 to write the streams anew: that is a change of the protocol.
#[test]
fn the_vectors_are_what_the_program_makes() {
    let index = std::fs::read_to_string(schema("vectors/index.json")).expect("readable");
    let vectors: Vec<Vector> = serde_json::from_str(&index).expect("an index");
    for vector in &vectors {
        let profile = schema("vectors").join(&vector.profile);
        let options: Vec<&str> = vector.options.iter().map(String::as_str).collect();
        let ran = run(&[&["from-bin", "-q", profile.to_str().expect("UTF-8")], &options[..]].concat(), b"");
        assert_eq!(ran.code, vector.exit, "{}: {}", vector.stream, ran.stderr);
        let stream = schema("vectors").join(&vector.stream);
        if std::env::var_os("UPDATE_VECTORS").is_some() {
            std::fs::write(&stream, &ran.stdout).expect("written");
        }
        assert!(std::fs::read(&stream).expect("readable") == ran.stdout, "{}", vector.stream);
        if vector.returns {
            let again = profile_of(&ran.stdout, &["--compression", "none"]);
            assert!(again == std::fs::read(&profile).expect("readable"), "{}", vector.stream);
        }
    }
    let mut files: Vec<String> = std::fs::read_dir(schema("vectors"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .filter(|file| file.ends_with(".jsonl") || file.ends_with(".bin"))
        .collect();
    files.retain(|file| !vectors.iter().any(|vector| vector.stream == *file || vector.profile == *file));
    assert!(files.is_empty(), "not in the index: {files:?}");
}

#[test]
fn the_program_prints_the_schema() {
    assert!(run(&["schema"], b"").stdout == std::fs::read(schema("stream.schema.json")).expect("readable"));
}

#[test]
fn streams_with_differences_of_65_bits_are_still_read() {
    let stream = std::fs::read(common::data("cases/clocks_65_bits.jsonl")).expect("readable");
    let ran = common::run(&["to-bin", "--compression", "none"], &stream);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout == std::fs::read(schema("vectors/clocks.bin")).expect("readable"));
    assert_eq!(common::findings(&stream), [""; 0]);
}

#[test]
fn differences_of_times_fit_a_signed_number_of_64_bits_however_far_a_clock_jumps() {
    let stream = std::fs::read(schema("vectors/clocks.jsonl")).expect("readable");
    let mut farthest = 0;
    for line in stream.split_inclusive(|byte| *byte == b'\n') {
        if let common::consumer::Message::Raw { threads, .. } = common::consumer::parse(line) {
            let deltas = threads.iter().flat_map(|thread| &thread.ts_delta_usec);
            farthest = deltas.map(|delta| delta.unsigned_abs()).chain([farthest]).max().unwrap_or(0);
        }
    }
    assert!(farthest > 1 << 30);
    let ran = common::run(&["to-bin", "--compression", "none"], &stream);
    assert!(ran.stdout == std::fs::read(schema("vectors/clocks.bin")).expect("readable"));
}

#[test]
fn a_call_trace_as_msgspec_writes_it_gives_lines_that_validate_each_input_under_an_id_of_its_own() {
    let file = common::data("cases/lmct_magic_bin.lmct");
    let path = file.to_str().expect("UTF-8");
    let ran = run(&["from-bin", path, path], b"");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert_eq!(Validator::new().validate(&ran.stdout, "trace"), 10);
    let ids: std::collections::BTreeSet<String> =
        common::messages(&ran.stdout).iter().map(|message| message["run_id"].to_string()).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(common::findings(&ran.stdout), [""; 0]);
}

#[test]
fn what_is_odd_about_the_header_of_a_call_trace_is_told() {
    let whole = std::fs::read(common::data("cases/lmct_magic_bin.lmct")).expect("readable");
    let place =
        |what: &[u8]| whole.windows(what.len()).position(|found| found == what).expect("in the header");
    for (what, byte, said) in [
        (&b"\"l1_size\": 8"[..], b'9', "sm_config_digest is not the SHA-256 of sm_config_json"),
        (&b"trace_schema_version\x01"[..], 7, "trace_schema_version 7 is unknown; 1 is known"),
    ] {
        let mut odd = whole.clone();
        odd[place(what) + what.len() - 1] = byte;
        let ran = run(&["from-bin"], &odd);
        assert_eq!((ran.code, ran.stderr.matches(said).count()), (0, 1), "{}", ran.stderr);
        let strict = run(&["from-bin", "--strict"], &odd);
        assert_eq!((strict.code, strict.stderr.matches(said).count()), (1, 1), "{}", strict.stderr);
    }
}
