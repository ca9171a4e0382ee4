//! The statistics block that may stand right before the footer.
//!
//! It is found from its end: signature, version and size are its last 16 bytes. Released files have
//! 56 bytes, files of the alphas 32; a larger size adds fields in front of the ones known here.

use crate::error::{Error, Position, Result};
use crate::format::layout::extension::{MARK, Mark};
use crate::format::layout::header::ByteOrder;
use crate::model::Statistics;

const SIGNATURE: &[u8; 8] = b"TACHSTAT";
const SIZE: u64 = 56;
const OLD_SIZE: u64 = 32;
const HAS_ERROR_RATE: u32 = 1;
const HAS_MISSED: u32 = 2;

/// What stands before the footer.
pub(crate) enum StatsBlock {
    Nothing,
    Statistics(Statistics),
    /// A block that cannot be understood, and why.
    PassedOver(String),
    /// A block whose numbers cannot have been measured.
    Unsound(Error),
}

impl StatsBlock {
    /// Bytes that the block takes of a tail of `length`, as far as it says; 0 without one.
    pub fn len(&self, tail: &[u8], order: ByteOrder) -> usize {
        let size = match self {
            StatsBlock::Nothing => None,
            _ => Mark::read(tail, order).and_then(|mark| usize::try_from(mark.size).ok()),
        };
        size.filter(|size| (MARK..=tail.len()).contains(size)).unwrap_or(0)
    }
}

/// Looks for a block at the end of `tail`, the bytes from the frame table's start to the footer,
/// which stands at byte `footer_at` of the input. `free` is how many of the last of these bytes belong to no frame;
/// only a block of the old size asks.
pub(crate) fn read(
    tail: &[u8],
    free: impl FnOnce() -> Result<u64>,
    order: ByteOrder,
    footer_at: u64,
) -> Result<StatsBlock> {
    let Some(mark) = Mark::read(tail, order).filter(|mark| mark.signature == *SIGNATURE) else {
        return Ok(StatsBlock::Nothing);
    };
    let Mark { version, size, .. } = mark;
    if version != 1 {
        return Ok(StatsBlock::PassedOver(format!("it has version {version}")));
    }
    if size != OLD_SIZE && (size < SIZE || !size.is_multiple_of(8)) {
        return Ok(StatsBlock::PassedOver(format!("it gives its size as {size} bytes")));
    }
    if size > tail.len() as u64 {
        return Ok(StatsBlock::PassedOver(format!("it gives its size as {size} bytes, which are not there")));
    }
    let statistics = if size == OLD_SIZE {
        if free()? == SIZE {
            return Ok(StatsBlock::PassedOver(format!("it gives its size as {size} bytes, but has {SIZE}")));
        }
        let at = tail.len() - OLD_SIZE as usize;
        Statistics {
            duration_sec: order.f64(tail, at),
            sample_rate: order.f64(tail, at + 8),
            error_rate: None,
            missed_samples: None,
        }
    } else {
        let at = tail.len() - SIZE as usize;
        let present = order.u32(tail, at + 32);
        let optional = |bit, at| (present & bit != 0).then(|| order.f64(tail, at));
        Statistics {
            duration_sec: order.f64(tail, at),
            sample_rate: order.f64(tail, at + 8),
            error_rate: optional(HAS_ERROR_RATE, at + 16),
            missed_samples: optional(HAS_MISSED, at + 24),
        }
    };
    match fault(&statistics) {
        Some(fault) => Ok(StatsBlock::Unsound(Error::profile(fault).at(Position::Byte(footer_at - size)))),
        None => Ok(StatsBlock::Statistics(statistics)),
    }
}

/// Why `statistics` cannot be measured values, if they cannot.
pub(crate) fn fault(statistics: &Statistics) -> Option<String> {
    let positive = [
        ("duration", Some(statistics.duration_sec)),
        ("sample rate", Some(statistics.sample_rate)),
        ("error rate", statistics.error_rate),
    ];
    for (name, value) in positive {
        if let Some(value) = value
            && !(value.is_finite() && value >= 0.0)
        {
            return Some(format!("the statistics give a {name} of {value}"));
        }
    }
    match statistics.missed_samples {
        Some(value) if !value.is_finite() => Some(format!("the statistics give {value} missed samples")),
        _ => None,
    }
}

/// Appends a block of 56 bytes.
pub(crate) fn write(out: &mut Vec<u8>, statistics: &Statistics) {
    let mut present = 0;
    for (bit, value) in [(HAS_ERROR_RATE, statistics.error_rate), (HAS_MISSED, statistics.missed_samples)] {
        present |= if value.is_some() { bit } else { 0 };
    }
    for value in [
        statistics.duration_sec,
        statistics.sample_rate,
        statistics.error_rate.unwrap_or(0.0),
        statistics.missed_samples.unwrap_or(0.0),
    ] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    out.extend_from_slice(&u64::from(present).to_le_bytes());
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&1u32.to_le_bytes());
    out.extend_from_slice(&(SIZE as u32).to_le_bytes());
}
