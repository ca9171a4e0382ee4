//! Writes columns of integers as JSON text. They are most of a stream, so this is optimized by hand.

/// The text of 0 to 9999, each with a comma after it, and its length in the last byte: one load and one
/// store write a number.
static SHORT: [[u8; WORD]; 10_000] = short_numbers();

/// A null in the same form.
const NULL: &[u8; WORD] = b"null,\0\0\x05";

/// Bytes that are stored for a short number, whatever its length.
const WORD: usize = 8;

const fn short_numbers() -> [[u8; WORD]; 10_000] {
    let mut table = [[b','; WORD]; 10_000];
    let mut number = 0;
    while number < 10_000 {
        let length = 1 + (number > 9) as usize + (number > 99) as usize + (number > 999) as usize;
        let mut rest = number;
        let mut at = length;
        while at > 0 {
            at -= 1;
            table[number][at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        table[number][WORD - 1] = length as u8 + 1;
        number += 1;
    }
    table
}

/// Longest number with a comma.
const LONG: usize = 21;
/// Bytes that a column gathers before they go to the line: a few hundred numbers.
const ROOM: usize = 2048;

/// Runs up to this are written number by number.
const FEW: usize = 8;
/// Bytes that longer ones store at once.
const BLOCK: usize = 32;

/// A column in the making.
struct Column<'a> {
    out: &'a mut Vec<u8>,
    room: [u8; ROOM],
    len: usize,
}

impl<'a> Column<'a> {
    /// Starts a column at the end of `out`.
    fn open(out: &'a mut Vec<u8>) -> Self {
        out.push(b'[');
        Column { out, room: [0; ROOM], len: 0 }
    }

    /// A number and a comma.
    #[inline(always)]
    fn number(&mut self, value: u64) {
        match SHORT.get(value as usize) {
            Some(word) => self.word(word),
            None => self.long(value),
        }
    }

    /// A number and a comma out of the table.
    #[inline(always)]
    fn word(&mut self, word: &[u8; WORD]) {
        if self.len > ROOM - WORD {
            self.flush();
        }
        self.room[self.len..self.len + WORD].copy_from_slice(word);
        self.len += usize::from(word[WORD - 1]);
    }

    /// A number and a comma, `times` times.
    #[inline(always)]
    fn numbers(&mut self, value: u64, times: usize) {
        match SHORT.get(value as usize) {
            Some(word) => self.words(word, times),
            None => (0..times).for_each(|_| self.long(value)),
        }
    }

    /// A word, `times` times.
    #[inline(always)]
    fn words(&mut self, word: &[u8; WORD], times: usize) {
        if times > FEW {
            self.block(word, times);
        } else {
            (0..times).for_each(|_| self.word(word));
        }
    }

    /// The same, as many of them at once as fit into a block.
    fn block(&mut self, word: &[u8; WORD], times: usize) {
        let length = usize::from(word[WORD - 1]);
        let mut block = [0; BLOCK + WORD];
        let in_block = BLOCK / length;
        (0..in_block).for_each(|at| block[at * length..at * length + WORD].copy_from_slice(word));
        let mut left = times;
        while left > 0 {
            if self.len > ROOM - BLOCK {
                self.flush();
            }
            self.room[self.len..self.len + BLOCK].copy_from_slice(&block[..BLOCK]);
            let these = left.min(in_block);
            self.len += these * length;
            left -= these;
        }
    }

    /// A number with a minus before it, and a comma.
    fn negative(&mut self, magnitude: u64) {
        self.flush();
        self.out.push(b'-');
        self.number(magnitude);
    }

    #[inline(never)]
    fn long(&mut self, value: u64) {
        if self.len > ROOM - LONG {
            self.flush();
        }
        let mut room = [0; LONG];
        let digits = digits(value, &mut room);
        self.room[self.len..self.len + digits.len()].copy_from_slice(digits);
        self.len += digits.len();
    }

    #[inline(never)]
    fn flush(&mut self) {
        self.out.extend_from_slice(&self.room[..self.len]);
        self.len = 0;
    }

    /// Ends the column, with the closing bracket in place of the last comma.
    fn close(mut self) {
        self.flush();
        if self.out.last() == Some(&b',') {
            self.out.pop();
        }
        self.out.push(b']');
    }
}

/// The digits of a number above 0, and a comma.
fn digits(value: u64, room: &mut [u8; LONG]) -> &[u8] {
    let mut at = room.len() - 1;
    room[at] = b',';
    let mut rest = value;
    while rest > 0 {
        at -= 1;
        room[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    &room[at..]
}

/// Appends a number and a comma.
#[inline]
pub(crate) fn append(out: &mut Vec<u8>, value: u64) {
    match SHORT.get(value as usize) {
        Some(word) => append_word(out, word),
        None => out.extend_from_slice(digits(value, &mut [0; LONG])),
    }
}

/// Appends a number or a null, and a comma.
#[inline]
pub(crate) fn append_optional(out: &mut Vec<u8>, value: Option<i32>) {
    match value {
        None => append_word(out, NULL),
        Some(value @ 0..) => append(out, value as u64),
        Some(value) => {
            out.push(b'-');
            append(out, u64::from(value.unsigned_abs()));
        }
    }
}

#[inline]
fn append_word(out: &mut Vec<u8>, word: &[u8; WORD]) {
    let end = out.len() + usize::from(word[WORD - 1]);
    out.extend_from_slice(word);
    out.truncate(end);
}

/// Whether values that were appended are all null.
pub(crate) fn is_null(values: &[u8]) -> bool {
    values.iter().all(|byte| !byte.is_ascii_digit())
}

/// A column of numbers.
pub(crate) fn numbers(out: &mut Vec<u8>, values: impl Iterator<Item = u64>) {
    let mut column = Column::open(out);
    for value in values {
        column.number(value);
    }
    column.close();
}

/// A column of numbers, or nulls.
pub(crate) fn optional(out: &mut Vec<u8>, values: impl Iterator<Item = Option<i64>>) {
    let mut column = Column::open(out);
    for value in values {
        match value {
            None => column.word(NULL),
            Some(value @ 0..) => column.number(value as u64),
            Some(value) => column.negative(value.unsigned_abs()),
        }
    }
    column.close();
}

/// The differences of `times`, the first from `start`.
pub(crate) fn deltas(out: &mut Vec<u8>, start: u64, times: &[u64]) {
    let mut column = Column::open(out);
    let mut last = start;
    for &time in times {
        if time >= last {
            column.number(time - last);
        } else {
            column.negative(last - time);
        }
        last = time;
    }
    column.close();
}

/// Each value as many times as it says; `none` stands for null.
pub(crate) fn runs(out: &mut Vec<u8>, values: &[(u32, usize)], none: u32) {
    let mut column = Column::open(out);
    for &(value, times) in values {
        if value == none {
            column.words(NULL, times);
        } else {
            column.numbers(u64::from(value), times);
        }
    }
    column.close();
}

/// A column of bytes, which come in runs.
pub(crate) fn bytes(out: &mut Vec<u8>, values: &[u8]) {
    let mut column = Column::open(out);
    for run in values.chunk_by(|one, next| one == next) {
        column.numbers(u64::from(run[0]), run.len());
    }
    column.close();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn numbers_are_written_in_full() {
        let values = [0, 9, 10, 99, 100, 999, 1000, 9999, 10_000, 123_456_789, u64::MAX];
        assert_eq!(
            text(|out| numbers(out, values.into_iter())),
            serde_json::to_string(&values).expect("json")
        );
        assert_eq!(text(|out| numbers(out, [].into_iter())), "[]");
        for value in values {
            assert_eq!(text(|out| append(out, value)), format!("{value},"));
        }
    }

    #[test]
    fn a_clock_that_goes_back_gives_negative_differences() {
        assert_eq!(
            text(|out| deltas(out, 10, &[12, 5, u64::MAX, 0])),
            "[2,-7,18446744073709551610,-18446744073709551615]"
        );
    }

    #[test]
    fn runs_repeat_their_value() {
        assert_eq!(
            text(|out| runs(out, &[(7, 3), (u32::MAX, 2), (12, 0), (123, 1)], u32::MAX)),
            "[7,7,7,null,null,123]"
        );
    }

    #[test]
    fn runs_of_any_length_are_the_numbers_one_by_one() {
        for value in [0, 35, 999, 9999, 10_000, u32::MAX - 1] {
            for times in (0..40).chain([1000, 5000]) {
                let expected = serde_json::to_string(&vec![value; times]).expect("json");
                assert_eq!(text(|out| runs(out, &[(value, times)], u32::MAX)), expected);
            }
        }
        let nulls = serde_json::to_string(&vec![(); 1000]).expect("json");
        assert_eq!(text(|out| runs(out, &[(7, 1000)], 7)), nulls);
        let some = [Some(3), None, Some(-10_000), None];
        assert_eq!(text(|out| optional(out, some.into_iter())), serde_json::to_string(&some).expect("json"));
        let appended = text(|out| {
            let values = some.iter().map(|value| value.map(|value| value as i32));
            values.for_each(|value| append_optional(out, value));
        });
        assert_eq!(appended, "3,null,-10000,null,");
        assert!(!is_null(appended.as_bytes()) && is_null(b"null,null,") && is_null(b""));
        let status: Vec<u8> = (0..6000u32).map(|at| (at / 7 * at / 900) as u8).collect();
        assert_eq!(text(|out| bytes(out, &status)), serde_json::to_string(&status).expect("json"));
    }
}
