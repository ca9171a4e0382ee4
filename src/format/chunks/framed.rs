//! Turns a whole version-1 profile into a chunk of a run: the same samples and tables under another header.

use std::io::Cursor;

use crate::error::{Error, ErrorKind, Result};
use crate::format::layout::digest::chunk_checksum;
use crate::format::layout::extension::{self, ChunkInfo};
use crate::format::layout::header::{ByteOrder, CHECKSUM_AT, FOOTER_LEN, Footer, HEADER_LEN, Header, Layout};
use crate::format::layout::stats;
use crate::format::open::{Contents, Profile};
use crate::limits::CHUNK_BYTES;

impl Profile<Cursor<Vec<u8>>> {
    /// The bytes of the chunk that this profile is in its run.
    ///
    /// Records count from the start time in the header, so the samples stay as they are.
    ///
    /// # Errors
    ///
    /// A profile with the highest byte first, one that is a chunk already, and one with more bytes or
    /// samples than a chunk can have.
    pub fn to_chunk(&self, info: &ChunkInfo) -> Result<Vec<u8>> {
        let Contents { header, footer, statistics, size, scan, .. } = self.contents();
        if header.byte_order != ByteOrder::Little || header.layout == Layout::Chunk {
            return Err(Error::profile("only a little-endian profile of version 1 becomes a chunk"));
        }
        let profile = self.source().get_ref();
        let footer_at = (size - FOOTER_LEN) as usize;
        let tail = &profile[header.frames_at as usize..footer_at];
        let found = stats::read(tail, || Ok(tail.len() as u64), ByteOrder::Little, footer_at as u64)?;
        let tables_end = footer_at - found.len(tail, ByteOrder::Little);

        let mut chunk = vec![0; HEADER_LEN as usize];
        chunk.extend_from_slice(&profile[HEADER_LEN as usize..tables_end]);
        extension::write(&mut chunk, info, &header.facts)?;
        if let Some(statistics) = statistics {
            stats::write(&mut chunk, statistics);
        }
        let size = chunk.len() as u64 + FOOTER_LEN;
        if size > CHUNK_BYTES || u32::try_from(scan.samples).is_err() {
            let fault = format!("a chunk of {size} bytes with {} samples is too large", scan.samples);
            return Err(Error::new(ErrorKind::Limit, fault).hint("let chunks close earlier: --flush"));
        }
        chunk.extend_from_slice(&Footer { size, checksum: [0; 16], ..*footer }.write());
        let header = Header { layout: Layout::Chunk, ..header.clone() };
        chunk[..HEADER_LEN as usize].copy_from_slice(&header.write(size));
        let checksum = chunk_checksum(&mut Cursor::new(&chunk), 0, size)?;
        let checksum_at = (size - FOOTER_LEN + CHECKSUM_AT) as usize;
        chunk[checksum_at..].copy_from_slice(&checksum);
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RunEnd;

    #[test]
    fn a_profile_as_a_chunk_holds_the_same_and_says_which_run_it_is_of() {
        for name in ["wall_all_100hz_none", "wall_all_20k_zstd", "tiny_script_none"] {
            let path = format!("{}/tests/data/cpython/{name}.bin", env!("CARGO_MANIFEST_DIR"));
            let bytes = std::fs::read(path).expect("readable");
            let profile = Profile::open(Cursor::new(bytes)).expect("sound");
            let before = profile.contents();
            let info = ChunkInfo {
                run_id: "run".to_string(),
                index: 7,
                span: before.scan.span.expect("samples"),
                wall_us: Some(1),
                end: RunEnd::Complete,
                labels: [("host".to_string(), "web1".to_string())].into(),
            };
            let chunk = Profile::open(Cursor::new(profile.to_chunk(&info).expect("a chunk"))).expect("sound");
            let after = chunk.contents();
            assert!(after.faults.is_empty() && after.warnings.is_empty(), "{:?}", after.warnings);
            assert_eq!(after.chunk.as_ref(), Some(&info));
            assert_eq!(after.header.facts, before.header.facts);
            assert_eq!(after.statistics, before.statistics);
            assert_eq!(after.scan.samples, before.scan.samples);
            assert_eq!(after.scan.span, before.scan.span);
            assert_eq!(after.tables.frames, before.tables.frames);
        }
    }
}
