use std::io::Cursor;

use proptest::prelude::*;

use super::*;

/// Blocks of zeros and of records' bytes, not always whole, at the start of which there is a header.
fn pieces() -> impl Strategy<Value = Vec<(u8, usize)>> {
    let length = prop_oneof![
        1usize..100,
        Just(FS_BLOCK - 1),
        Just(FS_BLOCK),
        Just(2 * FS_BLOCK - 1),
        Just(PIECE as usize)
    ];
    prop::collection::vec((0u8..2, length), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn holes_and_ends_are_those_that_a_look_at_each_byte_finds(pieces in pieces(), cut in 0usize..200) {
        let mut bytes = vec![1; HEADER_LEN as usize];
        for (byte, length) in pieces {
            bytes.extend(std::iter::repeat_n(byte, length));
        }
        let end = bytes.len().saturating_sub(cut).max(HEADER_LEN as usize);
        let before = &bytes[..end];
        let source = &mut Cursor::new(&bytes);

        let zeros = before.iter().rev().take_while(|byte| **byte == 0).count();
        prop_assert_eq!(last_nonzero(source, end as u64).expect("memory"), (end - zeros) as u64);

        let is_hole = |at: &usize| before[*at..].iter().take_while(|byte| **byte == 0).count() >= FS_BLOCK;
        let hole = (0..end).step_by(FS_BLOCK).find(is_hole);
        prop_assert_eq!(first_hole(source, end as u64).expect("memory"), hole.map(|at| at as u64));
    }
}
