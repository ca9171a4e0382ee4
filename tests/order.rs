//! Samples through the binary format and back, whatever their order: made-up recordings, among them
//! ones whose records are far from their time.

use std::collections::BTreeMap;
use std::io::Cursor;

use proptest::prelude::*;
use tachyon_jsonl::convert::{Flush, ProfileOptions, StreamOptions, ToBinary, to_stream};
use tachyon_jsonl::format::{Packing, Profile};
use tachyon_jsonl::model::{Cut, ThreadKey};
use tachyon_jsonl::protocol::message::{End, FrameDef, IdScope, Meta, StrDef};
use tachyon_jsonl::protocol::{Encoder, MessageType, Raw, RawColumns, RawThread, decode};

const START: u64 = 1_000_000;

/// One thread at one instant: time, thread, status, stack (innermost frame first).
type Sample = (u64, u64, u8, Vec<u32>);

/// Writes samples, already in order, as a profile, one raw message an instant.
fn record(samples: &[Sample]) -> Vec<u8> {
    let frames = samples.iter().flat_map(|sample| &sample.3).max().map_or(0, |max| max + 1);
    let mut encoder = Encoder::new("made");
    let mut text = Vec::new();
    let meta = Meta {
        samples: Some(samples.len() as u64),
        run_start_usec: Some(START),
        sample_interval_usec: Some(100),
        id_scope: IdScope::Run,
        clock: Some("monotonic".to_string()),
        messages: u64::MAX,
        ..Meta::default()
    };
    encoder.message(&mut text, MessageType::Meta, &meta);
    let names: Vec<u32> = (0..=frames).collect();
    let str_def = StrDef {
        str_id: names.clone(),
        value: names.iter().map(|id| format!("f{id}")).collect(),
        ..StrDef::default()
    };
    encoder.message(&mut text, MessageType::StrDef, &str_def);
    let ids: Vec<u32> = (0..frames).collect();
    let frame_def = FrameDef {
        frame_id: ids.clone(),
        path_str_id: vec![frames; ids.len()],
        func_str_id: ids.clone(),
        line: Some(ids.iter().map(|id| Some(*id as i32)).collect()),
        ..FrameDef::default()
    };
    encoder.message(&mut text, MessageType::FrameDef, &frame_def);
    for instant in samples.chunk_by(|a, b| a.0 == b.0 && a.1 < b.1) {
        let mut nodes: Vec<u32> = Vec::new();
        let mut parents: Vec<u32> = Vec::new();
        let mut rows = Vec::new();
        for (time, thread, status, stack) in instant {
            let mut node = u32::MAX;
            for frame in stack.iter().rev() {
                let known = (0..nodes.len()).find(|at| nodes[*at] == *frame && parents[*at] == node);
                node = known.unwrap_or_else(|| {
                    nodes.push(*frame);
                    parents.push(node);
                    nodes.len() - 1
                }) as u32;
            }
            rows.push((*thread, [*time], [*status], [(node, 1usize)]));
        }
        let threads: Vec<RawThread<'_>> = rows
            .iter()
            .map(|(thread_id, times, status, stacks)| RawThread {
                thread: ThreadKey { interpreter_id: 0, thread_id: *thread_id },
                times,
                status,
                stacks,
            })
            .collect();
        let raw = Raw {
            batch: 0,
            start_us: instant[0].0,
            node_frame: &nodes,
            node_parent: &parents,
            threads: &threads,
        };
        encoder.raw(&mut text, &raw);
    }
    let end = End { complete: true, samples: Some(samples.len() as u64), ..End::default() };
    encoder.message(&mut text, MessageType::End, &end);
    let (bytes, losses) = to_binary(&mut text);
    assert!(losses.iter().all(|loss| loss.contains("messages of batch 0 are missing")), "{losses:?}");
    bytes
}

fn to_binary(text: &mut [u8]) -> (Vec<u8>, Vec<String>) {
    let mut to_binary =
        ToBinary::new(Cursor::new(Vec::new()), ProfileOptions::default().packing(Packing::None));
    for (number, line) in (1..).zip(text.split_inclusive_mut(|byte| *byte == b'\n')) {
        to_binary.line(number, line).expect("a Vec takes all");
    }
    let outcome = to_binary.finish().expect("a profile");
    (outcome.sink.into_inner(), outcome.losses.iter().map(ToString::to_string).collect())
}

fn stream(bytes: &[u8], flush: Flush, max_line: usize) -> Vec<u8> {
    let options = StreamOptions::new("r").expect("an id").flush(flush).max_line(max_line).expect("a limit");
    let mut profile = Profile::open(Cursor::new(bytes)).expect("a profile");
    assert!(profile.contents().faults.is_empty(), "{:?}", profile.contents().faults);
    let mut text = Vec::new();
    to_stream(&mut profile, &options, &mut text).expect("a Vec takes all");
    text
}

/// What a stream holds, by thread; frames by name, innermost first. Checks that keys never fall from
/// message to message.
fn samples_of(text: &[u8]) -> BTreeMap<u64, Vec<(u64, u8, Vec<u32>)>> {
    let mut threads: BTreeMap<u64, Vec<(u64, u8, Vec<u32>)>> = BTreeMap::new();
    let mut columns = RawColumns::default();
    let mut names: BTreeMap<u32, u32> = BTreeMap::new();
    let mut last = 0;
    for line in text
        .split(|byte| *byte == b'\n')
        .filter(|line| line.starts_with(b"{\"type\":\"raw\"") || line.starts_with(b"{\"type\":\"frame_def\""))
    {
        let message = decode(line, &mut columns).expect("a message").message;
        if let tachyon_jsonl::protocol::Message::FrameDef(body) = message {
            let lines = body.line.expect("lines");
            names.extend(
                body.frame_id.iter().zip(lines).map(|(id, line)| (*id, line.expect("a line") as u32)),
            );
            continue;
        }
        assert!(columns.start_usec >= last, "messages go forward in time");
        last = columns.start_usec;
        for thread in columns.threads() {
            for ((time, status), node) in thread.times_usec.iter().zip(&thread.status).zip(thread.nodes()) {
                let mut stack = Vec::new();
                let mut node = node;
                while node != u32::MAX {
                    stack.push(names[&columns.stack_frame_id[node as usize]]);
                    node = columns.stack_parent[node as usize];
                }
                threads.entry(thread.thread_id).or_default().push((*time, *status, stack));
            }
        }
    }
    threads
}

fn expected(samples: &[Sample]) -> BTreeMap<u64, Vec<(u64, u8, Vec<u32>)>> {
    let mut threads: BTreeMap<u64, Vec<(u64, u8, Vec<u32>)>> = BTreeMap::new();
    for (time, thread, status, stack) in samples {
        threads.entry(*thread).or_default().push((*time, *status, stack.clone()));
    }
    threads
}

fn check(samples: &[Sample]) {
    let bytes = record(samples);
    for (flush, max_line) in [
        (Flush::default(), 65_535),
        (Flush { samples: Some(10), ..Flush::default() }, 8192),
        (Flush { interval: Some(std::time::Duration::from_millis(1)), ..Flush::default() }, 20_000),
    ] {
        let mut text = stream(&bytes, flush, max_line);
        assert!(samples_of(&text) == expected(samples), "the samples differ");
        let (again, losses) = to_binary(&mut text);
        assert!(losses.is_empty(), "{losses:?}");
        assert!(again == bytes, "the bytes differ");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_recording_comes_back_byte_for_byte(
        ticks in prop::collection::vec((1u64..400, prop::collection::vec((0u8..4, 0usize..6, any::<u8>()), 5)), 1..200)
    ) {
        let stacks: [&[u32]; 6] = [&[], &[0], &[1, 0], &[2, 1, 0], &[4, 3, 0], &[5, 5, 1, 0]];
        let mut time = START;
        let mut samples = Vec::new();
        for (step, threads) in ticks {
            time += step;
            for (thread, (present, stack, status)) in (1u64..).zip(threads) {
                // A thread is there three times out of four.
                if present > 0 {
                    samples.push((time, thread, status, stacks[stack].to_vec()));
                }
            }
        }
        if !samples.is_empty() {
            check(&samples);
        }
    }
}

/// Where no stack ever changes, only the order of the last runs tells in which order the threads are listed.
#[test]
fn threads_without_frames_come_back_in_their_order() {
    for order in [[3, 5, 4], [5, 4, 3], [4, 3, 5]] {
        let samples = (0..3).flat_map(|tick| order.map(|thread| (START + 10 * tick, thread, 0, vec![])));
        check(&samples.collect::<Vec<Sample>>());
    }
    // One that has frames is listed between two that have none.
    let samples = [(3, vec![]), (5, vec![1, 0]), (4, vec![])];
    let samples = samples
        .into_iter()
        .flat_map(|(thread, stack)| [(START + 10, thread, 0, stack.clone()), (START + 20, thread, 0, stack)]);
    let mut samples: Vec<Sample> = samples.collect();
    samples.sort_by_key(|(time, ..)| *time);
    check(&samples);
}

/// A thread that ends early has its last run at the end of the file, and one that sits still now and
/// then, behind half a million samples of others.
#[test]
fn runs_that_were_written_late_are_delivered_in_time() {
    let mut samples: Vec<Sample> = Vec::new();
    for tick in 0..400_000u64 {
        let time = START + 100 * (tick + 1);
        if tick < 50 || (200_000..200_020).contains(&tick) {
            samples.push((time, 1, 4, vec![1, 0]));
        }
        if tick % 100_000 == 7 {
            samples.push((time, 2, 5, vec![2 + (tick % 3) as u32, 0]));
        }
        samples.push((time, 3, 5, vec![if tick % 1000 == 0 { 6 } else { 5 }, 0]));
    }
    let bytes = record(&samples);
    let mut text = stream(&bytes, Flush::default(), 65_535);
    assert!(samples_of(&text) == expected(&samples));
    let (again, losses) = to_binary(&mut text);
    assert!(losses.is_empty() && again == bytes);
}

/// Threads that sit still have their runs one behind the other, each with all times: only a part of each may wait.
#[test]
fn many_idle_threads_do_not_wait_in_memory() {
    const THREADS: u64 = 600;
    const TICKS: u64 = 3000;
    let stack = vec![1, 0];
    let samples: Vec<Sample> = (1..=TICKS)
        .flat_map(|tick| (0..THREADS).map(move |thread| (tick, thread)))
        .map(|(tick, thread)| (START + 100 * tick, thread, 0, stack.clone()))
        .collect();
    let bytes = record(&samples);
    let mut profile = Profile::open(Cursor::new(&bytes)).expect("a profile");
    let (mut replay, _) = profile.replay().expect("samples");
    let (mut delivered, mut most, mut last) = (0, 0, 0);
    loop {
        replay.load(5000).expect("samples");
        let before = replay.complete_before();
        let buffer = replay.buffer();
        most = most.max(buffer.waiting());
        let Some(first) = buffer.first_key() else { break };
        assert!(first >= last);
        last = first;
        delivered += buffer.cut(5000, before, Cut::AfterInstant);
        buffer.advance();
    }
    assert_eq!(delivered as u64, THREADS * TICKS);
    assert!(most < 800_000, "{most} samples waited");
}

/// A pool of threads: a few that change their stacks, and so many idle ones that a line names them all once, or not
/// even that; one comes late, one goes early.
fn pool(idle: u64, ticks: u64) -> Vec<Sample> {
    let mut samples = Vec::new();
    for tick in 1..=ticks {
        let time = START + 100 * tick + tick % 3;
        for thread in (0..3).filter(|thread| (tick + thread) % 4 > 0) {
            samples.push((time, thread, 5, vec![2 + ((tick * 7 + thread) % 5) as u32, 0]));
        }
        for thread in (3..3 + idle).filter(|thread| thread % 50 > 0 || tick % 90 > 60) {
            samples.push((time, 1_000_000 * thread, 4, vec![1, 0]));
        }
    }
    samples
}

#[test]
fn many_idle_threads_come_back_byte_for_byte() {
    check(&pool(90, 300));
    check(&pool(1000, 150));
}

/// The text of a sample is that of its time, its status and its node, whatever the number of threads.
#[test]
fn idle_threads_cost_little_text_however_many_they_are() {
    for (idle, max_line) in
        [(5, 65_535), (90, 8192), (700, 65_535), (700, 8192), (3000, 65_535), (3000, 8192)]
    {
        let samples = pool(idle, 100_000 / idle);
        let text = stream(&record(&samples), Flush::default(), max_line);
        let bytes = text.len() / samples.len();
        assert!(bytes <= 20, "{bytes} bytes a sample of {idle} threads in lines of {max_line}");
    }
}

/// Where a thread's samples of a group do not fit into a line, the group is cut in time.
#[test]
fn many_threads_with_deep_stacks_come_back_byte_for_byte() {
    let deep = |seed: u64| (0..120u32).map(|at| (seed as u32 * 31 + at * at) % 900).collect::<Vec<u32>>();
    let mut samples: Vec<Sample> = Vec::new();
    for tick in 1..=40u64 {
        for thread in 0..120u64 {
            let seed = if thread % 10 == 0 { tick * 120 + thread } else { thread };
            samples.push((START + 100 * tick, thread, 5, deep(seed)));
        }
    }
    check(&samples);
}

/// A clock that stands still, and one that jumps ahead and comes back, keep every sample and the order
/// within each thread.
#[test]
fn odd_clocks_keep_every_sample() {
    let mut samples: Vec<Sample> = Vec::new();
    for tick in 0..3000u64 {
        let time = match tick {
            0..1000 => START,
            1000 => START + 1_000_000_000,
            _ => START + tick,
        };
        samples.push((time, 1, tick as u8, vec![(tick % 5) as u32, 0]));
    }
    check(&samples);
}
