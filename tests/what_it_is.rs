//! What an input is, by its first bytes: each command names what it does not take, and reads what the usual
//! tools unpack.

mod common;

use std::io::Write;

use common::{data, run, stream_of};

/// Commands that take streams.
const OF_STREAMS: [&str; 3] = ["to-bin", "check", "upgrade"];
/// Commands that take profiles.
const OF_PROFILES: [&str; 3] = ["from-bin", "inspect", "recover"];

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).expect("memory takes all");
    packed.finish().expect("memory takes all")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("memory takes all")
}

#[test]
fn every_command_names_what_it_does_not_take() {
    let utf_16: Vec<u8> = "\u{feff}{\"type\":".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let kinds: [(&[u8], &str); 9] = [
        (&utf_16, "a text in UTF-16"),
        (b"\xfd7zXZ\0\0\x04", "an xz file"),
        (b"BZh91AY&SY", "a bzip2 file"),
        (b"\x04\x22\x4d\x18\x64\x40\xa7", "an lz4 file"),
        (b"PK\x03\x04\x14\0\0\0", "a zip archive"),
        (b"\x7fELF\x02\x01\x01\0", "an ELF program"),
        (b"\x80\x04\x95\x0a\0\0\0\0", "a Python pickle"),
        (b"PERFILE2\x68\0\0\0", "perf.data"),
        (b"{(\xda\x01~\xe9\0\0\0\0", "a pstats file"),
    ];
    for (bytes, name) in kinds {
        for command in OF_STREAMS.into_iter().chain(OF_PROFILES) {
            let ran = run(&[command], bytes);
            assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{command}, {name}: {}", ran.stderr);
            assert!(ran.stderr.contains(name), "{command}: {}", ran.stderr);
        }
    }
    let profile = std::fs::read(data("cpython/tiny_script_none.bin")).expect("readable");
    for (packed, name) in [(zstd(&profile), "a zstd file"), (gzip(&profile), "a gzip file")] {
        for command in OF_PROFILES {
            let ran = run(&[command], &packed);
            assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{command}, {name}: {}", ran.stderr);
            assert!(ran.stderr.contains(name), "{command}: {}", ran.stderr);
        }
    }
    for command in OF_STREAMS {
        for (bytes, name) in [
            (profile.clone(), "a binary profile"),
            (zstd(&profile), "a zstd file without a stream in it"),
            (gzip(&profile), "a gzip file without a stream in it"),
            (vec![0; 4096], "zeros"),
            (Vec::new(), "an empty input"),
            (b"a,b\n1,2\n".to_vec(), "a text file"),
            (b"[1,2]\n".to_vec(), "JSON, but not one object per line"),
            (b"\n\n".to_vec(), "blank lines"),
            ((1..=255).collect(), "binary data"),
            ([&b"\xef\xbb\xbf"[..], &profile].concat(), "a profile after a byte order mark"),
        ] {
            let ran = run(&[command], &bytes);
            assert_eq!(ran.code, 1, "{command}, {name}: {}", ran.stderr);
            assert!(ran.stdout.is_empty() || command == "check", "{command}, {name}");
            assert!(ran.stderr.contains(name), "{command}: {}", ran.stderr);
        }
    }
}

/// A text has no profile's bytes that could have been changed, whatever its line ends and characters.
#[test]
fn a_text_is_no_profile_that_was_changed_as_text() {
    let stream = String::from_utf8(stream_of(&data("cpython/tiny_script_none.bin"), &[])).expect("UTF-8");
    let crlf = stream.replace('\n', "\r\n");
    let array = format!("[\r\n{}]", "  1,\r\n".repeat(99));
    let kinds = [
        (crlf.clone(), "JSON, not a profile"),
        (format!("\r\n\r\n{crlf}"), "JSON, not a profile"),
        (format!("{crlf}\0\0\0"), "JSON, not a profile"),
        (array, "JSON, not a profile"),
        ("a,b\r\n".repeat(99), "a text file, not a profile"),
        ("Größe\n".repeat(99), "a text file, not a profile"),
        ("\u{fffd}\n".repeat(99), "a text file, not a profile"),
        ("\x1b[1mbold\x1b[0m\r\n".repeat(99), "a text file, not a profile"),
        ("tid:1;f:g:1 1\r\n".repeat(99), "collapsed stacks"),
    ];
    for (text, name) in kinds {
        for command in ["from-bin", "recover"] {
            let ran = run(&[command], text.as_bytes());
            assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{command}, {name}: {}", ran.stderr);
            assert!(ran.stderr.contains(name), "{command}: {}", ran.stderr);
        }
    }
    let hinted = run(&["from-bin"], crlf.as_bytes());
    assert!(hinted.stderr.contains("a stream is read by to-bin"), "{}", hinted.stderr);
}

#[test]
fn marks_before_a_stream_are_passed_over_or_named() {
    let stream = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let lines = stream.split_inclusive(|byte| *byte == b'\n');
    let separated =
        |mark: &'static [u8]| lines.clone().flat_map(|line| [mark, line].concat()).collect::<Vec<u8>>();
    let plain = run(&["to-bin"], &stream).stdout;
    for (marked, name) in [
        ([b"\xef\xbb\xbf", &stream[..]].concat(), "a byte order mark"),
        ([b"\xff\xfe", &stream[..]].concat(), "a byte order mark"),
        ([b"\xfe\xff", &stream[..]].concat(), "a byte order mark"),
        ([b"\xef\xbb\xbf", &separated(b"\x1e")[..]].concat(), "a byte order mark"),
        (separated(b"\x1e"), "a record separator"),
        (separated(b"\x1e\x1e"), "a record separator"),
    ] {
        let made = run(&["to-bin"], &marked);
        assert!(made.code == 0 && made.stdout == plain, "{name}: {}", made.stderr);
        assert!(made.stderr.contains(name), "{}", made.stderr);
        let inspected = run(&["inspect"], &marked);
        assert_eq!(inspected.code, 0, "{}", inspected.stderr);
        assert!(inspected.stderr.contains(name), "{}", inspected.stderr);
        assert!(String::from_utf8_lossy(&run(&["check"], &marked).stdout).contains(name));
        for command in ["from-bin", "recover"] {
            let ran = run(&[command], &marked);
            assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{command}: {}", ran.stderr);
            assert!(ran.stderr.contains(&format!("JSON after {name}")), "{command}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_profile_after_a_byte_order_mark_is_named_even_if_it_is_torn() {
    let profile = std::fs::read(data("cpython/tiny_script_none.bin")).expect("readable");
    let torn = [&[0; 64], &profile[64..]].concat();
    for mark in [&b"\xef\xbb\xbf"[..], b"\xff\xfe", b"\xfe\xff"] {
        for profile in [&profile, &torn] {
            for command in OF_STREAMS.into_iter().chain(OF_PROFILES) {
                let ran = run(&[command], &[mark, profile].concat());
                assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{command}: {}", ran.stderr);
                assert!(
                    ran.stderr.contains("a profile after a byte order mark"),
                    "{command}: {}",
                    ran.stderr
                );
            }
        }
    }
}

/// As `jq -s` makes them, in one line or in many.
#[test]
fn an_array_of_messages_has_a_hint_that_makes_lines_of_it() {
    let stream = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let messages: Vec<serde_json::Value> = serde_json::Deserializer::from_slice(&stream)
        .into_iter()
        .map(|message| message.expect("JSON"))
        .collect();
    let line = serde_json::to_vec(&messages).expect("JSON");
    let pretty = serde_json::to_vec_pretty(&messages).expect("JSON");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("array.json");
    for array in [&line, &pretty, &[b"\xef\xbb\xbf", &pretty[..]].concat()] {
        std::fs::write(&path, array).expect("writable");
        let path = path.to_str().expect("UTF-8");
        let base = data("cpython/tiny_script_none.bin");
        let diff = run(&["diff", base.to_str().expect("UTF-8"), path], b"");
        let others = OF_STREAMS.into_iter().chain(OF_PROFILES).map(|command| run(&[command, path], b""));
        for ran in others.chain([diff]) {
            assert_eq!((ran.code, ran.stdout.len()), (1, 0), "{}", ran.stderr);
            assert!(ran.stderr.contains("a JSON array"), "{}", ran.stderr);
            assert!(ran.stderr.contains("hint: jq -c '.[]' makes lines"), "{}", ran.stderr);
        }
    }
    // What no array is.
    let log = [b"[INFO] begun\n", &stream[..]].concat();
    assert_eq!(run(&["to-bin"], &log).stdout, run(&["to-bin"], &stream).stdout);
}

#[test]
fn what_zstd_and_gzip_unpack_is_read() {
    let stream = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let (first, rest) = stream.split_at(stream.len() / 3);
    let skipped = |number: u8| [&[0x50 + number, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let empty = zstd(b"");
    let packed = [
        gzip(&stream),
        [gzip(first), gzip(rest)].concat(),
        [gzip(b""), gzip(&stream)].concat(),
        [gzip(&stream), vec![0; 1]].concat(),
        [gzip(first), gzip(rest), vec![0; 100_000]].concat(),
        zstd(&stream),
        [zstd(first), skipped(15), zstd(rest), skipped(0)].concat(),
        [skipped(0), zstd(&stream)].concat(),
        [skipped(7), skipped(1), empty, zstd(first), zstd(rest)].concat(),
    ];
    let plain = run(&["to-bin"], &stream).stdout;
    for (number, packed) in packed.iter().enumerate() {
        let made = run(&["to-bin"], packed);
        assert!(made.code == 0 && made.stdout == plain, "{number}: {}", made.stderr);
        for command in ["check", "inspect"] {
            let ran = run(&[command], packed);
            assert_eq!(ran.code, 0, "{number}: {}", ran.stderr);
        }
    }
}

#[test]
fn what_zstd_and_gzip_refuse_is_no_silent_end() {
    let stream = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let cut = |packed: Vec<u8>| packed[..packed.len() - 3].to_vec();
    for packed in [
        [gzip(&stream), b"x".to_vec()].concat(),
        [gzip(&stream), vec![0; 9], b"more".to_vec()].concat(),
        cut(gzip(&stream)),
        [zstd(&stream), b"x".to_vec()].concat(),
        [zstd(&stream), vec![0; 16]].concat(),
        cut(zstd(&stream)),
    ] {
        for command in ["to-bin", "check"] {
            let ran = run(&[command], &packed);
            assert!(ran.code != 0 && !ran.stderr.is_empty(), "{command}");
        }
    }
}

#[test]
fn what_follows_packed_data_is_named_with_its_place() {
    let stream = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let (gzip, zstd) = (gzip(&stream), zstd(&stream));
    let skipped = [&zstd[..], &[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0], b"abc"].concat();
    for (packed, more, part) in [
        (&gzip, &b"x"[..], "gzip member"),
        (&gzip, b"garbage!", "gzip member"),
        (&gzip, b"\x1f garbage", "gzip member"),
        (&gzip, b"{\"type\":\"end\",\"v\":2}\n", "gzip member"),
        (&[&gzip[..], &[0; 70_000]].concat(), b"garbage!", "gzip member"),
        (&[&gzip[..], &gzip[..]].concat(), b"garbage!", "gzip member"),
        (&zstd, b"x", "zstd frame"),
        (&zstd, b"garbage!", "zstd frame"),
        (&zstd, &[0; 16], "zstd frame"),
        (&skipped, b"garbage!", "zstd frame"),
        (&[&zstd[..], &zstd[..]].concat(), b"garbage!", "zstd frame"),
    ] {
        let place =
            format!("trailing data at byte {} of the packed file, which is not a {part}", packed.len());
        for command in ["to-bin", "check", "inspect"] {
            let ran = run(&[command], &[packed, more].concat());
            assert!(ran.code != 0 && ran.stderr.contains(&place), "{command}: {}: {place}", ran.stderr);
        }
    }
}

/// zstd says what to do, and so do we.
#[test]
fn a_window_that_is_too_large_has_a_hint() {
    let stream = stream_of(&data("cpython/tiny_script_none.bin"), &[]);
    let mut packer = zstd::stream::write::Encoder::new(Vec::new(), 1).expect("an encoder");
    packer.window_log(28).expect("a window");
    packer.write_all(&stream).expect("memory takes all");
    let packed = packer.finish().expect("memory takes all");
    for command in ["to-bin", "check", "inspect", "from-bin"] {
        let ran = run(&[command], &packed);
        assert_eq!(ran.code, 1);
        assert!(ran.stderr.contains("zstd -d --long=31"), "{command}: {}", ran.stderr);
    }
}
