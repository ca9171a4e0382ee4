//! The command `tachyon-jsonl`; all of it is in [`tachyon_jsonl::cli`].

use std::process::ExitCode;

/// What the runtime hides from `main`: the standard streams that are closed.
#[cfg(unix)]
#[ctor::ctor]
fn before_main() {
    tachyon_jsonl::cli::note_closed_streams();
}

fn main() -> ExitCode {
    tachyon_jsonl::cli::main()
}
