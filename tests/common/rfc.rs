//! A reader of chunks that knows the public proposal of format version 2 and nothing of this crate: the
//! narrow header with the chunk's size, plain or zstd samples, tables, footer. It passes over what it
//! doesn't know.

use std::collections::{BTreeMap, HashMap};

use super::{Sample, Thread};

pub struct Chunk {
    pub start_us: u64,
    pub samples: u32,
    pub threads: u32,
    pub size: usize,
    /// What stands between the frames and the footer.
    pub tail: Vec<u8>,
    pub checksum: [u8; 16],
}

struct Bytes<'a>(&'a [u8], usize);

impl Bytes<'_> {
    fn u8(&mut self) -> u8 {
        self.1 += 1;
        self.0[self.1 - 1]
    }

    fn varint(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.u8();
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    fn svarint(&mut self) -> i32 {
        let value = self.varint() as u32;
        (value >> 1) as i32 ^ -((value & 1) as i32)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// All chunks of a little-endian file, and the samples of all, thread by thread.
pub fn read(mut bytes: &[u8]) -> (Vec<Chunk>, BTreeMap<Thread, Vec<Sample>>) {
    let mut chunks = Vec::new();
    let mut threads: BTreeMap<Thread, Vec<Sample>> = BTreeMap::new();
    while !bytes.is_empty() {
        assert_eq!((u32_at(bytes, 0), u32_at(bytes, 4)), (0x5441_4348, 2));
        let size = u64_at(bytes, 56) as usize;
        let (chunk, rest) = bytes.split_at(size);
        chunks.push(read_chunk(chunk, &mut threads));
        bytes = rest;
    }
    (chunks, threads)
}

fn read_chunk(chunk: &[u8], threads: &mut BTreeMap<Thread, Vec<Sample>>) -> Chunk {
    let footer = &chunk[chunk.len() - 32..];
    assert_eq!(u64_at(footer, 8), chunk.len() as u64);
    let (strings_at, frames_at) = (u64_at(chunk, 36) as usize, u64_at(chunk, 44) as usize);
    let mut strings = Vec::new();
    let mut table = Bytes(chunk, strings_at);
    for _ in 0..u32_at(footer, 0) {
        let length = table.varint() as usize;
        strings.push(String::from_utf8_lossy(&chunk[table.1..table.1 + length]).into_owned());
        table.1 += length;
    }
    assert_eq!(table.1, frames_at);
    let mut frames = Vec::new();
    for _ in 0..u32_at(footer, 4) {
        let (path, function) = (table.varint() as usize, table.varint() as usize);
        let line = table.svarint();
        let end_line = line.wrapping_add(table.svarint());
        let col = table.svarint();
        let end_col = col.wrapping_add(table.svarint());
        let opcode = Some(table.u8()).filter(|opcode| *opcode != 255);
        let end_col = if col == -1 { -1 } else { end_col };
        let place = (line != -1).then_some([line, end_line, col, end_col]);
        frames.push(serde_json::json!([strings[path], place, strings[function], opcode]).to_string());
    }
    let samples = &chunk[64..strings_at];
    let unpacked =
        if u32_at(chunk, 52) == 1 { zstd::decode_all(samples).expect("zstd") } else { samples.to_vec() };
    let chunk = Chunk {
        start_us: u64_at(chunk, 12),
        samples: u32_at(chunk, 28),
        threads: u32_at(chunk, 32),
        size: chunk.len(),
        tail: chunk[table.1..chunk.len() - 32].to_vec(),
        checksum: footer[16..].try_into().expect("sixteen bytes"),
    };
    let found = read_records(&unpacked, chunk.start_us, &frames, threads);
    assert_eq!(found, (u64::from(chunk.samples), chunk.threads as usize));
    chunk
}

/// Samples and threads.
fn read_records(
    records: &[u8],
    start_us: u64,
    frames: &[String],
    threads: &mut BTreeMap<Thread, Vec<Sample>>,
) -> (u64, usize) {
    let mut state: HashMap<Thread, (u64, Vec<usize>)> = HashMap::new();
    let mut bytes = Bytes(records, 0);
    let mut samples = 0;
    while bytes.1 < records.len() {
        let thread = (u64::from(u32_at(records, bytes.1 + 8)), u64_at(records, bytes.1));
        bytes.1 += 12;
        let (time, stack) = state.entry(thread).or_insert((start_us, Vec::new()));
        let taken = threads.entry(thread).or_default();
        let encoding = bytes.u8();
        if encoding == 0 {
            let text = text(stack, frames);
            for _ in 0..bytes.varint() {
                *time = time.wrapping_add(bytes.varint());
                taken.push((*time, u64::from(bytes.u8()), text.clone()));
                samples += 1;
            }
            continue;
        }
        *time = time.wrapping_add(bytes.varint());
        let status = u64::from(bytes.u8());
        let first = bytes.varint() as usize;
        let (keep, new) = match encoding {
            1 => (0, first),
            2 => (first, bytes.varint() as usize),
            3 => (stack.len() - first, bytes.varint() as usize),
            _ => panic!("encoding {encoding}"),
        };
        stack.truncate(keep);
        let pushed: Vec<usize> = (0..new).map(|_| bytes.varint() as usize).collect();
        stack.extend(pushed.into_iter().rev());
        taken.push((*time, status, text(stack, frames)));
        samples += 1;
    }
    (samples, state.len())
}

fn text(stack: &[usize], frames: &[String]) -> String {
    stack.iter().rev().map(|frame| frames[*frame].as_str()).collect::<Vec<_>>().join(" ")
}
