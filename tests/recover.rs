//! What is saved of torn and damaged profiles.

mod common;

use std::collections::BTreeMap;
use std::io::{Cursor, Read};

use common::{Sample, Thread, answer, consumer, data, profile_of, profiles, replayed, run, stream_of};
use tachyon_jsonl::format::{Framing, Part, Recovered, Sequence, recover};

/// The recovered bytes, their samples and losses; `None` where there is nothing to save.
fn recovered(bytes: &[u8]) -> Option<(Vec<u8>, u64, Vec<String>)> {
    let Recovered { mut copy, samples, losses, .. } = recover(&mut Cursor::new(bytes)).ok()?;
    let mut whole = Vec::new();
    copy.read_to_end(&mut whole).expect("memory has no errors");
    Some((whole, samples, losses.iter().map(ToString::to_string).collect()))
}

/// Samples of a file in which nothing may be wrong.
fn samples_of(bytes: &[u8]) -> u64 {
    let mut source = Cursor::new(bytes);
    let mut sequence = Sequence::open(&mut source).expect("readable");
    let mut samples = 0;
    while let Some(part) = sequence.next(&mut source).expect("readable") {
        let Part::Profile(profile) = part else { panic!("something is lost") };
        assert!(profile.contents().faults.is_empty());
        samples += profile.contents().scan.samples;
    }
    samples
}

fn threads_of(bytes: &[u8]) -> BTreeMap<Thread, Vec<Sample>> {
    let ran = run(&["from-bin", "-q"], bytes);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    consumer::read(&ran.stdout).threads
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(data(name)).expect("readable")
}

fn small_chunks(packing: &str) -> Vec<u8> {
    let stream = stream_of(&data("malformed/00_good_plain.bin"), &[]);
    profile_of(&stream, &["--layout", "v2", "--flush", "samples:3", "--compression", packing])
}

/// `what` for every piece of work, on all processors.
fn in_parallel(work: std::ops::Range<usize>, what: impl Fn(usize) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(work.start);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if number >= work.end {
                        break;
                    }
                    what(number);
                }
            });
        }
    });
}

#[test]
fn cut_at_any_byte_chunks_give_all_that_is_whole() {
    for (whole, has_ends) in
        [(read("malformed/v2_good.bin"), false), (small_chunks("none"), true), (small_chunks("zstd"), true)]
    {
        let mut before = 0;
        for cut in 0..=whole.len() {
            let Some((bytes, samples, losses)) = recovered(&whole[..cut]) else {
                assert_eq!(before, 0, "nothing at {cut}");
                continue;
            };
            assert!(samples >= before, "{samples} samples at {cut}, {before} before");
            assert_eq!(samples_of(&bytes), samples);
            assert!(whole.starts_with(&bytes));
            // Between two chunks the cut shows by the flags alone.
            assert_eq!(losses.is_empty(), bytes.len() == cut && (!has_ends || cut == whole.len()));
            before = samples;
        }
        assert_eq!(before, samples_of(&whole));
    }
}

#[test]
fn with_any_bit_flipped_chunks_give_a_sound_file() {
    for (whole, has_checksum) in
        [(read("malformed/v2_good.bin"), false), (small_chunks("none"), true), (small_chunks("zstd"), true)]
    {
        let all = samples_of(&whole);
        in_parallel(0..8 * whole.len(), |bit| {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (saved, samples, losses) = recovered(&bytes).expect("the other chunks are whole");
            assert_eq!(samples_of(&saved), samples);
            // One chunk at most is lost, and with a checksum just that one.
            assert!(samples >= all - 8 && samples <= all, "bit {bit}: {samples} of {all}");
            if has_checksum {
                assert_eq!(losses.len(), 1, "bit {bit}: {losses:?}");
            }
        });
    }
}

/// Recovery goes on behind a bad chunk.
/// <https://github.com/foxglove/mcap/issues/1390>
#[test]
fn one_bad_chunk_costs_one_chunk() {
    let stream = stream_of(&data("cpython/wall_all_100hz_none.bin"), &[]);
    let whole = profile_of(&stream, &["--layout", "v2", "--flush", "samples:200"]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let (chunks, _) = common::rfc::read(&whole);
    assert!(chunks.len() >= 9);
    let third = chunks[0].size + chunks[1].size;
    let mut damaged = whole.clone();
    damaged[third + 100] ^= 0xff;
    std::fs::write(path("in.bin"), &damaged).expect("writable");
    let ran = run(&["recover", &path("in.bin"), "-o", &path("out.bin")], b"");
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains(&format!("bytes {third} to ")), "{}", ran.stderr);
    let saved = std::fs::read(path("out.bin")).expect("written");
    assert_eq!(saved, [&whole[..third], &whole[third + chunks[2].size..]].concat());
    assert_eq!(run(&["inspect", &path("out.bin")], b"").code, 0);
    // Again there is nothing to do; but what is missing is still known.
    assert_eq!(run(&["recover", &path("out.bin"), "-o", &path("again.bin")], b"").code, 0);
    assert_eq!(run(&["from-bin", "-q", &path("out.bin")], b"").code, 3);
    // Never over the input.
    let ran = run(&["recover", &path("in.bin"), "-o", &path("in.bin")], b"");
    assert_eq!((ran.code, std::fs::read(path("in.bin")).expect("there")), (2, damaged));
}

/// The names were never written, the rest is there.
/// <https://github.com/python/cpython/issues/151292>
#[test]
fn a_killed_recording_gives_times_threads_and_frame_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.bin");
    let killed = data("cases/killed.bin");
    let ran = run(&["recover", killed.to_str().expect("UTF-8"), "-o", out.to_str().expect("UTF-8")], b"");
    assert_eq!(ran.code, 3);
    assert!(ran.stderr.contains("the names of 2 of 2 frames were never written"), "{}", ran.stderr);
    assert!(ran.stderr.contains("4000 samples in 1 profile are saved"), "{}", ran.stderr);
    let bytes = std::fs::read(&out).expect("written");
    assert_eq!(samples_of(&bytes), 4000);
    let threads = threads_of(&bytes);
    assert!(threads.values().flatten().all(|(_, _, stack)| stack.contains("<lost frame ")));

    let empty = run(&["recover"], b"");
    assert_eq!((empty.code, empty.stdout.len()), (1, 0));
    assert!(empty.stderr.contains("the recording never flushed"), "{}", empty.stderr);
    let bare = run(&["recover"], &[0; 64]);
    assert_eq!((bare.code, bare.stdout.len()), (1, 0));
    assert!(bare.stderr.contains("never finished and holds no samples"), "{}", bare.stderr);
}

/// A recording that is killed at any byte: zeros, then records.
#[test]
fn more_of_a_killed_recording_is_never_less() {
    for file in ["malformed/00_good_plain.bin", "malformed/00_good_zstd.bin"] {
        let mut whole = read(file);
        let strings_at = u64::from_le_bytes(whole[40..48].try_into().expect("eight bytes")) as usize;
        whole[..64].fill(0);
        let mut before = 0;
        for cut in 0..=strings_at {
            let samples = recovered(&whole[..cut]).map_or(0, |(bytes, samples, losses)| {
                assert_eq!(samples_of(&bytes), samples);
                assert!(!losses.is_empty());
                samples
            });
            assert!(samples >= before, "{file}: {samples} samples at {cut}, {before} before");
            before = samples;
        }
        // The last record of the plain file ends in a zero, as room does that nobody wrote to.
        assert_eq!(before, if file.ends_with("plain.bin") { 8 } else { 9 }, "{file}");
    }
}

/// Stacks, statuses and the times between samples; not when the recording began.
fn shape(threads: &BTreeMap<Thread, Vec<Sample>>) -> Vec<(Thread, Vec<Sample>)> {
    let shape = threads.iter().map(|(thread, samples)| {
        let first = samples.first().map_or(0, |sample| sample.0);
        let samples = samples.iter().map(|(time, status, stack)| (time - first, *status, stack.clone()));
        (*thread, samples.collect())
    });
    shape.collect()
}

/// Whatever is wrong with the header, the footer or the ends of the tables, the samples are all there.
#[test]
fn a_header_or_a_footer_is_made_again() {
    for good in ["malformed/00_good_plain.bin", "malformed/00_good_zstd.bin", "malformed/00_good_stats.bin"] {
        if !data(good).exists() {
            continue;
        }
        let whole = read(good);
        let expected = threads_of(&whole);
        let zero = |range: std::ops::Range<usize>| {
            let mut bytes = whole.clone();
            bytes[range].fill(0);
            bytes
        };
        let end = whole.len();
        for broken in [zero(0..64), zero(0..4), zero(4..8), zero(end - 32..end), zero(end - 24..end - 16)] {
            let (bytes, samples, _) = recovered(&broken).expect("something is saved");
            assert_eq!(samples, 9);
            assert_eq!(shape(&threads_of(&bytes)), shape(&expected), "{good}");
        }
        for cut in [1, 10, 31, 32] {
            let (bytes, ..) = recovered(&whole[..end - cut]).expect("something is saved");
            assert_eq!(threads_of(&bytes), expected, "{good} without {cut} bytes");
        }
        let longer = [whole.as_slice(), &[0x55; 77]].concat();
        let (bytes, ..) = recovered(&longer).expect("something is saved");
        assert_eq!(threads_of(&bytes), expected, "{good} with 77 bytes more");
    }
}

#[test]
fn a_good_body_under_a_zero_header_keeps_its_names() {
    let path = data("malformed/header_zero_all_else_good.bin");
    let expected =
        replayed(&answer(&data("malformed/00_good_plain.bin"), "samples.jsonl").expect("an answer"));
    let (bytes, samples, losses) = recovered(&std::fs::read(path).expect("readable")).expect("saved");
    assert_eq!((samples, losses.len()), (9, 1), "{losses:?}");
    assert_eq!(shape(&threads_of(&bytes)), shape(&expected));
}

/// Real recordings, so that the tables are found behind real records.
#[test]
fn recordings_under_a_zero_header_keep_their_names() {
    for file in ["wall_all_100hz_none", "opcodes_main_2k_none", "unicode_1k_none", "wall_main_1k_zstd"] {
        let path = data(&format!("cpython/{file}.bin"));
        let mut bytes = std::fs::read(&path).expect("readable");
        let expected = threads_of(&bytes);
        bytes[..64].fill(0);
        let (bytes, _, losses) = recovered(&bytes).expect("saved");
        assert_eq!(losses.len(), 1, "{file}: {losses:?}");
        assert_eq!(shape(&threads_of(&bytes)), shape(&expected), "{file}");
    }
}

/// Of every broken file there is: a sound one, or an error.
#[test]
fn what_is_recovered_is_always_sound() {
    let broken = ["malformed", "legacy", "cases", "cpython"].map(|folder| profiles(folder, &[""])).concat();
    let mut saved = 0;
    for path in broken {
        let bytes = std::fs::read(&path).expect("readable");
        if let Some((bytes, samples, _)) = recovered(&bytes) {
            assert_eq!(samples_of(&bytes), samples, "{}", path.display());
            saved += 1;
        }
    }
    assert!(saved > 300, "{saved}");
}

#[test]
fn sound_files_are_copied_as_they_are() {
    for file in
        ["cpython/wall_all_100hz_none.bin", "legacy/v2_bigendian_3_none.bin", "malformed/extra_twice.bin"]
    {
        let bytes = read(file);
        let (copy, _, losses) = recovered(&bytes).expect("sound");
        assert!(copy == bytes && losses.is_empty(), "{file}");
    }
}

#[test]
fn any_change_of_a_byte_is_survived() {
    for file in ["malformed/00_good_plain.bin", "malformed/00_good_zstd.bin"] {
        let whole = read(file);
        in_parallel(0..whole.len(), |at| {
            for change in [0x01, 0x10, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                if let Some((bytes, samples, _)) = recovered(&bytes) {
                    assert_eq!(samples_of(&bytes), samples, "byte {at}");
                }
            }
        });
    }
}

#[test]
fn framed_profiles_are_saved_with_their_lengths() {
    let one = read("cpython/tiny_script_none.bin");
    let frame = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let torn = [frame(&one), frame(&one), frame(&one)[..90].to_vec()].concat();
    let recovered = recover(&mut Cursor::new(&torn)).expect("saved");
    assert_eq!((recovered.framing, recovered.parts), (Framing::Lengths, 2));
    assert_eq!(recovered.losses.len(), 1);
}

/// What is not in the result is told, also where all samples are.
#[test]
fn lost_statistics_and_settings_are_told() {
    let whole = read("cpython/stats_full.bin");
    for cut in [33, 40] {
        let (_, samples, losses) = recovered(&whole[..whole.len() - cut]).expect("saved");
        assert_eq!(samples, 1);
        assert!(losses.iter().any(|loss| loss.contains("what the profiler measured")), "{losses:?}");
    }
    for file in ["malformed/config_mode_6.bin", "malformed/config_all_ones.bin"] {
        if data(file).exists() {
            let (.., losses) = recovered(&read(file)).expect("saved");
            assert!(losses.iter().any(|loss| loss.contains("the mode is lost")), "{file}: {losses:?}");
        }
    }
}

/// Times between samples, statuses and depths of each thread.
fn outline(threads: &BTreeMap<Thread, Vec<Sample>>) -> BTreeMap<Thread, Vec<(u64, u64, usize)>> {
    let first = threads.values().filter_map(|samples| samples.first()).map(|sample| sample.0).min();
    let sample = |(time, status, stack): &Sample| {
        let frames = serde_json::Deserializer::from_str(stack).into_iter::<serde_json::Value>();
        (time - first.unwrap_or(0), *status, frames.count())
    };
    threads.iter().map(|(thread, samples)| (*thread, samples.iter().map(sample).collect())).collect()
}

/// The same of a sound profile, read in this process.
fn outline_of(bytes: &[u8]) -> BTreeMap<Thread, Vec<(u64, u64, usize)>> {
    use tachyon_jsonl::convert::{StreamOptions, to_stream};
    let options = StreamOptions::new("r").expect("an id").types("raw".parse().expect("types"));
    let mut profile = tachyon_jsonl::format::Profile::open(Cursor::new(bytes)).expect("sound");
    let mut stream = Vec::new();
    to_stream(&mut profile, &options, &mut stream).expect("memory has no errors");
    outline(&consumer::read(&stream).threads)
}

/// Nothing but the ids of threads shows the byte order where the header was never written.
#[test]
fn threads_keep_their_ids_under_a_zero_header_of_either_byte_order() {
    for name in ["legacy/new_bigendian_none.bin", "cpython/wall_all_100hz_none.bin"] {
        let mut bytes = read(name);
        let whole = outline_of(&bytes);
        bytes[..64].fill(0);
        let (saved, ..) = recovered(&bytes).expect(name);
        assert_eq!(outline_of(&saved), whole, "{name}");
    }
}

/// What CPython's reader refuses is written anew, although ours passes over it.
#[test]
fn a_profile_that_only_cpython_refuses_is_not_copied() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/recover/statistics_of_a_wrong_size.bin");
    let bytes = std::fs::read(path).expect("readable");
    let (saved, samples, _) = recovered(&bytes).expect("a sample");
    assert_eq!((samples, samples_of(&saved)), (1, 1));
    let profile = tachyon_jsonl::format::Profile::open(Cursor::new(&saved)).expect("sound");
    assert!(profile.contents().warnings.is_empty(), "{:?}", profile.contents().warnings);
}

/// A4: whatever a crash leaves of a profile, and whatever zeros a file system puts after it.
#[test]
fn nothing_is_recovered_that_was_not_recorded() {
    let small = stream_of(&data("cases/small_recording.bin"), &[]);
    let files = [
        (read("malformed/00_good_plain.bin"), 1),
        (read("malformed/00_good_zstd.bin"), 1),
        (read("cases/small_recording.bin"), 97),
        (profile_of(&small, &["--compression", "none"]), 193),
    ];
    for (whole, step) in &files {
        let truth = outline_of(whole);
        for has_header in [true, false] {
            let mut start = whole.clone();
            if !has_header {
                start[..64].fill(0);
            }
            in_parallel(0..(whole.len() - 64) / step, |number| {
                let cut = 65 + number * step;
                for zeros in [0, 1, 2, 3, 7, 13, 14, 64, 4096] {
                    let bytes = [&start[..cut], &vec![0; zeros]].concat();
                    let Some((saved, ..)) = recovered(&bytes) else { continue };
                    for (thread, samples) in outline_of(&saved) {
                        let place = format!("byte {cut}, {zeros} zeros, header {has_header}, {thread:?}");
                        let was = truth.get(&thread).unwrap_or_else(|| panic!("no such thread: {place}"));
                        assert!(was.starts_with(&samples), "{place}: {samples:?} of {was:?}");
                    }
                }
            });
        }
    }
}

/// A4, as it was met: the last record ran into a page that was never written.
#[test]
fn a_page_of_zeros_after_a_killed_recording_is_no_sample() {
    let killed = read("cases/killed_cut_plus_zero_page.bin");
    let end = killed.iter().rposition(|byte| *byte != 0).expect("not only zeros") + 1;
    let (saved, samples, _) = recovered(&killed).expect("saved");
    assert_eq!((samples, samples_of(&saved)), (135, 135));
    assert_eq!(recovered(&killed[..end]).expect("saved").1, 135);
}

/// A5: what something else stands in front of, or was taken for text, has no samples at their places.
#[test]
fn a_profile_whose_bytes_moved_is_named_and_nothing_is_saved_of_it() {
    let lines = |bytes: &[u8]| -> Vec<u8> {
        let feed = |byte: &u8| if *byte == b'\n' { vec![b'\r', b'\n'] } else { vec![*byte] };
        bytes.iter().flat_map(feed).collect()
    };
    for file in ["cases/small_recording.bin", "malformed/00_good_plain.bin", "cases/killed.bin"] {
        let whole = read(file);
        let mut moved = vec![
            ([b"\xef\xbb\xbf", &whole[..]].concat(), "byte order mark"),
            ([&[b'x'; 11][..], &whole].concat(), "begins at byte 11"),
            (whole[1..].to_vec(), "start of a profile is missing"),
            (whole[7..].to_vec(), "start of a profile is missing"),
            (String::from_utf8_lossy(&whole).into_owned().into_bytes(), "as if it were text"),
            (
                whole.iter().map(|byte| char::from(*byte)).collect::<String>().into_bytes(),
                "as if it were text",
            ),
        ];
        if lines(&whole) != whole {
            moved.push((lines(&whole), "a carriage return and a line feed"));
        }
        for (bytes, named) in moved {
            if whole.starts_with(&[0; 64]) && !named.contains("text") {
                continue;
            }
            let ran = run(&["recover"], &bytes);
            assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{file} {named}: {}", ran.stderr);
            assert!(ran.stderr.contains(named), "{file} {named}: {}", ran.stderr);
        }
    }
}
