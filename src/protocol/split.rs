//! Tables into messages that fit the line limit.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::model::{Counts, Frame};
use crate::protocol::columns::digits;
use crate::protocol::encode::write_json;
use crate::protocol::message::{Agg, FrameDef, StrDef};

/// Puts rows into messages as long as they fit.
struct Fill {
    limit: usize,
    fixed: usize,
    used: usize,
    rows: usize,
}

impl Fill {
    /// A message may have `limit` bytes, and takes `fixed` without any row.
    fn new(limit: usize, fixed: usize) -> Self {
        Fill { limit, fixed, used: fixed, rows: 0 }
    }

    /// Whether a row of `bytes` starts another message.
    fn starts_another(&mut self, bytes: usize) -> bool {
        let another = self.rows > 0 && self.used + bytes > self.limit;
        if another {
            self.used = self.fixed;
            self.rows = 0;
        }
        self.used += bytes;
        self.rows += 1;
        another
    }
}

/// Bytes of `body` as JSON.
fn fixed_len(body: &impl serde::Serialize) -> usize {
    let mut text = Vec::new();
    write_json(&mut text, body);
    text.len()
}

/// Defines strings in messages of at most `limit` bytes; only a single string longer than that goes
/// over.
pub(crate) fn str_defs<'a>(
    batch: u64,
    strings: impl Iterator<Item = (u32, &'a [u8])>,
    limit: usize,
) -> Vec<StrDef> {
    let new = || StrDef { batch, ..StrDef::default() };
    let mut fill = Fill::new(limit, fixed_len(&StrDef { base64: Some(BTreeMap::new()), ..new() }));
    let mut messages = vec![new()];
    let mut text = Vec::new();
    for (id, bytes) in strings {
        let value = String::from_utf8_lossy(bytes);
        let base64 = matches!(value, std::borrow::Cow::Owned(_)).then(|| STANDARD.encode(bytes));
        text.clear();
        write_json(&mut text, &value);
        let id_len = digits(u64::from(id));
        let row = id_len + text.len() + 2 + base64.as_ref().map_or(0, |base64| id_len + base64.len() + 6);
        if fill.starts_another(row) {
            messages.push(new());
        }
        let message = messages.last_mut().expect("never empty");
        message.str_id.push(id);
        message.value.push(value.into_owned());
        if let Some(base64) = base64 {
            message.base64.get_or_insert_default().insert(id, base64);
        }
    }
    messages.retain(|message| !message.str_id.is_empty());
    messages
}

/// Defines frames in messages of at most `limit` bytes.
pub(crate) fn frame_defs(
    batch: u64,
    frames: impl Iterator<Item = (u32, Frame)>,
    limit: usize,
) -> Vec<FrameDef> {
    let new = || FrameDef {
        batch,
        line: Some(Vec::new()),
        end_line: Some(Vec::new()),
        col: Some(Vec::new()),
        end_col: Some(Vec::new()),
        opcode: Some(Vec::new()),
        ..FrameDef::default()
    };
    let names = r#","line":[],"end_line":[],"col":[],"end_col":[],"opcode":[]"#.len();
    let mut fill = Fill::new(limit, fixed_len(&new()) + names);
    let mut messages = vec![new()];
    for (id, frame) in frames {
        let location = frame.location;
        let numbers =
            [location.line, location.end_line, location.col, location.end_col, frame.opcode.map(i32::from)];
        let signed = |value: &Option<i32>| match value {
            None => 5,
            Some(value) => digits(u64::from(value.unsigned_abs())) + 1 + usize::from(*value < 0),
        };
        let ids = [id, frame.path, frame.function];
        let row = ids.iter().map(|id| digits(u64::from(*id)) + 1).sum::<usize>()
            + numbers.iter().map(signed).sum::<usize>();
        if fill.starts_another(row) {
            messages.push(new());
        }
        let message = messages.last_mut().expect("never empty");
        message.frame_id.push(id);
        message.path_str_id.push(frame.path);
        message.func_str_id.push(frame.function);
        let [line, end_line, col, end_col, _] = numbers;
        let columns = [&mut message.line, &mut message.end_line, &mut message.col, &mut message.end_col];
        for (column, value) in columns.into_iter().zip([line, end_line, col, end_col]) {
            column.get_or_insert_default().push(value);
        }
        message.opcode.get_or_insert_default().push(frame.opcode);
    }
    messages.retain(|message| !message.frame_id.is_empty());
    messages
}

/// A table in messages of at most `limit` bytes, each with the same head. At least one.
pub(crate) fn aggs(head: &Agg, rows: &[(u32, Counts)], limit: usize) -> Vec<Agg> {
    let mut fill = Fill::new(limit, fixed_len(head));
    let mut messages = vec![head.clone()];
    for &(frame, Counts { self_, cumulative }) in rows {
        let row = digits(u64::from(frame)) + digits(self_) + digits(cumulative) + 3;
        if fill.starts_another(row) {
            messages.push(head.clone());
        }
        let message = messages.last_mut().expect("never empty");
        message.frame_id.push(frame);
        message.self_.push(self_);
        message.cumulative.push(cumulative);
    }
    messages
}
