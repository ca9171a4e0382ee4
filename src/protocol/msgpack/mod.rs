//! Messages as length-prefixed MessagePack (a big-endian u32 length, then one map), both ways; also the trace files of
//! LMCache, which use the same framing.

pub(crate) mod frames;
pub(crate) mod json;
mod read;
pub(crate) mod view;
mod write;

pub use crate::protocol::lmcache::{LmcacheHeader, LmcacheTrace};
pub use read::FromMsgpack;
pub use write::ToMsgpack;

use sha2::{Digest, Sha256};

use crate::protocol::message::Meta;

/// `magic` of our header frame.
const MAGIC: &str = "TACH";
/// `format_version` of our header frame.
const FORMAT_VERSION: u64 = 1;

/// Whether a file that begins so holds our messages as MessagePack.
pub fn is_msgpack(start: &[u8]) -> bool {
    frames::magic(start).as_deref() == Some(MAGIC)
}

/// SHA-256, in hex, of what the first `meta` of a run says of it as a whole: a JSON object as on a line,
/// with the keys from `run_start_usec` to `labels` but for `id_scope`, `stream_types` and `wall_usec`.
fn digest(meta: &Meta) -> String {
    #[derive(serde::Serialize)]
    struct Facts<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        run_start_usec: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sample_interval_usec: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        mode: &'a Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        capture: &'a Option<crate::protocol::message::Capture>,
        #[serde(skip_serializing_if = "Option::is_none")]
        python: &'a Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        clock: &'a Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        labels: &'a Option<std::collections::BTreeMap<String, String>>,
    }
    let mut text = Vec::new();
    let facts = Facts {
        run_start_usec: meta.run_start_usec,
        sample_interval_usec: meta.sample_interval_usec,
        mode: &meta.mode,
        capture: &meta.capture,
        python: &meta.python,
        clock: &meta.clock,
        labels: &meta.labels,
    };
    crate::protocol::encode::write_json(&mut text, &facts);
    Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect()
}
