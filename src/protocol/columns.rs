//! Columns of integers as JSON text. This is most of what a stream holds, so it is made by hand.

/// The digits of 0 to 9999, left-aligned, and how many there are.
static SHORT: [([u8; 4], u8); 10_000] = short_numbers();

const fn short_numbers() -> [([u8; 4], u8); 10_000] {
    let mut table = [([b'0'; 4], 1); 10_000];
    let mut number = 0;
    while number < 10_000 {
        let length = if number < 10 {
            1
        } else if number < 100 {
            2
        } else if number < 1000 {
            3
        } else {
            4
        };
        let mut digits = [b'0'; 4];
        let mut rest = number;
        let mut at = length;
        while at > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        table[number] = (digits, length as u8);
        number += 1;
    }
    table
}

/// Longest number with its sign and a comma.
const NUMBER_MAX: usize = 22;

/// Writes numbers into room that was made for a whole column at once.
pub(crate) struct Column<'a> {
    out: &'a mut Vec<u8>,
    len: usize,
}

impl<'a> Column<'a> {
    /// Makes room for `numbers` numbers at the end of `out` and writes the opening bracket.
    pub fn open(out: &'a mut Vec<u8>, numbers: usize) -> Self {
        let len = out.len();
        out.resize(len + numbers * NUMBER_MAX + 8, 0);
        out[len] = b'[';
        Column { out, len: len + 1 }
    }

    /// A number and a comma.
    #[inline(always)]
    pub fn number(&mut self, value: u64) {
        if value < 10_000 {
            let (digits, length) = SHORT[value as usize];
            let room = &mut self.out[self.len..self.len + 5];
            room[..4].copy_from_slice(&digits);
            room[length as usize] = b',';
            self.len += length as usize + 1;
        } else {
            self.long(value);
        }
    }

    /// A number with a minus before it, and a comma.
    pub fn negative(&mut self, magnitude: u64) {
        self.out[self.len] = b'-';
        self.len += 1;
        self.number(magnitude);
    }

    fn long(&mut self, value: u64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut rest = value;
        while rest > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let digits = &digits[at..];
        self.out[self.len..self.len + digits.len()].copy_from_slice(digits);
        self.out[self.len + digits.len()] = b',';
        self.len += digits.len() + 1;
    }

    pub fn null(&mut self) {
        self.out[self.len..self.len + 5].copy_from_slice(b"null,");
        self.len += 5;
    }

    /// The number (or null) that was written last, at `from`, `times` times more.
    fn again(&mut self, from: usize, times: usize) {
        let length = self.len - from;
        // Each copy doubles what there is to copy from.
        let end = self.len + length * times;
        while self.len < end {
            let piece = (self.len - from).min(end - self.len);
            self.out.copy_within(from..from + piece, self.len);
            self.len += piece;
        }
    }

    /// Ends the column, with the closing bracket in place of the last comma.
    pub fn close(self) {
        let Column { out, mut len } = self;
        if out[len - 1] == b',' {
            len -= 1;
        }
        out[len] = b']';
        out.truncate(len + 1);
    }
}

/// A column of numbers.
pub(crate) fn numbers(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64>) {
    let mut column = Column::open(out, values.len());
    for value in values {
        column.number(value);
    }
    column.close();
}

/// A column of numbers in which `none` stands for null.
pub(crate) fn numbers_or_null(out: &mut Vec<u8>, values: &[u32], none: u32) {
    let mut column = Column::open(out, values.len());
    for &value in values {
        if value == none {
            column.null();
        } else {
            column.number(u64::from(value));
        }
    }
    column.close();
}

/// The differences of `times`, the first from `start`.
pub(crate) fn deltas(out: &mut Vec<u8>, start: u64, times: &[u64]) {
    let mut column = Column::open(out, times.len());
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
    let total = values.iter().map(|(_, times)| times).sum();
    let mut column = Column::open(out, total);
    for &(value, times) in values {
        if times == 0 {
            continue;
        }
        let from = column.len;
        if value == none {
            column.null();
        } else {
            column.number(u64::from(value));
        }
        column.again(from, times - 1);
    }
    column.close();
}

/// Digits of a number.
pub(crate) fn digits(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
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
            assert_eq!(digits(value), value.to_string().len());
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
}
