//! A pool of threads: one changes its stack at every instant, the others sit still.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tachyon_jsonl::convert::{ProfileOptions, ToBinary};
use tachyon_jsonl::model::ThreadKey;
use tachyon_jsonl::protocol::message::{End, FrameDef, IdScope, Meta, StrDef};
use tachyon_jsonl::protocol::{Encoder, MessageType, Raw, RawThread};

use super::{MODEL, NONE, Result, START_US};

/// Frames of a stack that waits; what is on top of the first of them works.
const WAITING: u32 = 6;
const WORKING: u32 = 24;
/// Instants of a message of the stream that the profile is made of.
const INSTANTS: u64 = 64;

/// A zstd profile of so many threads and about so many samples in this folder; made unless it is there.
pub fn pool(threads: u64, samples: u64, folder: &Path) -> Result<PathBuf> {
    let path = folder.join(format!("pool-{threads}-{samples}-{MODEL}.bin"));
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(folder)?;
    let part = path.with_extension("part");
    let mut to_binary = ToBinary::new(File::create(&part)?, ProfileOptions::default());
    let mut encoder = Encoder::new("bench");
    let messages = samples.div_ceil(threads * INSTANTS);
    let samples = messages * INSTANTS * threads;
    let mut text = Vec::new();
    definitions(&mut encoder, messages, samples, &mut text);
    let frames: Vec<u32> = (0..WAITING + WORKING).collect();
    // A waiting stack is a chain; each working node stands on its first frame.
    let parents: Vec<u32> =
        frames.iter().map(|node| if *node < WAITING { node.wrapping_sub(1) } else { 0 }).collect();
    let (idle, status) = ([(WAITING - 1, INSTANTS as usize)], [4; INSTANTS as usize]);
    debug_assert_eq!(parents[0], NONE);
    for message in 0..messages {
        let ticks = message * INSTANTS..(message + 1) * INSTANTS;
        let times: Vec<u64> = ticks.clone().map(|tick| START_US + 10_000 * (tick + 1) + tick % 7).collect();
        let busy: Vec<(u32, usize)> =
            ticks.map(|tick| (WAITING + (tick * 7 % u64::from(WORKING)) as u32, 1)).collect();
        let threads: Vec<RawThread<'_>> = (0..threads)
            .map(|thread| RawThread {
                thread: ThreadKey { interpreter_id: 0, thread_id: 139_872_345_614_016 - 8_392_704 * thread },
                times: &times,
                status: &status,
                stacks: if thread == 0 { &busy } else { &idle },
            })
            .collect();
        let raw = Raw {
            batch: 0,
            start_us: times[0],
            node_frame: &frames,
            node_parent: &parents,
            threads: &threads,
        };
        encoder.raw(&mut text, &raw);
        for line in text.split_inclusive_mut(|byte| *byte == b'\n') {
            to_binary.line(1, line)?;
        }
        text.clear();
    }
    encoder.message(
        &mut text,
        MessageType::End,
        &End { complete: true, samples: Some(samples), ..End::default() },
    );
    to_binary.line(1, &mut text)?;
    to_binary.finish()?;
    fs::rename(part, &path)?;
    Ok(path)
}

fn definitions(encoder: &mut Encoder, messages: u64, samples: u64, text: &mut Vec<u8>) {
    let meta = Meta {
        messages: messages + 2,
        samples: Some(samples),
        run_start_usec: Some(START_US),
        sample_interval_usec: Some(10_000),
        id_scope: IdScope::Run,
        clock: Some("monotonic".to_string()),
        ..Meta::default()
    };
    encoder.message(text, MessageType::Meta, &meta);
    let ids: Vec<u32> = (0..WAITING + WORKING).collect();
    let names = StrDef {
        str_id: ids.clone(),
        value: ids.iter().map(|id| format!("function_{id}")).collect(),
        ..StrDef::default()
    };
    encoder.message(text, MessageType::StrDef, &names);
    let frames = FrameDef {
        frame_id: ids.clone(),
        path_str_id: vec![0; ids.len()],
        func_str_id: ids.clone(),
        line: Some(ids.iter().map(|id| Some(*id as i32 + 1)).collect()),
        ..FrameDef::default()
    };
    encoder.message(text, MessageType::FrameDef, &frames);
}
