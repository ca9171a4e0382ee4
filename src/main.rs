//! The command `tachyon-jsonl`; all of it is in [`tachyon_jsonl::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    tachyon_jsonl::cli::main()
}
