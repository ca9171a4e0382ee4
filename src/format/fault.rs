//! Faults of a profile that can be read all the same.

use crate::error::Error;
use crate::format::layout::header::{HEADER_LEN, Header};

/// Something that a profile's samples contradict. The samples before it are sound.
#[derive(Debug)]
pub struct Fault {
    /// What kind of fault it is.
    pub code: FaultCode,
    /// What is wrong, and where.
    pub error: Error,
}

/// The kinds of [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultCode {
    /// A record cannot be read: samples after it are lost.
    DamagedSamples,
    /// The header declares other numbers of samples or threads than there are.
    CountMismatch,
    /// The footer declares another size than the profile has.
    SizeMismatch,
    /// The statistics cannot have been measured, and are left out.
    InvalidStatistics,
    /// The header names something that is not known.
    Unsupported,
}

impl Fault {
    /// The fault of a header whose mode is not known.
    pub(crate) fn of_mode(header: &Header, start: &[u8; HEADER_LEN as usize], base: u64) -> Option<Fault> {
        header.mode_fault(start, base).map(|error| Fault { code: FaultCode::Unsupported, error })
    }

    /// Whether the samples cannot be relied on, and not only what is said of them.
    pub fn concerns_samples(&self) -> bool {
        !matches!(self.code, FaultCode::InvalidStatistics | FaultCode::Unsupported)
    }
}

impl FaultCode {
    /// The name that the stream's `error` message gives it.
    pub fn name(self) -> &'static str {
        match self {
            FaultCode::DamagedSamples => "damaged_samples",
            FaultCode::CountMismatch => "count_mismatch",
            FaultCode::SizeMismatch => "size_mismatch",
            FaultCode::InvalidStatistics => "invalid_statistics",
            FaultCode::Unsupported => "unsupported",
        }
    }
}
