//! Splits tables into messages that fit the line limit. Each row is written once, as text, into the columns of the
//! message that has room for it.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::counts::Counts;
use crate::model::Frame;
use crate::protocol::encode::write_json;
use crate::protocol::json::write_ints;
use crate::protocol::message::{Agg, FrameDef, StrDef};

/// The columns of a message in the making, with a comma after each value.
struct Columns<const N: usize> {
    /// What they may take together.
    room: usize,
    text: [Vec<u8>; N],
    rows: usize,
}

impl<const N: usize> Columns<N> {
    /// Of messages of at most `limit` bytes, of which all but the rows take `fixed`.
    fn new(limit: usize, fixed: usize) -> Self {
        Columns { room: limit.saturating_sub(fixed), text: [const { Vec::new() }; N], rows: 0 }
    }

    /// Adds the row that `write` appends. Where it doesn't fit any more it begins another message, and this
    /// returns the columns before it. A row that is alone always fits.
    fn row(&mut self, write: impl FnOnce(&mut [Vec<u8>; N])) -> Option<[Vec<u8>; N]> {
        let starts = self.text.each_ref().map(Vec::len);
        write(&mut self.text);
        self.rows += 1;
        if self.rows == 1 || self.text.iter().map(Vec::len).sum::<usize>() <= self.room {
            return None;
        }
        let next = std::array::from_fn(|at| self.text[at].split_off(starts[at]));
        self.rows = 1;
        Some(std::mem::replace(&mut self.text, next))
    }

    /// The columns of the last message, unless there is none.
    fn last(self) -> Option<[Vec<u8>; N]> {
        (self.rows > 0).then_some(self.text)
    }
}

/// Appends `,"name":` and a column in these brackets.
fn column(body: &mut Vec<u8>, name: &str, [open, close]: [u8; 2], values: &[u8]) {
    body.extend_from_slice(b",\"");
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(b"\":");
    body.push(open);
    body.extend_from_slice(values.strip_suffix(b",").unwrap_or(values));
    body.push(close);
}

/// Bytes of `body` as JSON.
fn json_len(body: &impl serde::Serialize) -> usize {
    let mut text = Vec::new();
    write_json(&mut text, body);
    text.len()
}

fn batch_of(batch: u64) -> Vec<u8> {
    format!("{{\"batch\":{batch}").into_bytes()
}

/// Bodies of `str_def` of at most `limit` bytes; only a single string longer than that goes over. Ids ascend.
pub(crate) fn str_defs<'a>(
    batch: u64,
    strings: impl Iterator<Item = (u32, &'a [u8])>,
    limit: usize,
) -> Vec<Vec<u8>> {
    let none = StrDef { batch, base64: Some(Default::default()), ..StrDef::default() };
    let body = |[ids, values, base64]: [Vec<u8>; 3]| {
        let mut body = batch_of(batch);
        column(&mut body, "str_id", *b"[]", &ids);
        column(&mut body, "value", *b"[]", &values);
        if !base64.is_empty() {
            column(&mut body, "base64", *b"{}", &base64);
        }
        body.push(b'}');
        body
    };
    let mut columns = Columns::new(limit, json_len(&none));
    let mut bodies = Vec::new();
    for (id, bytes) in strings {
        let full = columns.row(|[ids, values, base64]| {
            write_ints::append(ids, u64::from(id));
            let value = String::from_utf8_lossy(bytes);
            write_json(values, &value);
            values.push(b',');
            if let Cow::Owned(_) = value {
                base64.extend_from_slice(format!("\"{id}\":\"{}\",", STANDARD.encode(bytes)).as_bytes());
            }
        });
        bodies.extend(full.map(body));
    }
    bodies.extend(columns.last().map(body));
    bodies
}

/// Bodies of `frame_def` of at most `limit` bytes.
pub(crate) fn frame_defs(
    batch: u64,
    frames: impl Iterator<Item = (u32, Frame)>,
    limit: usize,
) -> Vec<Vec<u8>> {
    const IDS: [&str; 3] = ["frame_id", "path_str_id", "func_str_id"];
    // Left out where all values are null.
    const PLACES: [&str; 5] = ["line", "end_line", "col", "end_col", "opcode"];
    let names = PLACES.map(|name| name.len() + r#","":[]"#.len()).iter().sum::<usize>();
    let none = FrameDef { batch, ..FrameDef::default() };
    let body = |text: [Vec<u8>; 8]| {
        let mut body = batch_of(batch);
        let (ids, places) = text.split_at(IDS.len());
        for (name, values) in IDS.into_iter().zip(ids) {
            column(&mut body, name, *b"[]", values);
        }
        for (name, values) in PLACES.into_iter().zip(places) {
            if !write_ints::is_null(values) {
                column(&mut body, name, *b"[]", values);
            }
        }
        body.push(b'}');
        body
    };
    let mut columns = Columns::new(limit, json_len(&none) + names);
    let mut bodies = Vec::new();
    for (id, frame) in frames {
        let location = frame.location;
        let full = columns.row(|[ids, paths, functions, places @ ..]: &mut [_; 8]| {
            write_ints::append(ids, u64::from(id));
            write_ints::append(paths, u64::from(frame.path));
            write_ints::append(functions, u64::from(frame.function));
            let values: [_; 5] = [
                location.line,
                location.end_line,
                location.col,
                location.end_col,
                frame.opcode.map(i32::from),
            ];
            for (column, value) in places.iter_mut().zip(values) {
                write_ints::append_optional(column, value);
            }
        });
        bodies.extend(full.map(body));
    }
    bodies.extend(columns.last().map(body));
    bodies
}

/// Bodies of `agg` of at most `limit` bytes, each with the same head. At least one.
pub(crate) fn aggs(head: &Agg, rows: &[(u32, Counts)], limit: usize) -> Vec<Vec<u8>> {
    const COLUMNS: &[u8] = br#","frame_id":[],"self":[],"cumulative":[]}"#;
    let mut text = Vec::new();
    write_json(&mut text, head);
    let mut columns = Columns::new(limit, text.len());
    debug_assert!(text.ends_with(COLUMNS));
    text.truncate(text.len() - COLUMNS.len());
    let body = |[frames, self_, cumulative]: [Vec<u8>; 3]| {
        let mut body = text.clone();
        column(&mut body, "frame_id", *b"[]", &frames);
        column(&mut body, "self", *b"[]", &self_);
        column(&mut body, "cumulative", *b"[]", &cumulative);
        body.push(b'}');
        body
    };
    let mut bodies = Vec::new();
    for (frame, counts) in rows {
        let full = columns.row(|[frames, self_, cumulative]| {
            write_ints::append(frames, u64::from(*frame));
            write_ints::append(self_, counts.self_);
            write_ints::append(cumulative, counts.cumulative);
        });
        bodies.extend(full.map(body));
    }
    // An empty table is a message, too.
    bodies.push(body(columns.text));
    bodies
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::model::Location;

    /// The messages that these bodies are: each is the text that serde makes of it, and within the limit.
    fn messages<M: Serialize + DeserializeOwned>(bodies: &[Vec<u8>], limit: usize) -> Vec<M> {
        bodies
            .iter()
            .map(|body| {
                assert!(body.len() <= limit, "{} bytes", body.len());
                let message: M = serde_json::from_slice(body).expect("a message");
                let text = serde_json::to_string(&message).expect("json");
                assert_eq!(String::from_utf8_lossy(body), text);
                message
            })
            .collect()
    }

    fn column_of<T: Clone>(column: &Option<Vec<Option<T>>>, rows: usize) -> Vec<Option<T>> {
        column.clone().unwrap_or_else(|| vec![None; rows])
    }

    fn number() -> impl Strategy<Value = Option<i32>> {
        prop::option::of(prop_oneof![0..20_000, any::<i32>()])
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let location = (number(), number(), number(), number())
            .prop_map(|(line, end_line, col, end_col)| Location { line, end_line, col, end_col });
        (any::<u32>(), 0u32..20_000, location, prop::option::of(any::<u8>()), any::<bool>()).prop_map(
            |(path, function, location, opcode, is_bare)| Frame {
                path,
                function,
                location: if is_bare { Location::default() } else { location },
                opcode,
            },
        )
    }

    proptest! {
        #[test]
        fn strings_come_back_from_their_messages(
            strings in prop::collection::vec(prop_oneof![
                3 => "\\PC{0,20}".prop_map(String::into_bytes),
                1 => prop::collection::vec(any::<u8>(), 0..20),
            ], 0..60),
            limit in 400usize..2000,
        ) {
            let rows = (9_990..).zip(strings.iter().map(Vec::as_slice));
            let mut found = Vec::new();
            for message in messages::<StrDef>(&str_defs(7, rows.clone(), limit), limit) {
                prop_assert_eq!(message.batch, 7);
                let base64 = message.base64.unwrap_or_default();
                for (id, value) in message.str_id.iter().zip(message.value) {
                    let bytes = match base64.get(id) {
                        Some(text) => STANDARD.decode(text).expect("base64"),
                        None => value.clone().into_bytes(),
                    };
                    prop_assert_eq!(&value, &String::from_utf8_lossy(&bytes));
                    found.push((*id, bytes));
                }
            }
            prop_assert_eq!(found, rows.map(|(id, bytes)| (id, bytes.to_vec())).collect::<Vec<_>>());
        }

        #[test]
        fn frames_come_back_from_their_messages(
            frames in prop::collection::vec(frame(), 0..60),
            limit in 400usize..2000,
        ) {
            let rows = (9_990..).zip(frames.iter().copied());
            let mut found = Vec::new();
            for message in messages::<FrameDef>(&frame_defs(7, rows.clone(), limit), limit) {
                let count = message.frame_id.len();
                let places = [&message.line, &message.end_line, &message.col, &message.end_col];
                let places = places.map(|column| column_of(column, count));
                let opcode = column_of(&message.opcode, count);
                for at in 0..count {
                    let [line, end_line, col, end_col] = places.each_ref().map(|column| column[at]);
                    let location = Location { line, end_line, col, end_col };
                    let (path, function) = (message.path_str_id[at], message.func_str_id[at]);
                    found.push((message.frame_id[at], Frame { path, function, location, opcode: opcode[at] }));
                }
            }
            prop_assert_eq!(found, rows.collect::<Vec<_>>());
        }

        #[test]
        fn counts_come_back_from_their_messages(
            rows in prop::collection::vec((any::<u32>(), 0u64..20_000, any::<u64>()), 0..90),
            limit in 400usize..2000,
        ) {
            let rows: Vec<_> =
                rows.into_iter().map(|(id, self_, cumulative)| (id, Counts { self_, cumulative })).collect();
            let head = Agg {
                batch: 7,
                kind: "frame".to_string(),
                scope: "window".to_string(),
                start_usec: Some(-5),
                samples_total: 3,
                samples_empty: Some(0),
                ..Agg::default()
            };
            let mut found = Vec::new();
            let bodies = aggs(&head, &rows, limit);
            prop_assert!(!bodies.is_empty());
            for message in messages::<Agg>(&bodies, limit) {
                let counts = message.self_.iter().zip(&message.cumulative);
                let counts = counts.map(|(self_, cumulative)| Counts { self_: *self_, cumulative: *cumulative });
                found.extend(message.frame_id.iter().copied().zip(counts));
                let empty = Agg { frame_id: vec![], self_: vec![], cumulative: vec![], ..message };
                prop_assert_eq!(&empty, &head);
            }
            prop_assert_eq!(found, rows);
        }
    }

    #[test]
    fn messages_are_full() {
        let row = (100, Counts { self_: 1000, cumulative: 2000 });
        let one = aggs(&Agg::default(), &[row], 0)[0].len();
        let bodies = aggs(&Agg::default(), &[row; 100], one + 9 * 14);
        // Nine more rows, but the commas of the last are counted, too.
        assert_eq!(bodies.iter().map(Vec::len).max(), Some(one + 8 * 14));
    }
}
