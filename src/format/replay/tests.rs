use proptest::prelude::*;

use super::*;
use crate::error::{ErrorKind, Result};
use crate::format::layout::header::ByteOrder;
use crate::format::record::{self, Change, REPEAT};
use crate::format::scan::{Region, ScanResult};
use crate::limits::{THREAD_FRAMES, THREADS};
use crate::model::{Clock, Cut, ThreadKey};
use crate::varint;

const START: u64 = 1_000_000;
/// Samples that records may be out of order here, so that small regions have late ones.
const REORDER: usize = 2 * BLOCK as usize;

/// A record: its thread, whether it changes the stack, and its samples.
#[derive(Clone, Debug)]
struct Made {
    thread: u64,
    is_change: bool,
    samples: Vec<(u64, u8)>,
}

fn thread(thread_id: u64) -> ThreadKey {
    ThreadKey { interpreter_id: 0, thread_id }
}

/// A change brings any number of frames, by the sample's status.
fn depth_of(status: u8) -> usize {
    1 + usize::from(status) * 37 % STACK_DEPTH
}

/// A status that brings as many as can be.
fn deepest() -> u8 {
    (0..=u8::MAX).max_by_key(|status| depth_of(*status)).expect("some")
}

fn region(records: &[Made]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        if record.is_change {
            let (thread, sample) = (thread(record.thread), record.samples[0]);
            let depth = depth_of(sample.1);
            let change = Change::full(depth as u32);
            record::write_change(&mut bytes, thread, sample, change, std::iter::repeat_n(0, depth));
            continue;
        }
        record::write_head(&mut bytes, thread(record.thread), REPEAT);
        varint::write(&mut bytes, record.samples.len() as u64);
        record.samples.iter().for_each(|(delta, status)| entries::write(&mut bytes, *delta, *status));
    }
    bytes
}

fn reader(bytes: &[u8]) -> RecordReader<'_> {
    RecordReader::new(Box::new(bytes), bytes.len() as u64, ByteOrder::Little, record::RegionPosition::File(0))
}

fn scan(bytes: &[u8]) -> Result<ScanResult> {
    Region { reader: reader(bytes), start_us: START, frames: 1, windows: None, reorder: REORDER }.scan()
}

/// All samples of a region in order, slowly and obviously: collected and sorted by the rule.
fn sorted(records: &[Made], rank: impl Fn(u64) -> usize, threads: usize) -> Vec<(OrderKey, usize, u64, u8)> {
    let mut clocks = vec![(START, Clock::default()); threads];
    let mut samples = Vec::new();
    for record in records {
        let queue = rank(record.thread);
        let (time, clock) = &mut clocks[queue];
        for (delta, status) in &record.samples {
            *time = time.wrapping_add(*delta);
            samples.push((clock.take(*time), queue, *time, *status));
        }
    }
    samples.sort_by_key(|(place, queue, ..)| (*place, *queue));
    samples
}

/// What the first walk says of a region, against the list.
fn check_summary(scan: &SampleSummary, records: &[Made], samples: &[(OrderKey, usize, u64, u8)]) {
    let changes = records.iter().filter(|record| record.is_change).count() as u64;
    assert_eq!(scan.samples, samples.len() as u64);
    assert_eq!(scan.records.iter().sum::<u64>(), records.len() as u64);
    assert_eq!(scan.records[usize::from(REPEAT)], records.len() as u64 - changes);
    for (rank, thread) in scan.threads.iter().enumerate() {
        let times: Vec<u64> =
            samples.iter().filter(|(_, of, ..)| *of == rank).map(|(.., time, _)| *time).collect();
        assert_eq!(thread.samples, times.len() as u64);
        let span = thread.span.expect("samples");
        assert_eq!(Some(&span.first_us), times.iter().min());
        assert_eq!(Some(&span.last_us), times.iter().max());
    }
}

/// Replays a region `wanted` samples at a time, against the list; returns how many samples waited at most.
fn check(records: &[Made], wanted: usize) -> usize {
    let bytes = region(records);
    let ScanResult { scan, mut late, fault, .. } = scan(&bytes).expect("memory");
    assert!(fault.is_none(), "{fault:?}");
    let rank = |id: u64| scan.threads.iter().position(|of| of.thread == thread(id)).expect("a thread");
    let ranks: Vec<usize> = (0..=records.iter().map(|record| record.thread).max().unwrap_or(0))
        .map(|id| if records.iter().any(|record| record.thread == id) { rank(id) } else { usize::MAX })
        .collect();
    let expected = sorted(records, |id| ranks[id as usize], scan.threads.len());
    check_summary(&scan, records, &expected);
    let mut replay = Replay::new(reader(&bytes), &scan, START, &mut late);
    let (mut done, mut most) = (0, 0);
    loop {
        replay.load(wanted).expect("memory");
        let before = replay.complete_before();
        let buffer = replay.buffer();
        most = most.max(buffer.waiting());
        let taken = buffer.cut(wanted, before, Cut::BeforeInstant);
        if taken == 0 {
            break;
        }
        let mut these = expected[done..done + taken].to_vec();
        these.sort_by_key(|(_, queue, ..)| *queue);
        let found = buffer.slices().flat_map(|slice| {
            let samples = slice.times().iter().zip(slice.status());
            samples.map(move |(time, status)| (slice.index(), *time, *status)).collect::<Vec<_>>()
        });
        assert!(found.eq(these.into_iter().map(|(_, queue, time, status)| (queue, time, status))));
        buffer.advance();
        done += taken;
    }
    assert_eq!(done, expected.len());
    most
}

/// Threads' records, each thread's in order, in any order over threads: the numbers choose whose is next.
fn interleaved(mut threads: Vec<Vec<Made>>, choices: &[usize]) -> Vec<Made> {
    let mut records = Vec::new();
    let mut choices = choices.iter().cycle();
    threads.iter_mut().for_each(|records| records.reverse());
    threads.retain(|records| !records.is_empty());
    while !threads.is_empty() {
        let at = choices.next().expect("some") % threads.len();
        records.extend(threads[at].pop());
        threads.retain(|records| !records.is_empty());
    }
    records
}

/// A record's shape: its samples, the step of the clock, and how often it stands still or goes back.
fn shape() -> impl Strategy<Value = (usize, u64, u8)> {
    (prop_oneof![4 => 1usize..4, 2 => 100usize..3000], 0u64..40, 0u8..8)
}

fn made(id: usize, number: usize, (count, step, oddity): (usize, u64, u8)) -> Made {
    let delta = |n: usize| match (oddity, n % 7) {
        (0, _) => 0,
        (1, 3) => 30u64.wrapping_neg(),
        (2, 0..3) => 0,
        _ => step,
    };
    let samples = (0..count).map(|n| (delta(n), (n + number) as u8)).collect();
    Made { thread: id as u64, is_change: count == 1, samples }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records_in_any_order_are_replayed_in_that_of_a_sorted_list(
        threads in prop::collection::vec(prop::collection::vec(shape(), 1..25), 1..7),
        choices in prop::collection::vec(0usize..50, 1..20),
        wanted in prop::sample::select(vec![1000, 7000]),
    ) {
        let threads = threads.into_iter().enumerate().map(|(id, shapes)| {
            shapes.into_iter().enumerate().map(|(number, shape)| made(id, number, shape)).collect()
        });
        check(&interleaved(threads.collect(), &choices), wanted);
    }
}

/// As CPython writes a pool: all runs are full at once, and stand one after the other.
fn pool(idle: usize, run: usize, rounds: usize, step: u64) -> Vec<Made> {
    (0..rounds)
        .flat_map(|round| {
            let busy = (0..run).map(move |n| Made {
                thread: 0,
                is_change: true,
                samples: vec![(if (round, n) == (0, 0) { 10 } else { step }, 5)],
            });
            let idle = (1..=idle as u64).map(move |thread| {
                let mut samples = vec![(step, 4); run];
                if round == 0 {
                    samples[0].0 = 10;
                }
                Made { thread, is_change: false, samples }
            });
            busy.chain(idle)
        })
        .collect()
}

#[test]
fn idle_threads_wait_in_bounded_memory_and_come_in_order() {
    for (idle, run) in [(20, 3000), (200, 400)] {
        let most = check(&pool(idle, run, 4, 100), 2000);
        // The window, what is wanted, and what late records are loaded ahead by.
        assert!(most < 2 * REORDER + 2 * 4096 + 4096 * 21, "{most} samples of {idle} threads waited");
    }
}

#[test]
fn a_clock_that_stands_still_gives_up_neither_order_nor_memory() {
    let most = check(&pool(20, 3000, 4, 0), 2000);
    assert!(most < 2 * REORDER + 2 * 4096 + 4096 * 21, "{most} samples waited");
}

#[test]
fn frames_that_wait_are_bounded_as_samples_are() {
    // One thread's samples, each with a stack of its own, stand before those of another one.
    let of = |id| move |_| Made { thread: id, is_change: true, samples: vec![(10, deepest())] };
    let records: Vec<Made> = (0..40_000).map(of(0)).chain((0..40_000).map(of(1))).collect();
    let most = check(&records, 100_000);
    assert!(most * STACK_DEPTH < 2 * FRAMES_WAITING, "{most} samples waited");
}

#[test]
fn deeper_stacks_of_all_threads_than_the_limit_are_an_error_that_names_it() {
    let records = |threads: usize| -> Vec<Made> {
        (0..threads as u64)
            .map(|thread| Made { thread, is_change: true, samples: vec![(10, deepest())] })
            .collect()
    };
    let fitting = THREAD_FRAMES / depth_of(deepest());
    assert!(scan(&region(&records(fitting))).expect("not too deep").fault.is_none());
    let error = scan(&region(&records(fitting + 1))).err().expect("too deep");
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains(&THREAD_FRAMES.to_string()), "{error}");
}

#[test]
fn more_threads_than_the_limit_are_an_error_that_names_it() {
    let records = |threads: usize| -> Vec<Made> {
        (0..threads as u64).map(|thread| Made { thread, is_change: true, samples: vec![(10, 0)] }).collect()
    };
    assert!(scan(&region(&records(THREADS))).expect("not too many").fault.is_none());
    let error = scan(&region(&records(THREADS + 1))).err().expect("too many");
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains(&THREADS.to_string()), "{error}");
}
