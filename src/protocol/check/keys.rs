//! The keys of each message in wire order, as `schema/README.md` lists them.

use crate::protocol::stream_types::MessageType;

/// A key of an object, and what stands under it.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    pub name: &'static str,
    pub required: bool,
    pub inside: Inside,
}

/// What a value has to be, beyond its JSON type, which the decoder checks.
#[derive(Clone, Copy)]
pub(crate) enum Inside {
    Any,
    /// A column that may hold nulls, but not nulls alone.
    Nullable,
    /// The decimal digits of a number of 64 bits.
    Digits,
    Object(&'static [Key]),
    /// An array of such objects.
    Objects(&'static [Key]),
    /// Free keys, with such an object under each.
    Map(&'static [Key]),
    /// Ids in decimal as keys.
    Ids,
}

const fn need(name: &'static str) -> Key {
    Key { name, required: true, inside: Inside::Any }
}

const fn may(name: &'static str) -> Key {
    Key { name, required: false, inside: Inside::Any }
}

const fn nullable(name: &'static str) -> Key {
    Key { name, required: false, inside: Inside::Nullable }
}

impl Key {
    const fn with(self, inside: Inside) -> Key {
        Key { inside, ..self }
    }
}

/// How many keys every message begins with.
pub(crate) const ENVELOPE_KEYS: usize = 4;

/// A list of keys after those of the envelope.
macro_rules! message {
    ($($key:expr),* $(,)?) => {
        const { &[need("type"), need("v"), need("run_id"), need("seq"), $($key),*] }
    };
}

const CAPTURE: &[Key] = &[need("all_threads"), need("native"), need("gc"), need("opcodes"), need("blocking")];

const THREAD: &[Key] = &[
    need("thread_id").with(Inside::Digits),
    need("interpreter_id"),
    need("ts_delta_usec"),
    need("status"),
    nullable("stack"),
];

const QUANTITIES: &[Key] =
    &[may("lost_samples"), may("lost_messages"), may("lost_bytes"), may("lost_percent"), may("samples")];

const STATS: &[Key] = &[need("duration_sec"), need("sample_rate"), may("error_rate"), may("missed_samples")];

/// The keys of a message of this type; of an unknown one only the envelope.
pub(crate) fn of_message(message: Option<MessageType>) -> &'static [Key] {
    match message {
        None => message![],
        Some(MessageType::Meta) => message![
            need("batch"),
            need("messages"),
            may("start_usec"),
            may("duration_usec"),
            may("samples"),
            may("thread_count"),
            may("run_start_usec"),
            may("sample_interval_usec"),
            may("mode"),
            may("capture").with(Inside::Object(CAPTURE)),
            may("python"),
            need("id_scope"),
            may("stream_types"),
            may("clock"),
            may("wall_usec"),
            may("labels"),
        ],
        Some(MessageType::StrDef) => {
            message![need("batch"), need("str_id"), need("value"), may("base64").with(Inside::Ids)]
        }
        Some(MessageType::FrameDef) => message![
            need("batch"),
            need("frame_id"),
            need("path_str_id"),
            need("func_str_id"),
            nullable("line"),
            nullable("end_line"),
            nullable("col"),
            nullable("end_col"),
            nullable("opcode"),
        ],
        Some(MessageType::Raw) => message![
            need("batch"),
            need("start_usec"),
            need("samples"),
            need("stack_frame_id"),
            nullable("stack_parent"),
            need("threads").with(Inside::Objects(THREAD)),
        ],
        Some(MessageType::Agg) => message![
            need("batch"),
            need("kind"),
            need("scope"),
            may("start_usec"),
            may("duration_usec"),
            need("samples_total"),
            may("samples_empty"),
            need("frame_id"),
            need("self"),
            need("cumulative"),
        ],
        Some(MessageType::Loss) => message![
            may("batch"),
            need("reason"),
            may("lost_samples"),
            may("lost_messages"),
            may("lost_bytes"),
            may("lost_percent"),
            may("samples"),
            may("first_seq"),
            may("last_seq"),
            may("start_usec"),
            may("duration_usec"),
        ],
        Some(MessageType::Heartbeat) => message![
            may("ts_usec"),
            may("wall_usec"),
            need("samples"),
            need("batches"),
            need("dropped_messages"),
        ],
        Some(MessageType::Error) => {
            message![need("code"), need("detail"), may("offset"), need("fatal")]
        }
        Some(MessageType::End) => message![
            need("complete"),
            need("batches"),
            need("messages"),
            may("samples"),
            need("samples_total"),
            may("samples_empty"),
            may("duration_usec"),
            may("lost").with(Inside::Map(QUANTITIES)),
            may("stats").with(Inside::Object(STATS)),
        ],
    }
}
