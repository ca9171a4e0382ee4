//! MessagePack values as JSON text.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmpv::Value;
use serde::Serialize;

use crate::protocol::encode::write_json;

/// Appends a value: bytes as standard base64, extensions as an object, numbers that JSON doesn't have as null.
pub(crate) fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::Boolean(value) => write_json(out, value),
        Value::Integer(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => write_json(out, &number),
            (None, number) => write_json(out, &number.unwrap_or_default()),
        },
        Value::F32(number) => float(out, f64::from(*number)),
        Value::F64(number) => float(out, *number),
        Value::String(text) => match text.as_str() {
            Some(text) => write_json(out, text),
            None => write_json(out, &String::from_utf8_lossy(text.as_bytes())),
        },
        Value::Binary(bytes) => write_json(out, &STANDARD.encode(bytes)),
        Value::Array(values) => array(out, values, write),
        Value::Map(entries) => map(out, entries, |out, _, value| write(out, value)),
        Value::Ext(kind, bytes) => {
            #[derive(Serialize)]
            struct Extension {
                ext: i8,
                base64: String,
            }
            write_json(out, &Extension { ext: *kind, base64: STANDARD.encode(bytes) });
        }
    }
}

fn float(out: &mut Vec<u8>, number: f64) {
    // serde_json writes null for what is no number.
    write_json(out, &number);
}

/// Appends an array.
pub(crate) fn array<T>(out: &mut Vec<u8>, values: &[T], mut each: impl FnMut(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        each(out, value);
    }
    out.push(b']');
}

/// Appends an object. A key that is no text becomes one.
pub(crate) fn map(
    out: &mut Vec<u8>,
    entries: &[(Value, Value)],
    mut each: impl FnMut(&mut Vec<u8>, &str, &Value),
) {
    out.push(b'{');
    for (index, (key, value)) in entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let text = match key {
            Value::String(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
            Value::Binary(bytes) => STANDARD.encode(bytes),
            key => {
                let mut text = Vec::new();
                write(&mut text, key);
                String::from_utf8_lossy(&text).into_owned()
            }
        };
        write_json(out, text.as_str());
        let _ = out.write_all(b":");
        each(out, &text, value);
    }
    out.push(b'}');
}
