//! Saving a profile: what is made again, what is said of it, and whose fault an error is.

mod common;

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use common::data;
use tachyon_jsonl::error::{Error, ErrorKind};
use tachyon_jsonl::format::{ChunkInfo, Profile, recover, ring_start};

fn read(name: &str) -> Vec<u8> {
    std::fs::read(data(name)).expect("readable")
}

struct Saved {
    bytes: Vec<u8>,
    samples: u64,
    losses: Vec<String>,
}

fn save(bytes: &[u8]) -> Saved {
    let mut recovered = recover(&mut Cursor::new(bytes)).expect("something is saved");
    let mut bytes = Vec::new();
    recovered.copy.read_to_end(&mut bytes).expect("memory has no errors");
    Saved {
        bytes,
        samples: recovered.samples,
        losses: recovered.losses.iter().map(ToString::to_string).collect(),
    }
}

fn refusal(bytes: &[u8]) -> String {
    let error = recover(&mut Cursor::new(bytes)).expect_err("nothing is saved");
    assert_eq!(error.kind(), ErrorKind::Profile);
    error.to_string()
}

/// A thread's head, as every record begins.
fn head(thread: u64, encoding: u8) -> Vec<u8> {
    [&thread.to_le_bytes()[..], &0u32.to_le_bytes(), &[encoding]].concat()
}

/// A sample of `thread` in frame `frame` alone.
fn sample(thread: u64, frame: u8) -> Vec<u8> {
    [head(thread, 1), vec![10, 1, 1, frame]].concat()
}

/// A profile whose header was never written: records, strings, frames of (path, function), footer.
fn headless(records: &[u8], strings: &[&[u8]], frames: &[(u8, u8)]) -> Vec<u8> {
    let mut bytes = [&[0; 64], records].concat();
    for string in strings {
        bytes.push(string.len() as u8);
        bytes.extend_from_slice(string);
    }
    for (path, function) in frames {
        bytes.extend_from_slice(&[*path, *function, 2, 0, 0, 0, 255]);
    }
    let size = bytes.len() as u64 + 32;
    bytes.extend_from_slice(&(strings.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(frames.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&[0; 16]);
    bytes
}

/// Memory that cannot be read once.
struct FailsOnce {
    inner: Cursor<Vec<u8>>,
    left: usize,
}

impl Read for FailsOnce {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 {
            return Err(io::Error::other("a bad block"));
        }
        self.inner.read(buffer)
    }
}

impl Seek for FailsOnce {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

#[test]
fn an_error_of_the_source_is_not_taken_for_damage() {
    let whole = read("malformed/00_good_plain.bin");
    let torn = whole[..whole.len() - 5].to_vec();
    let chunks = read("malformed/v2_good.bin");
    for bytes in [whole, torn, chunks] {
        for left in 1.. {
            let mut source = FailsOnce { inner: Cursor::new(bytes.clone()), left };
            let result = recover(&mut source).map(|recovered| recovered.samples);
            if source.left <= left && source.left > 0 {
                assert!(left > 5 && result.is_ok(), "all is read");
                break;
            }
            assert_eq!(result.map_err(|error| error.kind()), Err(ErrorKind::Io), "at read {left}");
        }
    }
}

fn chunk(run_id: &str, index: u64) -> Vec<u8> {
    let profile = Profile::open(Cursor::new(read("malformed/00_good_plain.bin"))).expect("sound");
    let info = ChunkInfo { run_id: run_id.to_string(), index, ..ChunkInfo::default() };
    profile.to_chunk(&info).expect("a chunk")
}

#[test]
fn a_ring_is_put_in_order_and_the_chunks_that_are_missing_within_a_run_are_told() {
    let order = [("b", 9), ("a", 5), ("a", 2), ("b", 10), ("a", 1)];
    let chunks: Vec<Vec<u8>> = order.iter().map(|(run, index)| chunk(run, *index)).collect();
    let ring = [&ring_start(1 << 20)[..], &chunks.concat()].concat();
    let saved = save(&ring);
    let sorted = [4, 2, 1, 0, 3].map(|number: usize| chunks[number].clone()).concat();
    assert!(saved.bytes == sorted, "by run and number");
    let at = 64 + chunks[0].len();
    assert_eq!(saved.losses, [format!("chunks 3 to 4 of the run are missing (at byte {at})")]);
    assert_eq!(saved.samples, 5 * 9);
}

#[test]
fn without_a_header_samples_of_either_byte_order_are_saved() {
    for file in ["legacy/new_bigendian_none.bin", "cpython/wall_all_100hz_none.bin"] {
        let mut bytes = read(file);
        let samples = Profile::open(Cursor::new(bytes.clone())).expect("sound").contents().scan.samples;
        bytes[..64].fill(0);
        assert_eq!(save(&bytes).samples, samples, "{file}");
    }
}

#[test]
fn a_file_without_a_sample_is_named_for_what_it_is() {
    let text = "nothing but text, line after line\n".repeat(9);
    assert!(refusal(text.as_bytes()).contains("a text file"), "{}", refusal(text.as_bytes()));
    let junk = [&[0; 64][..], &[0xff; 40]].concat();
    assert_eq!(refusal(&junk), "not one whole sample stands in these 104 bytes (at byte 64)");
}

#[test]
fn a_header_that_was_never_written_and_a_damaged_one_are_told_apart() {
    let whole = read("malformed/00_good_plain.bin");
    let mut blank = whole.clone();
    blank[..64].fill(0);
    let [loss] = &save(&blank).losses[..] else { panic!("one loss") };
    assert!(loss.contains("the header was never written"), "{loss}");
    let mut damaged = whole;
    damaged[40..48].fill(0xff);
    let [loss] = &save(&damaged).losses[..] else { panic!("one loss") };
    assert!(loss.contains("the header is damaged"), "{loss}");
}

#[test]
fn a_repeat_without_a_whole_entry_leaves_no_trace() {
    let records = [sample(1, 0), head(2, 0), vec![3]].concat();
    let bytes = [&[0; 64], &records[..]].concat();
    let saved = save(&bytes);
    assert_eq!(saved.samples, 1);
    let profile = Profile::open(Cursor::new(saved.bytes)).expect("sound");
    assert_eq!(profile.contents().header.threads, 1);
    assert_eq!(profile.contents().header.strings_at, 64 + sample(1, 0).len() as u64);
}

/// Bytes of tables may look like records. Then the records end before the last that was read.
#[test]
fn tables_that_look_like_records_are_found() {
    let records = [sample(1, 0), sample(1, 1), sample(1, 0)].concat();
    // With its length before it, this is a REPEAT of one entry.
    let strings: [&[u8]; 2] = [b"thread5\x00\x00\x00\x00\x00\x01\x05\x01", b"f"];
    let bytes = headless(&records, &strings, &[(0, 1), (1, 0)]);
    let saved = save(&bytes);
    assert_eq!(saved.samples, 3);
    let profile = Profile::open(Cursor::new(saved.bytes)).expect("sound");
    let tables = &profile.contents().tables;
    assert_eq!(tables.strings.get(0), Some(strings[0]));
    assert_eq!(tables.frames.len(), 2);
}

#[test]
fn tables_are_those_that_reach_to_the_footer() {
    let records = [sample(1, 0), sample(1, 1)].concat();
    let bytes = headless(&records, &[b"file.py", b"f"], &[(0, 1), (1, 0)]);
    let saved = save(&bytes);
    let profile = Profile::open(Cursor::new(saved.bytes)).expect("sound");
    assert_eq!(profile.contents().tables.strings.get(0), Some(&b"file.py"[..]));
    // Where more stands behind them, they are not the profile's.
    let footer_at = bytes.len() - 32;
    let mut longer = [&bytes[..footer_at], b"12345678", &bytes[footer_at..]].concat();
    let size = longer.len() as u64;
    longer[footer_at + 16..footer_at + 24].copy_from_slice(&size.to_le_bytes());
    let losses = save(&longer).losses;
    assert!(losses.iter().any(|loss| loss.contains("were never written")), "{losses:?}");
}

/// Nothing is lost where the footer can be made again, so the result is the file as it was.
#[test]
fn a_footer_that_is_torn_off_is_made_again_byte_for_byte() {
    for file in ["malformed/00_good_plain.bin", "cpython/stats_full.bin", "cpython/wall_all_100hz_none.bin"] {
        let whole = read(file);
        for cut in [1, 8, 31, 32] {
            let saved = save(&whole[..whole.len() - cut]);
            assert!(saved.bytes == whole, "{file} without {cut} bytes");
            assert!(saved.losses.is_empty(), "{file}: {:?}", saved.losses);
        }
    }
}

#[test]
fn samples_behind_a_broken_record_are_counted_as_lost() {
    let mut bytes = read("cpython/wall_all_100hz_none.bin");
    let profile = Profile::open(Cursor::new(bytes.clone())).expect("sound");
    let (declared, end) = (profile.contents().header.samples, profile.contents().header.strings_at as usize);
    bytes[end / 2..end].fill(0xff);
    let saved = save(&bytes);
    assert!(saved.samples > 0 && saved.samples < declared);
    let missing = declared - saved.samples;
    let told = format!("{missing} of the samples that the header declares are lost");
    assert!(saved.losses.contains(&told), "{:?}", saved.losses);
    assert!(saved.losses.iter().any(|loss| loss.starts_with("the records break off after")));
}

#[test]
fn a_chunk_or_a_profile_with_the_highest_byte_first_becomes_no_chunk() {
    let info = ChunkInfo { run_id: "r".to_string(), ..ChunkInfo::default() };
    let refused = |bytes: Vec<u8>| -> Error {
        let profile = Profile::open(Cursor::new(bytes)).expect("sound");
        profile.to_chunk(&info).expect_err("no chunk")
    };
    for bytes in [chunk("r", 0), read("legacy/new_bigendian_none.bin")] {
        let error = refused(bytes).to_string();
        assert_eq!(error, "only a little-endian profile of version 1 becomes a chunk");
    }
}

/// Whatever its tables hold, also the bytes of a whole chunk.
#[test]
fn a_sound_profile_of_version_1_is_one_file() {
    use tachyon_jsonl::format::{Framing, Packing, Sequence, Writer};
    use tachyon_jsonl::model::RunFacts;
    let mut writer =
        Writer::new(Cursor::new(Vec::new()), RunFacts::default(), Packing::None, 1).expect("memory");
    writer.string(&chunk("r", 0));
    let bytes = writer.finish(0, None).expect("memory").into_inner();
    let sequence = Sequence::open(&mut Cursor::new(&bytes)).expect("memory");
    assert_eq!((sequence.framing(), sequence.files_left()), (Framing::Files, 1));
    // The same behind another version's magic number is a chunk between things that are none.
    let mut other = bytes;
    other[4] = 3;
    let sequence = Sequence::open(&mut Cursor::new(&other)).expect("memory");
    assert_eq!((sequence.framing(), sequence.files_left()), (Framing::Chunks, 0));
    let two = [read("cpython/tiny_script_none.bin"), read("cpython/unicode_1k_none.bin")].concat();
    assert_eq!(Sequence::open(&mut Cursor::new(&two)).expect("memory").files_left(), 2);
}

/// A sparse file: bytes at the two ends of a hole, which takes no memory. Counts the bytes that are read.
struct Sparse {
    start: Vec<u8>,
    hole: u64,
    end: Vec<u8>,
    at: u64,
    read: u64,
}

impl Sparse {
    fn size(&self) -> u64 {
        (self.start.len() + self.end.len()) as u64 + self.hole
    }
}

impl Read for Sparse {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (hole_at, end_at) = (self.start.len() as u64, self.start.len() as u64 + self.hole);
        let (from, is_hole) = match self.at {
            at if at < hole_at => (&self.start[at as usize..], false),
            at if at < end_at => (&[][..], true),
            at => (self.end.get((at - end_at) as usize..).unwrap_or_default(), false),
        };
        let left = if is_hole { end_at - self.at } else { from.len() as u64 };
        let count = left.min(buffer.len() as u64) as usize;
        if is_hole {
            buffer[..count].fill(0);
        } else {
            buffer[..count].copy_from_slice(&from[..count]);
        }
        self.at += count as u64;
        self.read += count as u64;
        Ok(count)
    }
}

impl Seek for Sparse {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::End(by) => self.size().saturating_add_signed(by),
            SeekFrom::Current(by) => self.at.saturating_add_signed(by),
        };
        Ok(self.at)
    }
}

/// What is zero is neither a record nor a name, and nothing walks through it record by record.
#[test]
fn a_hole_ends_the_records_and_is_read_a_few_times_at_most() {
    const HOLE: u64 = 96 << 20;
    let whole = read("cpython/wall_all_100hz_none.bin");
    let strings_at = u64::from_le_bytes(whole[40..48].try_into().expect("eight bytes"));
    let frames_at = u64::from_le_bytes(whole[48..56].try_into().expect("eight bytes"));
    let at = 8192;
    for (moved, has_header) in [(HOLE, true), (0, true), (0, false)] {
        let mut bytes = whole.clone();
        bytes[40..48].copy_from_slice(&(strings_at + moved).to_le_bytes());
        bytes[48..56].copy_from_slice(&(frames_at + moved).to_le_bytes());
        if !has_header {
            bytes[..64].fill(0);
        }
        // As if the file ended there: no sample of the hole is one.
        let expected = save(&bytes[..at]).samples;
        let (start, end) = (bytes[..at].to_vec(), bytes[at..].to_vec());
        let mut sparse = Sparse { start, hole: HOLE, end, at: 0, read: 0 };
        let recovered = recover(&mut sparse).expect("something is saved");
        let losses: Vec<String> = recovered.losses.iter().map(ToString::to_string).collect();
        assert_eq!(recovered.samples, expected, "{losses:?}");
        assert!(losses.iter().any(|loss| loss.starts_with("the records break off after")), "{losses:?}");
        let has_names = moved > 0;
        let is_said = losses.iter().any(|loss| loss.contains("they are called <lost frame N>"));
        assert_eq!(is_said, !has_names, "{losses:?}");
        assert!(sparse.read < 4 * sparse.size(), "{} bytes of {}", sparse.read, sparse.size());
    }
}
