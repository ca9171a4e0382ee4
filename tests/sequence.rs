//! How the parts of an input are found, and what is said of bytes that are none.

mod common;

use std::io::Cursor;

use common::data;
use tachyon_jsonl::error::Position;
use tachyon_jsonl::format::{Framing, LostPart, Packing, Part, Sequence, Writer, ring_start};
use tachyon_jsonl::model::RunFacts;

/// The chunks of a file, each 302 bytes or so with 8 samples.
fn chunks() -> Vec<Vec<u8>> {
    let bytes = std::fs::read(data("malformed/v2_good.bin")).expect("readable");
    let mut chunks = Vec::new();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let size = u64::from_le_bytes(rest[56..64].try_into().expect("eight bytes")) as usize;
        chunks.push(rest[..size].to_vec());
        rest = &rest[size..];
    }
    assert_eq!(chunks.len(), 3);
    chunks
}

/// The smallest profile: a header and a footer.
fn smallest() -> Vec<u8> {
    let writer = Writer::new(Cursor::new(Vec::new()), RunFacts::default(), Packing::None, 1);
    let bytes = writer.and_then(|writer| writer.finish(0, None)).expect("memory").into_inner();
    assert_eq!(bytes.len(), 96);
    bytes
}

fn framed(profile: &[u8]) -> Vec<u8> {
    [&(profile.len() as u32).to_be_bytes()[..], profile].concat()
}

/// How many parts are sound, and what is lost.
fn parts(bytes: &[u8]) -> (usize, Vec<LostPart>) {
    let mut source = Cursor::new(bytes);
    let mut sequence = Sequence::open(&mut source).expect("memory has no errors");
    let (mut sound, mut lost) = (0, Vec::new());
    while let Some(part) = sequence.next(&mut source).expect("memory has no errors") {
        match part {
            Part::Profile(_) => sound += 1,
            Part::Lost(part) => lost.push(part),
        }
    }
    (sound, lost)
}

fn framing(bytes: &[u8]) -> Framing {
    Sequence::open(&mut Cursor::new(bytes)).expect("memory has no errors").framing()
}

/// The search reads a buffer at a time; a header may lie across the end of one.
#[test]
fn a_chunk_is_found_at_any_distance() {
    let [first, second, _] = &chunks()[..] else { unreachable!() };
    let around = |length: usize| length - 12..length + 12;
    for distance in around(64 * 1024).chain(around(2 * 64 * 1024 - 7)) {
        let bytes = [first, &vec![0xff; distance][..], second].concat();
        let (sound, lost) = parts(&bytes);
        assert_eq!((sound, lost.len()), (2, 1), "{distance} bytes between two chunks");
        assert_eq!(lost[0].bytes, distance as u64);
    }
}

#[test]
fn what_is_wrong_with_a_chunk_is_said_with_its_place() {
    let [first, second, _] = &chunks()[..] else { unreachable!() };
    let at = first.len() as u64;
    let with = |place: usize, bytes: &[u8]| {
        let mut chunk = second.clone();
        chunk[place..place + bytes.len()].copy_from_slice(bytes);
        chunk
    };
    let size_at = second.len() - 32 + 8;
    let size_at_byte = at + size_at as u64;
    for (part, place, detail) in [
        (vec![0; 64], at, "never committed"),
        (vec![0; 10], at, "never committed"),
        (second[..63].to_vec(), at, "63 bytes are too few"),
        (second[..64].to_vec(), at, "but 64 are there"),
        (with(0, b"?"), at, "the magic number is missing"),
        (with(4, &[9]), at + 4, "format version 9"),
        (with(56, &[95, 0]), at + 56, "its size as 95 bytes"),
        (with(size_at, &[1, 2]), size_at_byte, "its footer gives its size as 513 bytes"),
    ] {
        let detail = detail.replace("its footer", "the chunk's footer");
        let (sound, lost) = parts(&[&first[..], &part].concat());
        assert_eq!((sound, lost.len()), (1, 1), "{detail}");
        let LostPart { at: lost_at, bytes, error, .. } = &lost[0];
        assert_eq!((*lost_at, *bytes), (at, part.len() as u64), "{detail}");
        assert!(error.detail().contains(&detail), "{detail}: {}", error.detail());
        assert_eq!(error.position(), Some(Position::Byte(place)), "{detail}");
    }
}

/// Its header says where it ends, and there is the end of the input or another chunk: no torn end.
#[test]
fn a_chunk_with_a_damaged_footer_is_damage_and_no_torn_end() {
    let [first, second, third] = &chunks()[..] else { unreachable!() };
    let mut damaged = second.clone();
    let size_at = damaged.len() - 32 + 8;
    damaged[size_at] ^= 1;
    for bytes in [[first, &damaged[..]].concat(), [first, &damaged[..], third].concat()] {
        let (_, lost) = parts(&bytes);
        assert_eq!((lost.len(), lost[0].is_tail, lost[0].bytes), (1, false, second.len() as u64));
    }
    let (_, lost) = parts(&[first, &second[..second.len() - 1]].concat());
    assert!(lost[0].is_tail);
}

#[test]
fn a_growing_source_has_no_part_before_it_is_whole() {
    let chunks = chunks();
    let bytes = [b"junk", &chunks[0][..], &chunks[1][..100]].concat();
    let mut source = Cursor::new(&bytes);
    let mut sequence = Sequence::of_chunks();
    // What is skipped is reported only on request.
    assert!(sequence.next_committed(&mut source, false).expect("memory").is_none());
    let lost = sequence.next_committed(&mut source, true).expect("memory");
    assert!(matches!(lost, Some(Part::Lost(LostPart { at: 0, bytes: 4, .. }))));
    let part = sequence.next_committed(&mut source, false).expect("memory");
    assert!(matches!(part, Some(Part::Profile(_))));
    for search in [false, true] {
        assert!(sequence.next_committed(&mut source, search).expect("memory").is_none());
    }
    assert_eq!(sequence.position(), 4 + chunks[0].len() as u64);
}

#[test]
fn framed_profiles_are_taken_down_to_the_smallest() {
    let one = framed(&smallest());
    assert_eq!(framing(&one), Framing::Lengths);
    let (sound, lost) = parts(&[&one[..], &one].concat());
    assert_eq!((sound, lost.len()), (2, 0));
    let mut short = one.clone();
    short[3] -= 1;
    for (part, detail) in [
        (&short[..], "length is given as 95 bytes"),
        (&one[..11], "11 bytes are too few"),
        (&one[..12], "96 bytes, but 8 are there"),
        (&[0, 0, 0, 99, 1, 2, 3, 4, 5, 6, 7, 8], "no profile where a framed one should start"),
    ] {
        let (sound, lost) = parts(&[&one[..], part].concat());
        assert_eq!((sound, lost.len()), (1, 1), "{detail}");
        assert!(lost[0].error.detail().contains(detail), "{detail}: {}", lost[0].error.detail());
        assert_eq!(lost[0].bytes, part.len() as u64);
    }
}

/// Its chunks are in no order, so nobody takes it for a file of chunks.
#[test]
fn a_ring_is_no_sequence_of_chunks() {
    let ring = [&ring_start(4096)[..], &chunks().concat()].concat();
    assert_eq!(framing(&ring), Framing::Files);
    assert_eq!(framing(&ring[64..]), Framing::Chunks);
    assert_eq!(framing(&[&[0; 64], &ring[64..]].concat()), Framing::Chunks);
}
