//! Limits of what a profile makes a reader keep: the answer is a clear error, or what is left is counted.

mod common;

use std::fs::File;
use std::io::{Cursor, Write};

use common::{data, run, text};
use tachyon_jsonl::format::{ChunkInfo, Packing, Profile, Writer, recover};
use tachyon_jsonl::limits::{CHUNKS_LISTED, LABELS, LOSSES, TABLE_BYTES, TABLE_ENTRIES};
use tachyon_jsonl::model::RunFacts;

fn plain() -> Vec<u8> {
    std::fs::read(data("malformed/00_good_plain.bin")).expect("readable")
}

#[test]
fn a_profile_has_only_so_many_strings() {
    for (strings, is_fine) in [(TABLE_ENTRIES, true), (TABLE_ENTRIES + 1, false)] {
        let sink = Cursor::new(Vec::new());
        let mut writer = Writer::new(sink, RunFacts::default(), Packing::None, 1).expect("memory takes it");
        for _ in 0..strings {
            writer.string(b"");
        }
        let made = writer.finish(0, None);
        assert_eq!(made.is_ok(), is_fine, "{strings}");
        if let Ok(bytes) = made {
            // The writer keeps to the limit, so the one that is too many is put in by hand.
            let mut bytes = bytes.into_inner();
            assert!(Profile::open(Cursor::new(&bytes)).is_ok());
            let footer = bytes.len() - 32;
            bytes.insert(footer, 0);
            let footer = footer + 1;
            bytes[footer..footer + 4].copy_from_slice(&(strings + 1).to_le_bytes());
            let size = bytes.len() as u64;
            bytes[footer + 8..footer + 16].copy_from_slice(&size.to_le_bytes());
            let error = Profile::open(Cursor::new(&bytes)).expect_err("refused").to_string();
            assert!(error.contains("over the limit of 4194304"), "{error}");
        }
    }
}

#[test]
fn tables_have_only_so_many_bytes() {
    let whole = plain();
    let (records, footer) = whole.split_at(whole.len() - 32);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("huge.bin");
    let mut file = File::create(&path).expect("writable");
    file.write_all(records).expect("room");
    // A hole, which takes no room on the disk.
    file.set_len(records.len() as u64 + TABLE_BYTES as u64).expect("room");
    std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).expect("a file");
    file.write_all(footer).expect("room");
    for command in ["from-bin", "inspect"] {
        let ran = run(&[command, text(&path)], b"");
        assert_eq!(ran.code, 1, "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("over the limit of 134217728"), "{command}: {}", ran.stderr);
    }
}

/// Chunks of one run; the chunk of each number has so many labels.
fn chunk(index: u64, labels: usize) -> Vec<u8> {
    let profile = Profile::open(Cursor::new(plain())).expect("sound");
    let labels = (0..labels).map(|number| (format!("label{number}"), String::new())).collect();
    let info = ChunkInfo { run_id: "r".to_string(), index, labels, ..ChunkInfo::default() };
    profile.to_chunk(&info).expect("a chunk")
}

#[test]
fn a_chunk_has_only_so_many_labels() {
    for (labels, is_fine) in [(LABELS, true), (LABELS + 1, false)] {
        let profile = Profile::open(Cursor::new(chunk(0, labels))).expect("the samples are sound");
        let contents = profile.contents();
        assert_eq!(contents.scan.samples, 9);
        assert_eq!(contents.chunk.is_some(), is_fine, "{labels}");
        let said = contents.warnings.concat();
        assert_eq!(said.contains("more than 4096 labels"), !is_fine, "{said}");
    }
}

#[test]
fn losses_beyond_so_many_are_counted() {
    let mut chunks = Vec::new();
    for index in 0..(2 * LOSSES as u64 + 20) {
        let mut chunk = chunk(index, 0);
        if index % 2 == 1 {
            // In the samples.
            chunk[70] ^= 0xff;
        }
        chunks.extend(chunk);
    }
    let recovered = recover(&mut Cursor::new(&chunks)).expect("there are whole ones");
    assert_eq!(recovered.parts, LOSSES as u64 + 10);
    assert_eq!(recovered.losses.len(), LOSSES + 1);
    let last = recovered.losses.last().expect("there are some").to_string();
    assert!(last.ends_with(" more losses of this kind"), "{last}");
}

#[test]
fn chunks_beyond_so_many_are_counted_and_not_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("many.bin");
    std::fs::write(&path, chunk(0, 0).repeat(CHUNKS_LISTED + 7)).expect("room");
    let ran = run(&["inspect", "--outline", "--json", text(&path)], b"");
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!(report["chunks"].as_array().map(Vec::len), Some(CHUNKS_LISTED), "{}", ran.stderr);
    assert_eq!(report["runs"][0]["chunk_count"], CHUNKS_LISTED + 7);
    assert!(ran.stdout.windows(12).any(|piece| piece == b"\"not_listed\""), "{}", ran.stderr);
}
