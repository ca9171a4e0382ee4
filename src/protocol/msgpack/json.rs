//! Converts MessagePack values to JSON text.
//!
//! A byte of a frame can become several of text. What passes [`LINE_READ`] is of no use, since no reader takes such a
//! line: elements after that are left out, and the caller sees by the length that it is not whole.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::limits::LINE_READ;
use crate::protocol::encode::write_json;
use crate::protocol::msgpack::view::{Kind, View};

/// Appends a value: bytes as standard base64, extensions as an object, numbers that JSON doesn't have as null.
pub(crate) fn write(out: &mut Vec<u8>, value: View<'_>) {
    match value.kind() {
        Kind::Nil => out.extend_from_slice(b"null"),
        Kind::Bool(value) => write_json(out, &value),
        Kind::Int(number) => match u64::try_from(number) {
            Ok(number) => write_json(out, &number),
            Err(_) => write_json(out, &(number as i64)),
        },
        // serde_json writes null for what is no number.
        Kind::F32(number) => write_json(out, &f64::from(number)),
        Kind::F64(number) => write_json(out, &number),
        Kind::Str(text) => write_json(out, &String::from_utf8_lossy(text)),
        Kind::Bin(bytes) => write_json(out, &STANDARD.encode(bytes)),
        Kind::Array(items) => array(out, items, write),
        Kind::Map(entries) => map(out, entries, |out, _, value| write(out, value)),
        Kind::Ext(kind, bytes) => {
            #[derive(Serialize)]
            struct Extension {
                ext: i8,
                base64: String,
            }
            write_json(out, &Extension { ext: kind, base64: STANDARD.encode(bytes) });
        }
    }
}

/// Appends an array.
pub(crate) fn array<'a>(
    out: &mut Vec<u8>,
    values: impl Iterator<Item = View<'a>>,
    mut each: impl FnMut(&mut Vec<u8>, View<'a>),
) {
    out.push(b'[');
    for (index, value) in values.enumerate() {
        if out.len() > LINE_READ {
            break;
        }
        if index > 0 {
            out.push(b',');
        }
        each(out, value);
    }
    out.push(b']');
}

/// A key as text.
pub(crate) fn key(key: View<'_>) -> String {
    match key.kind() {
        Kind::Str(text) => String::from_utf8_lossy(text).into_owned(),
        Kind::Bin(bytes) => STANDARD.encode(bytes),
        _ => {
            let mut text = Vec::new();
            write(&mut text, key);
            String::from_utf8_lossy(&text).into_owned()
        }
    }
}

/// Appends an object. A key that is no text becomes one.
pub(crate) fn map<'a>(
    out: &mut Vec<u8>,
    entries: impl Iterator<Item = (View<'a>, View<'a>)>,
    mut each: impl FnMut(&mut Vec<u8>, &str, View<'a>),
) {
    out.push(b'{');
    for (index, (name, value)) in entries.enumerate() {
        if out.len() > LINE_READ {
            break;
        }
        if index > 0 {
            out.push(b',');
        }
        let name = key(name);
        write_json(out, name.as_str());
        out.push(b':');
        each(out, &name, value);
    }
    out.push(b'}');
}
