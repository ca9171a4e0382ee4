//! The entries of REPEAT records: most of a profile that is calm. An entry is a time delta as a varint, and a
//! status byte. Deltas are small, so eight bytes hold several entries of the same shape, which are read at once.

use crate::varint::{self, Fault};

/// Longest entry.
pub(crate) const ENTRY_MAX: usize = varint::MAX_LEN + 1;

/// Reads an entry at `*pos` and moves `pos` after it.
#[inline(always)]
pub(crate) fn one(bytes: &[u8], pos: &mut usize) -> Result<(u64, u8), Fault> {
    let mut next = *pos;
    let delta = varint::read(bytes, &mut next)?;
    let status = *bytes.get(next).ok_or(Fault::Short)?;
    *pos = next + 1;
    Ok((delta, status))
}

/// Appends an entry.
#[inline(always)]
pub(crate) fn write(out: &mut Vec<u8>, delta: u64, status: u8) {
    // Nearly all are of the first two kinds, which make room once.
    match delta {
        0..0x80 => out.extend_from_slice(&[delta as u8, status]),
        0x80..0x4000 => out.extend_from_slice(&[delta as u8 | 0x80, (delta >> 7) as u8, status]),
        _ => {
            varint::write(out, delta);
            out.push(status);
        }
    }
}

/// Whether eight bytes are four entries whose deltas have a byte each.
#[inline(always)]
fn is_four(word: u64) -> bool {
    word & 0x8080_8080_8080_8080 == 0
}

/// Whether the first six of eight bytes are two entries whose deltas have two bytes each.
#[inline(always)]
fn is_two(word: u64) -> bool {
    word & 0x8080_8080_8080 == 0x8000_0080
}

/// The delta in two bytes at the front of a word.
#[inline(always)]
fn wide_delta(word: u64) -> u64 {
    (word & 0x7f) + (word >> 1 & 0x3f80)
}

/// Reads entries into columns of the same length. `pos` ends after the last that can be read.
#[inline(always)]
pub(crate) fn columns(
    bytes: &[u8],
    pos: &mut usize,
    deltas: &mut [u64],
    status: &mut [u8],
) -> Result<(), Fault> {
    let mut at = 0;
    while at < deltas.len() {
        if let (Some(deltas), Some(status), Some(word)) = (
            deltas[at..].first_chunk_mut::<4>(),
            status[at..].first_chunk_mut::<4>(),
            bytes.get(*pos..).and_then(|bytes| bytes.first_chunk()),
        ) {
            let word = u64::from_le_bytes(*word);
            if is_four(word) {
                let bytes = word.to_le_bytes();
                *deltas = [bytes[0], bytes[2], bytes[4], bytes[6]].map(u64::from);
                *status = [bytes[1], bytes[3], bytes[5], bytes[7]];
                *pos += 8;
                at += 4;
                continue;
            }
            if is_two(word) {
                (deltas[0], deltas[1]) = (wide_delta(word), wide_delta(word >> 24));
                (status[0], status[1]) = ((word >> 16) as u8, (word >> 40) as u8);
                *pos += 6;
                at += 2;
                continue;
            }
        }
        (deltas[at], status[at]) = one(bytes, pos)?;
        at += 1;
    }
    Ok(())
}

/// Adds up the time deltas of `count` entries; `None` where one is so great that times might wrap. `pos` ends
/// after the last that can be read.
#[inline(always)]
pub(crate) fn sum(bytes: &[u8], pos: &mut usize, count: u32) -> Result<Option<u64>, Fault> {
    let mut sum = 0u64;
    let mut greatest = 0;
    let mut left = count;
    while left > 0 {
        if left >= 2
            && let Some(word) = bytes.get(*pos..).and_then(|bytes| bytes.first_chunk())
        {
            let word = u64::from_le_bytes(*word);
            if left >= 4 && is_four(word) {
                // The sum of the bytes in even places.
                let these = (word & 0x00ff_00ff_00ff_00ff).wrapping_mul(0x0001_0001_0001_0001) >> 48;
                sum = sum.wrapping_add(these);
                *pos += 8;
                left -= 4;
                continue;
            }
            if is_two(word) {
                sum = sum.wrapping_add(wide_delta(word) + wide_delta(word >> 24));
                *pos += 6;
                left -= 2;
                continue;
            }
        }
        let (delta, _) = one(bytes, pos)?;
        greatest = delta.max(greatest);
        sum = sum.wrapping_add(delta);
        left -= 1;
    }
    Ok((greatest <= u64::from(u32::MAX)).then_some(sum))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Entries of each length, with those that are read at once among them.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let delta = prop_oneof![
            8 => 90u64..127,
            8 => 900u64..1100,
            1 => prop::sample::select(vec![0, 127, 128, 16_383, 16_384, 1 << 32, u64::MAX]),
        ];
        let status = prop_oneof![8 => 0u8..64, 1 => any::<u8>()];
        let entries = prop::collection::vec((delta, status), 0..60);
        (entries, 0usize..4).prop_map(|(entries, cut)| {
            let mut bytes = Vec::new();
            for (delta, status) in entries {
                let at = bytes.len();
                write(&mut bytes, delta, status);
                let mut plain = Vec::new();
                varint::write(&mut plain, delta);
                plain.push(status);
                assert_eq!(bytes[at..], plain);
            }
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            bytes
        })
    }

    proptest! {
        #[test]
        fn many_at_once_are_what_they_are_one_by_one(bytes in bytes(), count in 0usize..70) {
            let mut pos = 0;
            let mut expected = Vec::new();
            let mut fault = None;
            while expected.len() < count && fault.is_none() {
                match one(&bytes, &mut pos) {
                    Ok(entry) => expected.push(entry),
                    Err(found) => fault = Some(found),
                }
            }

            let mut at = 0;
            let (mut deltas, mut status) = (vec![0; count], vec![0; count]);
            prop_assert_eq!(columns(&bytes, &mut at, &mut deltas, &mut status).err(), fault);
            prop_assert_eq!(at, pos);
            let found: Vec<(u64, u8)> = deltas.into_iter().zip(status).take(expected.len()).collect();
            prop_assert_eq!(&found, &expected);

            let mut at = 0;
            let found = sum(&bytes, &mut at, count as u32);
            prop_assert_eq!(at, pos);
            let is_small = expected.iter().all(|(delta, _)| *delta <= u64::from(u32::MAX));
            let total = is_small.then(|| expected.iter().map(|(delta, _)| delta).sum::<u64>());
            prop_assert_eq!(found, fault.map_or(Ok(total), Err));
        }
    }
}
