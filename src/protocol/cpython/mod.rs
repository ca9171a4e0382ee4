//! CPython's own JSON Lines: `v` 0 as 3.15 releases write them, and `v` 1 as they were proposed.
//!
//! Counts by frame in one final table, without samples; ids are those of the whole run.

mod decode;
mod encode;
mod oddities;
mod rules;

use serde::{Deserialize, Serialize};

pub use decode::{CpythonMessage, decode_cpython};
pub use encode::CpythonEncoder;
pub(crate) use oddities::CpythonOddities;
pub(crate) use rules::CpythonRules;

/// A string of CPython's table.
#[derive(Clone, Debug, Serialize)]
pub struct CpythonString<'a> {
    /// From 0.
    pub str_id: u32,
    /// The text, U+FFFD in place of bytes that are not UTF-8.
    pub value: &'a str,
}

/// A frame of CPython's table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CpythonFrame {
    /// From 0, in `v` 1 from 1.
    pub frame_id: u32,
    /// File name.
    pub path_str_id: u32,
    /// Function name.
    pub func_str_id: u32,
    /// 0 where the frame has no place.
    #[serde(default)]
    pub line: i32,
    /// Left out where not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_line: Option<i32>,
    /// Left out where not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub col: Option<i32>,
    /// Left out where not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_col: Option<i32>,
    /// How `v` 1 says that the frame has no place.
    #[serde(default, skip_serializing)]
    pub synthetic: bool,
}

impl CpythonFrame {
    /// Whether the frame has no place in a source: version 0 says so by line 0 and nothing else.
    pub fn is_synthetic(&self) -> bool {
        self.synthetic
            || self.line == 0 && self.end_line.is_none() && self.col.is_none() && self.end_col.is_none()
    }
}

/// Counts of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpythonEntry {
    /// The frame.
    pub frame_id: u32,
    /// Samples with it innermost.
    #[serde(rename = "self")]
    pub self_: u64,
    /// Samples with it anywhere.
    pub cumulative: u64,
}
