//! Irregularities in CPython's own JSON Lines that can be tolerated, counted for the report.

use std::hash::BuildHasher;

use rustc_hash::FxBuildHasher;

/// Counts oddities, line by line.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpythonOddities {
    not_utf8: u64,
    doubled: u64,
    /// A hash of the line before.
    last: Option<u64>,
}

impl CpythonOddities {
    /// Takes the next line that is a message of CPython's.
    pub fn line(&mut self, line: &[u8]) {
        self.not_utf8 += u64::from(std::str::from_utf8(line).is_err());
        let hash = Some(FxBuildHasher.hash_one(line.trim_ascii_end()));
        self.doubled += u64::from(hash == self.last);
        self.last = hash;
    }

    /// A sentence for each kind that occurred.
    pub fn notes(&self) -> Vec<String> {
        let counted = |count: u64, one: &str, more: &str| match count {
            0 => None,
            1 => Some(format!("1 line {one}")),
            count => Some(format!("{count} lines {more}")),
        };
        let kinds = [
            counted(self.not_utf8, "is not UTF-8; its bytes are kept", "are not UTF-8; their bytes are kept"),
            counted(self.doubled, "repeats the line before it", "repeat the line before them"),
        ];
        kinds.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_counted_and_said_once() {
        let mut oddities = CpythonOddities::default();
        assert!(oddities.notes().is_empty());
        for line in [&b"{}\n"[..], b"{}", b"{\"a\":\"\xff\"}", b"{}", b"{}"] {
            oddities.line(line);
        }
        let expected = ["1 line is not UTF-8; its bytes are kept", "2 lines repeat the line before them"];
        assert_eq!(oddities.notes(), expected);
    }
}
