//! MessagePack values in place: found and read without building a tree.
//!
//! A frame may hold millions of values of a byte each, so nothing is allocated for one. A frame is checked once, by
//! [`View::of_frame`]; after that its parts are read without errors.

use rmp::Marker;

use crate::limits::FRAME_DEPTH;

/// One whole value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    bytes: &'a [u8],
}

/// What a value is. The elements of an array or map follow it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    Nil,
    Bool(bool),
    Int(i128),
    F32(f32),
    F64(f64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Array(Items<'a>),
    Map(Entries<'a>),
    Ext(i8, &'a [u8]),
}

/// The elements of an array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items<'a> {
    left: usize,
    rest: &'a [u8],
}

/// The entries of a map, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries<'a>(Items<'a>);

const ENDS: &str = "it ends within a value";

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], &'static str> {
    let (taken, left) = rest.split_at_checked(length).ok_or(ENDS)?;
    *rest = left;
    Ok(taken)
}

/// A big-endian unsigned number of so many bytes.
fn number(rest: &mut &[u8], bytes: usize) -> Result<u64, &'static str> {
    Ok(take(rest, bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn length(rest: &mut &[u8], bytes: usize) -> Result<usize, &'static str> {
    usize::try_from(number(rest, bytes)?).map_err(|_| ENDS)
}

fn extension<'a>(rest: &mut &'a [u8], length: usize) -> Result<Kind<'a>, &'static str> {
    let kind = take(rest, 1)?[0] as i8;
    Ok(Kind::Ext(kind, take(rest, length)?))
}

/// Reads the head of a value, and all of it unless it has elements.
fn read<'a>(rest: &mut &'a [u8]) -> Result<Kind<'a>, &'static str> {
    let marker = Marker::from_u8(take(rest, 1)?[0]);
    let text = |rest: &mut &'a [u8], bytes| {
        let length = length(rest, bytes)?;
        take(rest, length)
    };
    Ok(match marker {
        Marker::Null => Kind::Nil,
        Marker::True => Kind::Bool(true),
        Marker::False => Kind::Bool(false),
        Marker::FixPos(value) => Kind::Int(value.into()),
        Marker::FixNeg(value) => Kind::Int(value.into()),
        Marker::U8 => Kind::Int(number(rest, 1)?.into()),
        Marker::U16 => Kind::Int(number(rest, 2)?.into()),
        Marker::U32 => Kind::Int(number(rest, 4)?.into()),
        Marker::U64 => Kind::Int(number(rest, 8)?.into()),
        Marker::I8 => Kind::Int((number(rest, 1)? as i8).into()),
        Marker::I16 => Kind::Int((number(rest, 2)? as i16).into()),
        Marker::I32 => Kind::Int((number(rest, 4)? as i32).into()),
        Marker::I64 => Kind::Int((number(rest, 8)? as i64).into()),
        Marker::F32 => Kind::F32(f32::from_bits(number(rest, 4)? as u32)),
        Marker::F64 => Kind::F64(f64::from_bits(number(rest, 8)?)),
        Marker::FixStr(length) => Kind::Str(take(rest, length.into())?),
        Marker::Str8 => Kind::Str(text(rest, 1)?),
        Marker::Str16 => Kind::Str(text(rest, 2)?),
        Marker::Str32 => Kind::Str(text(rest, 4)?),
        Marker::Bin8 => Kind::Bin(text(rest, 1)?),
        Marker::Bin16 => Kind::Bin(text(rest, 2)?),
        Marker::Bin32 => Kind::Bin(text(rest, 4)?),
        Marker::FixArray(left) => Kind::Array(Items { left: left.into(), rest }),
        Marker::Array16 => Kind::Array(Items { left: length(rest, 2)?, rest }),
        Marker::Array32 => Kind::Array(Items { left: length(rest, 4)?, rest }),
        Marker::FixMap(left) => Kind::Map(Entries(Items { left: left.into(), rest })),
        Marker::Map16 => Kind::Map(Entries(Items { left: length(rest, 2)?, rest })),
        Marker::Map32 => Kind::Map(Entries(Items { left: length(rest, 4)?, rest })),
        Marker::FixExt1 => extension(rest, 1)?,
        Marker::FixExt2 => extension(rest, 2)?,
        Marker::FixExt4 => extension(rest, 4)?,
        Marker::FixExt8 => extension(rest, 8)?,
        Marker::FixExt16 => extension(rest, 16)?,
        Marker::Ext8 => {
            let length = length(rest, 1)?;
            extension(rest, length)?
        }
        Marker::Ext16 => {
            let length = length(rest, 2)?;
            extension(rest, length)?
        }
        Marker::Ext32 => {
            let length = length(rest, 4)?;
            extension(rest, length)?
        }
        Marker::Reserved => return Err("0xc1 does not begin a value"),
    })
}

/// Passes over a value and all that it holds.
fn skip(rest: &mut &[u8], depth: usize) -> Result<(), &'static str> {
    let elements = match read(rest)? {
        Kind::Array(Items { left, .. }) => left,
        // A map of more entries than a length can say has no room in memory either.
        Kind::Map(Entries(Items { left, .. })) => left.saturating_mul(2),
        _ => return Ok(()),
    };
    let depth = depth.checked_sub(1).ok_or("it is nested too deeply")?;
    (0..elements).try_for_each(|_| skip(rest, depth))
}

impl<'a> View<'a> {
    /// The value that begins `bytes`, and what comes after it.
    ///
    /// # Errors
    ///
    /// Bytes that begin with no whole value, or one that is nested more than [`FRAME_DEPTH`] deep.
    pub fn of_frame(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), &'static str> {
        let mut rest = bytes;
        skip(&mut rest, FRAME_DEPTH)?;
        Ok((View { bytes: &bytes[..bytes.len() - rest.len()] }, rest))
    }

    /// Nothing.
    pub const NIL: View<'static> = View { bytes: &[0xc0] };

    /// The entries of a map whose end need not be there: those that are whole.
    pub fn start_of_map(bytes: &'a [u8]) -> Option<Entries<'a>> {
        let mut rest = bytes;
        match read(&mut rest).ok()? {
            Kind::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// What the value is.
    pub fn kind(self) -> Kind<'a> {
        let mut rest = self.bytes;
        read(&mut rest).unwrap_or(Kind::Nil)
    }

    /// The text, if it is one.
    pub fn as_str(self) -> Option<&'a str> {
        match self.kind() {
            Kind::Str(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Text, which some writers store as bytes: msgspec does so with what Python calls bytes.
    pub fn as_text(self) -> Option<&'a str> {
        match self.kind() {
            Kind::Str(text) | Kind::Bin(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// The number, if it is a whole one from 0.
    pub fn as_u64(self) -> Option<u64> {
        match self.kind() {
            Kind::Int(number) => number.try_into().ok(),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn as_f64(self) -> Option<f64> {
        match self.kind() {
            Kind::Int(number) => Some(number as f64),
            Kind::F32(number) => Some(number.into()),
            Kind::F64(number) => Some(number),
            _ => None,
        }
    }

    /// The value under this key, if it is a map that has it.
    pub fn get(self, key: &str) -> Option<View<'a>> {
        let Kind::Map(entries) = self.kind() else { return None };
        entries.into_iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = View<'a>;

    fn next(&mut self) -> Option<View<'a>> {
        self.left = self.left.checked_sub(1)?;
        let before = self.rest;
        skip(&mut self.rest, FRAME_DEPTH).ok()?;
        Some(View { bytes: &before[..before.len() - self.rest.len()] })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (View<'a>, View<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.left = self.0.left.checked_sub(1)?;
        let Items { rest, .. } = self.0;
        let mut both = Items { left: 2, rest };
        let entry = (both.next()?, both.next()?);
        self.0.rest = both.rest;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rmpv::Value;

    use super::*;

    /// The tree of a value, by its views.
    fn tree(view: View<'_>) -> Value {
        match view.kind() {
            Kind::Nil => Value::Nil,
            Kind::Bool(value) => value.into(),
            Kind::Int(number) => match u64::try_from(number) {
                Ok(number) => number.into(),
                Err(_) => i64::try_from(number).expect("64 bits").into(),
            },
            Kind::F32(number) => number.into(),
            Kind::F64(number) => number.into(),
            Kind::Str(text) => std::str::from_utf8(text).expect("UTF-8").into(),
            Kind::Bin(bytes) => bytes.into(),
            Kind::Array(items) => Value::Array(items.map(tree).collect()),
            Kind::Map(entries) => Value::Map(entries.map(|(key, value)| (tree(key), tree(value))).collect()),
            Kind::Ext(kind, bytes) => Value::Ext(kind, bytes.to_vec()),
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (0..64u32, any::<i64>()).prop_map(|(shift, number)| Value::from(number >> shift)),
            any::<u32>().prop_map(|bits| Value::from(bits as f32)),
            any::<u32>().prop_map(|bits| Value::from(f64::from(bits) / 7.0)),
            "\\PC{0,40}".prop_map(Value::from),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::from),
            (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20))
                .prop_map(|(kind, bytes)| Value::Ext(kind, bytes)),
        ];
        leaf.prop_recursive(4, 200, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..20).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn views_show_what_a_tree_holds(value in value(), after in prop::collection::vec(any::<u8>(), 0..5)) {
            let mut bytes = Vec::new();
            rmpv::encode::write_value(&mut bytes, &value).expect("memory takes it");
            let whole = bytes.len();
            bytes.extend(&after);
            let (view, rest) = View::of_frame(&bytes).expect("a value");
            prop_assert_eq!(rest, &after);
            prop_assert_eq!(tree(view), value);
            for cut in 0..whole.min(50) {
                prop_assert!(View::of_frame(&bytes[..cut]).is_err(), "cut at {}", cut);
            }
        }

        #[test]
        fn any_bytes_are_a_value_exactly_where_rmpv_takes_them(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            // It takes the byte that begins no value for nil.
            let bytes: Vec<u8> = bytes.into_iter().map(|byte| if byte == 0xc1 { 0xc0 } else { byte }).collect();
            let mut rest = bytes.as_slice();
            let tree = rmpv::decode::read_value_with_max_depth(&mut rest, FRAME_DEPTH);
            prop_assert_eq!(View::of_frame(&bytes).is_ok(), tree.is_ok());
        }
    }

    #[test]
    fn the_byte_that_begins_no_value_is_refused() {
        assert_eq!(View::of_frame(&[0x91, 0xc1]).expect_err("refused"), "0xc1 does not begin a value");
    }

    #[test]
    fn depth_is_limited() {
        for (depth, is_fine) in [(FRAME_DEPTH - 1, true), (FRAME_DEPTH + 1, false), (10_000_000, false)] {
            let mut bytes = vec![0x91; depth];
            bytes.push(0xc0);
            assert_eq!(View::of_frame(&bytes).is_ok(), is_fine, "{depth}");
        }
    }
}
