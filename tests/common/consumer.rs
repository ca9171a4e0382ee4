//! A reader of streams that shares nothing with the crate: made from `schema/README.md`, and strict
//! about every key.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::json;

use super::{Sample, Thread};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    Meta {
        v: u64,
        run_id: String,
        seq: u64,
        batch: u64,
        messages: u64,
        start_usec: u64,
        duration_usec: u64,
        samples: u64,
        thread_count: u64,
        run_start_usec: u64,
        sample_interval_usec: u64,
        mode: Option<String>,
        capture: Option<BTreeMap<String, bool>>,
        python: Option<String>,
        id_scope: String,
        stream_types: Option<Vec<String>>,
        clock: String,
        wall_usec: Option<i64>,
        labels: Option<BTreeMap<String, String>>,
    },
    StrDef {
        v: u64,
        run_id: String,
        seq: u64,
        batch: u64,
        str_id: Vec<u64>,
        value: Vec<String>,
        base64: Option<BTreeMap<String, String>>,
    },
    FrameDef {
        v: u64,
        run_id: String,
        seq: u64,
        batch: u64,
        frame_id: Vec<u64>,
        path_str_id: Vec<u64>,
        func_str_id: Vec<u64>,
        line: Option<Vec<Option<i64>>>,
        end_line: Option<Vec<Option<i64>>>,
        col: Option<Vec<Option<i64>>>,
        end_col: Option<Vec<Option<i64>>>,
        opcode: Option<Vec<Option<u64>>>,
    },
    Raw {
        v: u64,
        run_id: String,
        seq: u64,
        batch: u64,
        start_usec: u64,
        samples: u64,
        stack_frame_id: Vec<u64>,
        stack_parent: Option<Vec<Option<usize>>>,
        threads: Vec<RawThread>,
    },
    Agg {
        v: u64,
        run_id: String,
        seq: u64,
        batch: u64,
        kind: String,
        scope: String,
        start_usec: i128,
        duration_usec: u64,
        samples_total: u64,
        samples_empty: u64,
        frame_id: Vec<u64>,
        #[serde(rename = "self")]
        self_: Vec<u64>,
        cumulative: Vec<u64>,
    },
    Loss {
        v: u64,
        run_id: String,
        seq: u64,
        batch: Option<u64>,
        reason: String,
        lost_samples: Option<u64>,
        lost_messages: Option<u64>,
        lost_bytes: Option<u64>,
        lost_percent: Option<f64>,
        samples: Option<u64>,
        first_seq: Option<u64>,
        last_seq: Option<u64>,
        start_usec: Option<u64>,
        duration_usec: Option<u64>,
    },
    Heartbeat {
        v: u64,
        run_id: String,
        seq: u64,
        ts_usec: u64,
        wall_usec: Option<i64>,
        samples: u64,
        batches: u64,
        dropped_messages: u64,
    },
    Error {
        v: u64,
        run_id: String,
        seq: u64,
        code: String,
        detail: String,
        offset: Option<u64>,
        fatal: bool,
    },
    End {
        v: u64,
        run_id: String,
        seq: u64,
        complete: bool,
        batches: u64,
        messages: u64,
        samples: u64,
        samples_total: u64,
        samples_empty: u64,
        duration_usec: u64,
        lost: Option<BTreeMap<String, BTreeMap<String, f64>>>,
        stats: Option<BTreeMap<String, f64>>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawThread {
    pub thread_id: String,
    pub interpreter_id: u64,
    pub ts_delta_usec: Vec<i64>,
    pub status: Vec<u64>,
    pub stack: Option<Vec<Option<usize>>>,
}

/// Path, function, positions, opcode.
type FrameRow = (u64, u64, [Option<i64>; 4], Option<u64>);

/// Path, function, line, end line, column, end column, where CPython's JSONL has them.
pub type AggKey = (String, String, i64, Option<i64>, Option<i64>, Option<i64>);
/// Self and cumulative counts.
pub type Counts = (u64, u64);

/// What a stream says, put together.
#[derive(Debug, Default)]
pub struct Read {
    pub threads: BTreeMap<Thread, Vec<Sample>>,
    /// By scope ("window" or "final"), added up.
    pub agg: BTreeMap<String, BTreeMap<AggKey, Counts>>,
    pub agg_totals: BTreeMap<String, (u64, u64)>,
    pub windows: Vec<(i128, u64)>,
    pub messages: Vec<Message>,
}

pub fn parse(line: &[u8]) -> Message {
    // {"type":"raw",...} as {"raw":{...}}: serde reads that form of an enum without a detour through
    // its own value type, which would round the largest numbers.
    let text = std::str::from_utf8(line).expect("UTF-8");
    let rest = text.strip_prefix("{\"type\":\"").expect("type comes first");
    let (kind, rest) = rest.split_once("\",").expect("a key behind it");
    let tagged = format!("{{\"{kind}\":{{{}}}", rest.trim_end_matches('\n'));
    serde_json::from_str(&tagged).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Reads a stream of one run. Every id must be defined in its batch: definitions are forgotten at
/// each `meta`.
pub fn read(stream: &[u8]) -> Read {
    let mut read = Read::default();
    let mut strings: HashMap<u64, String> = HashMap::new();
    let mut frames: HashMap<u64, FrameRow> = HashMap::new();
    let mut heads = Vec::new();
    for line in stream.split_inclusive(|byte| *byte == b'\n') {
        assert_eq!(line.last(), Some(&b'\n'), "every line ends");
        let message = parse(line);
        match &message {
            Message::Meta { .. } => {
                strings.clear();
                frames.clear();
            }
            Message::StrDef { str_id, value, .. } => {
                assert_eq!(str_id.len(), value.len());
                strings.extend(str_id.iter().copied().zip(value.iter().cloned()));
            }
            Message::FrameDef {
                frame_id,
                path_str_id,
                func_str_id,
                line,
                end_line,
                col,
                end_col,
                opcode,
                ..
            } => {
                let at = |column: &Option<Vec<Option<i64>>>, row: usize| {
                    column.as_ref().and_then(|column| column[row])
                };
                for (row, id) in frame_id.iter().enumerate() {
                    let place = [at(line, row), at(end_line, row), at(col, row), at(end_col, row)];
                    let opcode = opcode.as_ref().and_then(|column| column[row]);
                    frames.insert(*id, (path_str_id[row], func_str_id[row], place, opcode));
                }
            }
            Message::Raw { start_usec, samples, stack_frame_id, stack_parent, threads, .. } => {
                let roots = vec![None; stack_frame_id.len()];
                let parents = stack_parent.as_ref().unwrap_or(&roots);
                assert_eq!(parents.len(), stack_frame_id.len());
                // A stack is its own frame and then its parent's stack.
                let mut stacks: Vec<String> = Vec::new();
                for (node, (id, parent)) in stack_frame_id.iter().zip(parents).enumerate() {
                    let (path, function, place, opcode) = &frames[id];
                    let place = place[0].map(|line| {
                        json!([line, place[1].unwrap_or(-1), place[2].unwrap_or(-1), place[3].unwrap_or(-1)])
                    });
                    let mut stack = json!([strings[path], place, strings[function], opcode]).to_string();
                    if let Some(parent) = parent {
                        assert!(*parent < node, "a parent stands before its child");
                        stack = format!("{stack} {}", stacks[*parent]);
                    }
                    stacks.push(stack);
                }
                let mut count = 0;
                for thread in threads {
                    let key = (thread.interpreter_id, thread.thread_id.parse().expect("digits"));
                    let samples = read.threads.entry(key).or_default();
                    let empty = vec![None; thread.status.len()];
                    let nodes = thread.stack.as_ref().unwrap_or(&empty);
                    assert_eq!(
                        (nodes.len(), thread.ts_delta_usec.len()),
                        (thread.status.len(), thread.status.len())
                    );
                    let mut time = i128::from(*start_usec);
                    for ((delta, status), node) in thread.ts_delta_usec.iter().zip(&thread.status).zip(nodes)
                    {
                        time += i128::from(*delta);
                        let stack = node.map_or(String::new(), |node| stacks[node].clone());
                        samples.push((u64::try_from(time).expect("64 bits"), *status, stack));
                        count += 1;
                    }
                }
                assert_eq!(count, *samples);
            }
            Message::Agg {
                scope,
                start_usec,
                duration_usec,
                samples_total,
                samples_empty,
                frame_id,
                self_,
                cumulative,
                batch,
                ..
            } => {
                if heads.last() != Some(&(*batch, *start_usec, scope.clone())) {
                    heads.push((*batch, *start_usec, scope.clone()));
                    let totals = read.agg_totals.entry(scope.clone()).or_default();
                    totals.0 += samples_total;
                    totals.1 += samples_empty;
                    read.windows.push((*start_usec, *duration_usec));
                }
                let table = read.agg.entry(scope.clone()).or_default();
                for ((id, self_), cumulative) in frame_id.iter().zip(self_).zip(cumulative) {
                    let (path, function, place, _) = &frames[id];
                    let [line, end_line, col, end_col] = *place;
                    let key = match line {
                        None => (0, None, None, None),
                        Some(line) => (
                            line,
                            end_line.filter(|n| *n > 0),
                            col.filter(|n| *n >= 0),
                            end_col.filter(|n| *n >= 0),
                        ),
                    };
                    let key = (strings[path].clone(), strings[function].clone(), key.0, key.1, key.2, key.3);
                    let counts = table.entry(key).or_default();
                    counts.0 += self_;
                    counts.1 += cumulative;
                }
            }
            _ => {}
        }
        read.messages.push(message);
    }
    read
}

/// All sample times of a `raw` line, in no order.
pub fn read_raw_times(line: &[u8]) -> Vec<i128> {
    let Message::Raw { start_usec, threads, .. } = parse(line) else { panic!("no raw message") };
    let mut times = Vec::new();
    for thread in threads {
        let mut time = i128::from(start_usec);
        times.extend(thread.ts_delta_usec.iter().map(|delta| {
            time += i128::from(*delta);
            time
        }));
    }
    times
}

/// The table in CPython's own JSONL, and its total.
pub fn cpython_agg(jsonl: &str) -> (BTreeMap<AggKey, Counts>, u64) {
    let mut strings = HashMap::new();
    let mut frames: HashMap<u64, AggKey> = HashMap::new();
    let mut table = BTreeMap::new();
    let mut total = 0;
    for line in jsonl.lines() {
        let message: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let rows = |key: &str| message[key].as_array().cloned().unwrap_or_default();
        for row in rows("strings") {
            strings.insert(row["str_id"].as_u64(), row["value"].as_str().expect("a string").to_string());
        }
        for row in rows("frames") {
            let name = |key: &str| strings[&row[key].as_u64()].clone();
            let key = (
                name("path_str_id"),
                name("func_str_id"),
                row["line"].as_i64().expect("a line"),
                row["end_line"].as_i64(),
                row["col"].as_i64(),
                row["end_col"].as_i64(),
            );
            frames.insert(row["frame_id"].as_u64().expect("an id"), key);
        }
        for row in rows("entries") {
            let count = |key: &str| row[key].as_u64().expect("a count");
            table.insert(frames[&count("frame_id")].clone(), (count("self"), count("cumulative")));
        }
        if message["type"] == "end" {
            total = message["samples_total"].as_u64().expect("a total");
        }
    }
    (table, total)
}
