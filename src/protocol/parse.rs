//! Reads `raw` bodies in the shape that this crate writes, by hand, since their columns of integers
//! are most of a stream. Any other shape is left to the general parser.

use crate::protocol::decode::{RawColumns, ThreadColumns};
use crate::protocol::encode::NULL;

/// Reads a line from behind its envelope to its end. `None` where it is not in our own shape, with
/// `columns` left in any state.
pub(super) fn raw(bytes: &[u8], columns: &mut RawColumns) -> Option<()> {
    let mut text = Text { bytes, pos: 0 };
    columns.clear();
    text.key(b"\"batch\":")?;
    columns.batch = text.number()?;
    text.key(b",\"start_usec\":")?;
    columns.start_usec = text.number()?;
    text.key(b",\"samples\":")?;
    columns.samples = text.number()?;
    text.key(b",\"stack_frame_id\":")?;
    text.column(|text| {
        columns.stack_frame_id.push(text.narrow()?);
        Some(())
    })?;
    if text.key(b",\"stack_parent\":").is_some() {
        text.column(|text| {
            columns.stack_parent.push(text.node()?);
            Some(())
        })?;
    } else {
        columns.stack_parent.resize(columns.stack_frame_id.len(), NULL);
    }
    text.key(b",\"threads\":[")?;
    if text.key(b"]").is_none() {
        let start = columns.start_usec;
        loop {
            let thread = columns.next_thread();
            text.thread(start, thread)?;
            if text.key(b",").is_none() {
                break;
            }
        }
        text.key(b"]")?;
    }
    text.key(b"}")?;
    text.bytes[text.pos..].iter().all(u8::is_ascii_whitespace).then_some(())
}

struct Text<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl Text<'_> {
    #[inline]
    fn key(&mut self, key: &[u8]) -> Option<()> {
        let there = self.bytes.get(self.pos..)?.starts_with(key);
        there.then(|| self.pos += key.len())
    }

    #[inline(always)]
    fn number(&mut self) -> Option<u64> {
        let start = self.pos;
        let mut value = 0u64;
        while let Some(digit) =
            self.bytes.get(self.pos).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10)
        {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.pos += 1;
        }
        match self.pos - start {
            0 => None,
            1 => Some(value),
            // No leading zero; 19 digits always fit, and a longer number is the general parser's.
            2..=19 if self.bytes[start] != b'0' => Some(value),
            _ => None,
        }
    }

    #[inline(always)]
    fn narrow(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    #[inline(always)]
    fn node(&mut self) -> Option<u32> {
        if self.bytes.get(self.pos) == Some(&b'n') {
            self.key(b"null")?;
            return Some(NULL);
        }
        self.narrow().filter(|node| *node != NULL)
    }

    #[inline(always)]
    fn column(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.key(b"[")?;
        if self.key(b"]").is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            match *self.bytes.get(self.pos)? {
                b',' => self.pos += 1,
                b']' => {
                    self.pos += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    fn thread(&mut self, start: u64, thread: &mut ThreadColumns) -> Option<()> {
        self.key(b"{\"thread_id\":\"")?;
        thread.thread_id = self.number()?;
        self.key(b"\",\"interpreter_id\":")?;
        thread.interpreter_id = self.narrow()?;
        self.key(b",\"ts_delta_usec\":")?;
        let mut time = start;
        self.column(|text| {
            time = if text.bytes.get(text.pos) == Some(&b'-') {
                text.pos += 1;
                time.checked_sub(text.number()?)?
            } else {
                time.checked_add(text.number()?)?
            };
            thread.times_usec.push(time);
            Some(())
        })?;
        self.key(b",\"status\":")?;
        self.column(|text| {
            thread.status.push(u8::try_from(text.number()?).ok()?);
            Some(())
        })?;
        if self.key(b",\"stack\":").is_some() {
            self.column(|text| {
                thread.stack.push(text.node()?);
                Some(())
            })?;
        } else {
            thread.stack.resize(thread.status.len(), NULL);
        }
        self.key(b"}")
    }
}
