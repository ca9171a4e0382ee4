//! LEB128 numbers: seven bits a byte, the lowest first, the top bit set on all but the last.

/// Longest encoding of a `u64`.
pub(crate) const MAX_LEN: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The bytes end inside the number.
    Short,
    /// More than ten bytes.
    Long,
}

/// Reads a number at `*pos` and moves `pos` after it. Overlong forms are taken, as CPython takes
/// them, and bits past the 64th fall away.
#[inline(always)]
pub(crate) fn read(bytes: &[u8], pos: &mut usize) -> Result<u64, Fault> {
    let Some(&first) = bytes.get(*pos) else {
        return Err(Fault::Short);
    };
    if first < 0x80 {
        *pos += 1;
        return Ok(u64::from(first));
    }
    // Nearly all numbers have one byte or two.
    match bytes.get(*pos + 1) {
        Some(&second) if second < 0x80 => {
            *pos += 2;
            Ok(u64::from(first & 0x7f) | u64::from(second) << 7)
        }
        _ => read_long(bytes, pos),
    }
}

#[cold]
fn read_long(bytes: &[u8], pos: &mut usize) -> Result<u64, Fault> {
    let mut value = 0;
    for index in 0..MAX_LEN {
        let Some(&byte) = bytes.get(*pos + index) else {
            return Err(Fault::Short);
        };
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            *pos += index + 1;
            return Ok(value);
        }
    }
    Err(Fault::Long)
}

/// Appends `value` in its shortest form.
#[inline(always)]
pub(crate) fn write(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x80 => out.push(value as u8),
        0x80..0x4000 => out.extend_from_slice(&[value as u8 | 0x80, (value >> 7) as u8]),
        _ => write_long(out, value),
    }
}

#[cold]
fn write_long(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The signed number that `raw` stands for in zigzag form.
pub(crate) fn unzigzag(raw: u32) -> i32 {
    (raw >> 1) as i32 ^ -((raw & 1) as i32)
}

/// The zigzag form of `value`.
pub(crate) fn zigzag(value: i32) -> u32 {
    ((value << 1) ^ (value >> 31)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_reads_back() {
        for value in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit]).chain([u64::MAX]) {
            let mut bytes = Vec::new();
            write(&mut bytes, value);
            let mut pos = 0;
            assert_eq!(read(&bytes, &mut pos), Ok(value));
            assert_eq!(pos, bytes.len());
            assert_eq!(read(&bytes[..pos - 1], &mut 0), Err(Fault::Short));
        }
    }

    #[test]
    fn overlong_forms_are_read_and_eleven_bytes_are_not() {
        assert_eq!(read(&[0x81, 0x80, 0x80, 0x00], &mut 0), Ok(1));
        assert_eq!(read(&[0xff; 11], &mut 0), Err(Fault::Long));
    }

    #[test]
    fn zigzag_is_its_own_inverse_at_the_ends() {
        for value in [0, -1, 1, i32::MIN, i32::MAX] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        assert_eq!(zigzag(-1), 1);
    }
}
