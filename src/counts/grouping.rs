//! Which frames are counted as one, by the rules of CPython's own tables.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use crate::counts::{By, HIDDEN};
use crate::model::{Frame, Tables};

/// Files whose frames belong to the profiler itself, by their ending.
const INTERNAL: &[u8] = b"_sync_coordinator.py";

/// Whether frames of this file belong to the profiler itself, which CPython does not count.
pub(crate) fn is_internal(path: &[u8]) -> bool {
    path.ends_with(INTERNAL)
}

/// For each frame the lowest-numbered frame that CPython's JSONL doesn't tell from it, since only the
/// opcode differs, or what it calls absent, or bytes that are not UTF-8; [`HIDDEN`] for the
/// profiler's own frames.
pub(crate) fn groups(by: By, tables: &Tables) -> Vec<u32> {
    let mut first_string: FxHashMap<Cow<'_, str>, u32> = FxHashMap::default();
    // For each string the first that reads the same, and whether it is a file of the profiler's own.
    let strings: Vec<(u32, bool)> = (0..tables.strings.len() as u32)
        .map(|id| {
            let bytes = tables.strings.get(id).unwrap_or_default();
            (*first_string.entry(String::from_utf8_lossy(bytes)).or_insert(id), is_internal(bytes))
        })
        .collect();
    let mut first_frame: FxHashMap<([u32; 2], [i32; 4]), u32> = FxHashMap::default();
    let mut group = Vec::with_capacity(tables.frames.len());
    for (index, frame) in (0..).zip(&tables.frames) {
        let Frame { path, function, location, .. } = *frame;
        let names = (strings.get(path as usize), strings.get(function as usize));
        let (Some((path, false)), Some((function, _))) = names else {
            // The profiler's own, or one that no sample uses.
            group.push(HIDDEN);
            continue;
        };
        let names = [*path, if by == By::File { u32::MAX } else { *function }];
        let place = match (by, location.line) {
            (By::Frame, Some(line)) => {
                let known = |value: Option<i32>, absent: i32| value.unwrap_or(absent).max(absent);
                [line, known(location.end_line, 0), known(location.col, -1), known(location.end_col, -1)]
            }
            (By::Frame, None) => [0, 0, -1, -1],
            (By::Function | By::File, _) => [0; 4],
        };
        group.push(*first_frame.entry((names, place)).or_insert(index));
    }
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Location;

    #[test]
    fn frames_that_a_table_does_not_tell_apart_count_as_the_first_of_them() {
        let mut tables = Tables::default();
        for name in [&b"a.py"[..], b"f", b"g", b"a.py", b"\xff", b"\xfe", b"x/_sync_coordinator.py"] {
            tables.strings.push(name);
        }
        let at = |line: i32| Location { line: Some(line), ..Location::default() };
        let none = Location::default();
        let wide = Location { end_line: Some(-1), col: Some(-7), end_col: Some(-1), ..at(3) };
        let rows = [
            // path, function, location, by frame, by function, by file
            (0, 1, at(3), 0, 0, 0),
            (3, 1, at(3), 0, 0, 0),
            (0, 1, at(4), 2, 0, 0),
            (0, 2, at(3), 3, 3, 0),
            (0, 1, wide, 0, 0, 0),
            // No line is the line 0.
            (0, 1, none, 5, 0, 0),
            (0, 1, at(0), 5, 0, 0),
            // Bytes that are not UTF-8 are all alike.
            (4, 4, at(1), 7, 7, 7),
            (5, 5, at(1), 7, 7, 7),
            (6, 1, at(1), HIDDEN, HIDDEN, HIDDEN),
            (99, 1, at(1), HIDDEN, HIDDEN, HIDDEN),
        ];
        for (path, function, location, ..) in rows {
            tables.frames.push(Frame { path, function, location, opcode: None });
        }
        assert_eq!(groups(By::Frame, &tables), rows.map(|row| row.3));
        assert_eq!(groups(By::Function, &tables), rows.map(|row| row.4));
        assert_eq!(groups(By::File, &tables), rows.map(|row| row.5));
    }
}
