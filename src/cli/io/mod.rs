//! Files, pipes and standard streams.

pub(crate) mod background;
pub(crate) mod cleanup;
pub(crate) mod deadline;
pub(crate) mod growing_file;
pub(crate) mod input;
pub(crate) mod lock;
pub(crate) mod names;
pub(crate) mod output;
pub(crate) mod sniff;
pub(crate) mod standard;
pub(crate) mod target;

pub use cleanup::{Made, before_first_file, remove_unfinished_files};
pub use deadline::Deadline;
pub use input::{Input, Packing, ProfileSource, packing_of, unpacked};
pub use lock::{is_at, lock};
pub use names::{folder_of, leads_to};
pub use output::Output;
#[cfg(unix)]
pub use standard::note_closed as note_closed_streams;
pub use standard::output as standard_output;
pub use target::Target;
