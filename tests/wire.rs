//! The bytes on the wire, pinned. A change in `snapshots/wire-*` is a change of the protocol: it gets a
//! commit of its own, with `schema/` and its changelog.

mod common;

use common::{data, run, stream_of};

/// Pins a whole stream, byte by byte.
macro_rules! pin {
    ($name:literal, $stream:expr) => {
        insta::with_settings!({ snapshot_path => "../snapshots", prepend_module_to_snapshot => false }, {
            insta::assert_binary_snapshot!(concat!("wire-", $name, ".jsonl"), $stream);
        });
    };
}

#[test]
fn a_small_recording() {
    pin!("small", stream_of(&data("cpython/tiny_script_none.bin"), &[]));
}

#[test]
fn windows_heartbeats_and_batches() {
    let options = ["--stream-types", "raw,agg:200ms,heartbeat:500ms,loss", "--flush", "interval:400ms"];
    pin!("windows", stream_of(&data("cpython/tiny_script_none.bin"), &options));
}

#[test]
fn what_the_user_adds() {
    let options = [
        "--label",
        "host=web1",
        "--label",
        "commit=3f2a",
        "--wall-start",
        "2026-09-21T14:13:20.5Z",
        "--stream-types",
        "meta,heartbeat:1s",
    ];
    pin!("labels", stream_of(&data("cpython/tiny_script_none.bin"), &options));
}

#[test]
fn empty_stacks() {
    pin!("empty-stacks", stream_of(&data("cpython/edge_empty_stacks.bin"), &[]));
}

#[test]
fn clocks_that_go_back() {
    pin!("clocks", stream_of(&data("cpython/edge_timestamps.bin"), &["--stream-types", "raw"]));
}

#[test]
fn names_that_are_not_utf8() {
    pin!("base64", stream_of(&data("malformed/string_bad_utf8.bin"), &["--stream-types", "raw"]));
}

#[test]
fn measured_losses_and_the_depth_limit() {
    pin!("losses", stream_of(&data("cpython/stats_full.bin"), &[]));
    pin!("depth", stream_of(&data("malformed/full_depth_256.bin"), &["--stream-types", "loss"]));
}

#[test]
fn no_samples() {
    pin!("no-samples", stream_of(&data("cpython/edge_zero_samples_none.bin"), &[]));
}

#[test]
fn damage_stands_in_the_stream() {
    pin!("damaged", stream_of(&data("malformed/encoding_255.bin"), &[]));
    pin!("count", stream_of(&data("cases/count_low.bin"), &[]));
}

#[test]
fn lines_are_split_at_the_limit() {
    pin!(
        "split",
        stream_of(&data("cpython/wall_all_100hz_none.bin"), &["--max-line", "8k", "--flush", "samples:1000"])
    );
}

#[test]
fn joined_files_are_runs_of_their_own() {
    let one = std::fs::read(data("malformed/00_good_plain.bin")).expect("readable");
    let two = std::fs::read(data("malformed/00_good_zstd.bin")).expect("readable");
    let ran = run(&["from-bin", "-q"], &[one, two].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    pin!("joined", ran.stdout);
}
