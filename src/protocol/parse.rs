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
        let (frame, next) = text.narrow()?;
        columns.stack_frame_id.push(frame);
        Some(next)
    })?;
    if text.key(b",\"stack_parent\":").is_some() {
        text.column(|text| {
            let (parent, next) = text.node()?;
            columns.stack_parent.push(parent);
            Some(next)
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

const ASCII_ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);

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
        self.number_then().map(|(number, _)| number)
    }

    /// A number as JSON has it, and the byte behind it (0 at the end). Most are short: eight bytes are looked at
    /// together.
    #[inline(always)]
    fn number_then(&mut self) -> Option<(u64, u8)> {
        let Some(bytes) = self.bytes.get(self.pos..).and_then(|rest| rest.first_chunk()) else {
            return self.long_number();
        };
        let word = u64::from_le_bytes(*bytes);
        let digits = word ^ ASCII_ZEROS;
        // The top bit of each byte that is no digit, up to the first one: only bytes behind that can be wrong.
        let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
        let count = others.trailing_zeros() / 8;
        if count == 8 {
            return self.long_number();
        }
        if count == 0 || count > 1 && digits & 0xff == 0 {
            return None;
        }
        self.pos += count as usize;
        // In front of the digits come zeros, so that there are eight; then pairs, fours and all are joined.
        let eight = digits << (64 - 8 * count);
        let pairs = (eight & 0x0f0f_0f0f_0f0f_0f0f).wrapping_mul(10 << 8 | 1) >> 8;
        let fours = (pairs & 0x00ff_00ff_00ff_00ff).wrapping_mul(100 << 16 | 1) >> 16;
        let number = (fours & 0x0000_ffff_0000_ffff).wrapping_mul(10_000 << 32 | 1) >> 32;
        Some((number, (word >> (8 * count)) as u8))
    }

    /// A number of any length, or near the end.
    #[cold]
    fn long_number(&mut self) -> Option<(u64, u8)> {
        let rest = self.bytes.get(self.pos..)?;
        let digits = &rest[..rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())];
        self.pos += digits.len();
        let number = match digits {
            [_] | [b'1'..=b'9', ..] => str::from_utf8(digits).ok()?.parse().ok()?,
            _ => return None,
        };
        Some((number, rest.get(digits.len()).copied().unwrap_or(0)))
    }

    #[inline(always)]
    fn narrow(&mut self) -> Option<(u32, u8)> {
        let (number, next) = self.number_then()?;
        Some((u32::try_from(number).ok()?, next))
    }

    #[inline(always)]
    fn node(&mut self) -> Option<(u32, u8)> {
        if self.bytes.get(self.pos) == Some(&b'n') {
            self.key(b"null")?;
            return Some((NULL, *self.bytes.get(self.pos)?));
        }
        self.narrow().filter(|(node, _)| *node != NULL)
    }

    /// A list of whatever `item` takes; it tells the byte behind that.
    #[inline(always)]
    fn column(&mut self, mut item: impl FnMut(&mut Self) -> Option<u8>) -> Option<()> {
        self.key(b"[")?;
        if self.key(b"]").is_some() {
            return Some(());
        }
        loop {
            let next = item(self)?;
            self.pos += 1;
            match next {
                b',' => {}
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    fn thread(&mut self, start: u64, thread: &mut ThreadColumns) -> Option<()> {
        self.key(b"{\"thread_id\":\"")?;
        thread.thread_id = self.number()?;
        self.key(b"\",\"interpreter_id\":")?;
        thread.interpreter_id = self.narrow()?.0;
        self.key(b",\"ts_delta_usec\":")?;
        let mut time = start;
        self.column(|text| {
            let is_back = text.bytes.get(text.pos) == Some(&b'-');
            text.pos += usize::from(is_back);
            let (delta, next) = text.number_then()?;
            time = if is_back { time.checked_sub(delta)? } else { time.checked_add(delta)? };
            thread.times_usec.push(time);
            Some(next)
        })?;
        self.key(b",\"status\":")?;
        self.column(|text| {
            let (status, next) = text.number_then()?;
            thread.status.push(u8::try_from(status).ok()?);
            Some(next)
        })?;
        if self.key(b",\"stack\":").is_some() {
            self.column(|text| {
                let (node, next) = text.node()?;
                thread.stack.push(node);
                Some(next)
            })?;
        } else {
            thread.stack.resize(thread.status.len(), NULL);
        }
        self.key(b"}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Option<(u64, usize)> {
        let mut text = Text { bytes: text.as_bytes(), pos: 0 };
        text.number_then().map(|(number, next)| {
            assert_eq!(next, text.bytes.get(text.pos).copied().unwrap_or(0));
            (number, text.pos)
        })
    }

    #[test]
    fn numbers_of_every_length_are_read_up_to_what_follows() {
        let mut value = 7u64;
        loop {
            let digits = value.to_string();
            for behind in ["", ",", "]", ",12345678", "/0000000", ":999999999", "\u{80}\u{80}\u{80}\u{80}"] {
                assert_eq!(number(&format!("{digits}{behind}")), Some((value, digits.len())), "{behind}");
            }
            let Some(next) = value.checked_mul(10) else { break };
            value = next + value % 7;
        }
        assert_eq!(number("18446744073709551615"), Some((u64::MAX, 20)));
    }

    #[test]
    fn what_is_no_number_of_json_is_none() {
        for text in
            ["", "-1", "+1", " 1", "01", "00", "012345678,", "01,3456789", "a", "18446744073709551616"]
        {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(number("0,2345678"), Some((0, 1)));
        assert_eq!(number("1e9"), Some((1, 1)));
    }
}
