//! Large profiles as a busy Python server gives them, the same ones on every machine.
//!
//! Eight threads walk through a program of 4000 functions, most often around 40 frames deep: a
//! main thread, five workers on a common call tree and two that are mostly idle. All threads of an
//! instant have the same time; one of them at a time has the GIL.

mod pool;
mod program;
mod random;
mod walk;

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tachyon_jsonl::convert::{ProfileOptions, ToBinary};
use tachyon_jsonl::format::Packing;
use tachyon_jsonl::model::{ThreadKey, status};
use tachyon_jsonl::protocol::message::{Capture, End, IdScope, Meta, Stats};
use tachyon_jsonl::protocol::{Encoder, MessageType, Raw, RawThread};

pub use pool::pool;

use program::Program;
use random::Random;
use walk::{Tree, Walk};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// To be raised whenever other samples come out, so that no older file is taken for these.
const MODEL: u32 = 1;
/// One of few that give a median depth of about 40; with most it is nearer 60.
const SEED: u64 = 20_290;
const THREADS: usize = 8;
/// How often a thread's stack changes, relative to the profile's own rate; 1 on average.
const RATES: [f64; THREADS] = [1.0, 1.3, 1.3, 1.3, 1.3, 1.3, 0.25, 0.25];
/// Where in the call graph each thread starts.
const ROOTS: [usize; THREADS] = [7, 11, 11, 11, 11, 11, 13, 17];
/// The threads before this one take the GIL in turns; the others wait for something else.
const BUSY: usize = 6;
const START_US: u64 = 1_000_000_000;
/// Instants of a batch of the stream that the profiles are made of.
const BATCH: usize = 4096;
const NONE: u32 = u32::MAX;

/// What kind of profile.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    interval_us: u64,
    jitter_us: f64,
    /// How many of the samples have another stack than their thread's last one.
    changes: f64,
    /// How often the GIL changes hands.
    gil: f64,
    /// Samples of the profiles that most tables are made with.
    pub samples: u64,
    /// Samples for CPython's exporters, which are slow: several seconds of work, compared with which Python's start is
    /// small.
    pub exported: u64,
}

/// 1 kHz; a quarter of the samples has a new stack.
pub const CHURNY: Kind = Kind {
    name: "churny",
    interval_us: 1000,
    jitter_us: 9.0,
    changes: 0.25,
    gil: 0.20,
    samples: 5_000_000,
    exported: 200_000,
};
/// 10 kHz; most samples repeat.
pub const CALM: Kind = Kind {
    name: "calm",
    interval_us: 100,
    jitter_us: 2.2,
    changes: 0.03,
    gil: 0.02,
    samples: 20_000_000,
    exported: 1_000_000,
};

/// The same samples twice.
pub struct Profiles {
    pub plain: PathBuf,
    pub zstd: PathBuf,
}

/// Profiles of about this many samples in this folder; made unless they are there.
pub fn profiles(kind: Kind, samples: u64, folder: &Path) -> Result<Profiles> {
    let path = |packing| folder.join(format!("{}-{samples}-{packing}-{MODEL}.bin", kind.name));
    let profiles = Profiles { plain: path("plain"), zstd: path("zstd") };
    if profiles.plain.exists() && profiles.zstd.exists() {
        return Ok(profiles);
    }
    fs::create_dir_all(folder)?;
    let part = |path: &Path| path.with_extension("part");
    let sink = |path: &Path, packing| -> Result<ToBinary<File>> {
        Ok(ToBinary::new(File::create(part(path))?, ProfileOptions::default().packing(packing)))
    };
    let sinks = vec![sink(&profiles.plain, Packing::None)?, sink(&profiles.zstd, Packing::Zstd(5))?];
    Generator::new(kind, sinks).run(samples)?;
    for path in [&profiles.plain, &profiles.zstd] {
        fs::rename(part(path), path)?;
    }
    Ok(profiles)
}

struct Generator {
    kind: Kind,
    random: Random,
    program: Program,
    tree: Tree,
    walks: Vec<Walk>,
    gil_holder: usize,
    time: u64,
    batch: Batch,
    stream: Stream,
}

impl Generator {
    fn new(kind: Kind, sinks: Vec<ToBinary<File>>) -> Self {
        let mut random = Random::new(SEED);
        let program = Program::new(&mut random);
        let mut tree = Tree::default();
        let mut roots: Vec<(usize, usize)> = Vec::new();
        let mut walks = Vec::new();
        for function in ROOTS.map(|rank| program.by_heat[rank]) {
            let known = roots.iter().find(|(known, _)| *known == function).map(|(_, root)| *root);
            let root = known.unwrap_or_else(|| {
                roots.push((function, tree.root(function)));
                roots[roots.len() - 1].1
            });
            walks.push(Walk::new(root, &mut tree, &program, &mut random));
        }
        let stream = Stream { encoder: Encoder::new("bench"), text: Vec::new(), lines: 0, sinks };
        let batch = Batch::default();
        Generator { kind, random, program, tree, walks, gil_holder: 0, time: START_US, batch, stream }
    }

    fn run(mut self, samples: u64) -> Result<()> {
        let instants = samples.div_ceil(THREADS as u64);
        for _ in 0..instants {
            self.instant();
            if self.batch.times.len() == BATCH {
                self.flush()?;
            }
        }
        if !self.batch.times.is_empty() {
            self.flush()?;
        }
        self.end(instants)
    }

    fn instant(&mut self) {
        let random = &mut self.random;
        let interval = self.kind.interval_us;
        self.time += if random.chance(0.002) {
            interval + random.range(0, 20 * interval as usize) as u64
        } else {
            (random.normal(interval as f64, self.kind.jitter_us) as u64).max(1)
        };
        if random.chance(self.kind.gil) {
            self.gil_holder = random.range(0, BUSY);
        }
        self.batch.times.push(self.time);
        for (index, walk) in self.walks.iter_mut().enumerate() {
            if random.chance(RATES[index] * self.kind.changes) {
                walk.change(&mut self.tree, &self.program, random);
            }
            let node = self.batch.node(walk.stack, &self.tree);
            self.batch.threads[index].add(node, status_of(index, self.gil_holder));
        }
    }

    /// Sends the batch.
    fn flush(&mut self) -> Result<()> {
        let Batch { index, times, .. } = &self.batch;
        let (first, last) = (times[0], times[times.len() - 1]);
        let is_first = *index == 0;
        let meta = Meta {
            batch: *index,
            messages: if is_first { 3 } else { 1 },
            start_usec: Some(first),
            duration_usec: Some(last - first),
            samples: Some((times.len() * THREADS) as u64),
            thread_count: Some(THREADS as u64),
            run_start_usec: Some(START_US),
            sample_interval_usec: Some(self.kind.interval_us),
            mode: Some("wall".to_string()),
            capture: Some(Capture { all_threads: true, gc: true, ..Capture::default() }),
            id_scope: IdScope::Run,
            clock: Some("monotonic".to_string()),
            ..Meta::default()
        };
        let Stream { encoder, text, .. } = &mut self.stream;
        encoder.message(text, MessageType::Meta, &meta);
        if is_first {
            encoder.message(text, MessageType::StrDef, &self.program.strings);
            encoder.message(text, MessageType::FrameDef, &self.program.frames);
        }
        let mut line = vec![0; encoder.envelope_len(MessageType::Raw) - 1];
        self.batch.write(&mut line);
        line.push(0);
        let begin = encoder.enclose(&mut line, MessageType::Raw);
        text.extend_from_slice(&line[begin..]);
        self.batch.next();
        self.stream.send()
    }

    fn end(mut self, instants: u64) -> Result<()> {
        let samples = instants * THREADS as u64;
        let duration_sec = (self.time - START_US) as f64 / 1e6;
        let sample_rate = instants as f64 / duration_sec;
        let stats = Stats { duration_sec, sample_rate, error_rate: Some(0.0), missed_samples: Some(0.0) };
        let end = End {
            complete: true,
            batches: self.batch.index,
            messages: self.stream.encoder.next_seq() + 1,
            samples: Some(samples),
            samples_total: samples,
            samples_empty: Some(0),
            duration_usec: Some(self.time - START_US),
            stats: Some(stats),
            ..End::default()
        };
        let Stream { encoder, text, .. } = &mut self.stream;
        encoder.message(text, MessageType::End, &end);
        self.stream.send()?;
        for sink in self.stream.sinks {
            if let Some(loss) = sink.finish()?.losses.into_iter().next() {
                return Err(loss.into());
            }
        }
        Ok(())
    }
}

fn status_of(thread: usize, gil_holder: usize) -> u8 {
    let own = match thread {
        _ if thread == gil_holder => status::HAS_GIL | status::UNKNOWN,
        BUSY.. => status::UNKNOWN,
        _ => status::UNKNOWN | status::GIL_REQUESTED,
    };
    if thread == 0 { own | status::MAIN_THREAD } else { own }
}

/// The samples of a batch, and the part of the call tree that they are in.
#[derive(Default)]
struct Batch {
    index: u64,
    times: Vec<u64>,
    threads: [Columns; THREADS],
    frame: Vec<u32>,
    parent: Vec<u32>,
    /// Of each stack of the tree: the last batch it was in, plus one, and its node there.
    nodes: Vec<(u64, u32)>,
}

#[derive(Default)]
struct Columns {
    status: Vec<u8>,
    stacks: Vec<(u32, usize)>,
}

impl Columns {
    fn add(&mut self, node: u32, status: u8) {
        self.status.push(status);
        match self.stacks.last_mut() {
            Some((last, count)) if *last == node => *count += 1,
            _ => self.stacks.push((node, 1)),
        }
    }
}

impl Batch {
    /// The number of a stack in the batch.
    fn node(&mut self, stack: u32, tree: &Tree) -> u32 {
        if stack == NONE {
            return NONE;
        }
        let at = stack as usize;
        if self.nodes.len() <= at {
            self.nodes.resize(tree.frame.len(), (0, 0));
        }
        if self.nodes[at].0 != self.index + 1 {
            let parent = self.node(tree.parent[at], tree);
            self.nodes[at] = (self.index + 1, self.frame.len() as u32);
            self.frame.push(tree.frame[at]);
            self.parent.push(parent);
        }
        self.nodes[at].1
    }

    fn write(&self, out: &mut Vec<u8>) {
        let threads: Vec<RawThread<'_>> = (0..)
            .zip(&self.threads)
            .map(|(index, Columns { status, stacks })| RawThread {
                thread: ThreadKey {
                    interpreter_id: 0,
                    thread_id: if index == 0 { 1535 } else { 139_872_345_614_016 + 8_392_704 * index },
                },
                times: &self.times,
                status,
                stacks,
            })
            .collect();
        let raw = Raw {
            batch: self.index,
            start_us: self.times[0],
            node_frame: &self.frame,
            node_parent: &self.parent,
            threads: &threads,
        };
        raw.write(out);
    }

    fn next(&mut self) {
        self.index += 1;
        self.times.clear();
        self.frame.clear();
        self.parent.clear();
        self.threads = Default::default();
    }
}

/// The lines of a stream on their way into profiles.
struct Stream {
    encoder: Encoder,
    text: Vec<u8>,
    lines: u64,
    sinks: Vec<ToBinary<File>>,
}

impl Stream {
    fn send(&mut self) -> Result<()> {
        let mut copy = Vec::new();
        for line in self.text.split_inclusive(|byte| *byte == b'\n') {
            self.lines += 1;
            for sink in &mut self.sinks {
                copy.clear();
                copy.extend_from_slice(line);
                sink.line(self.lines, &mut copy)?;
            }
        }
        self.text.clear();
        Ok(())
    }
}
