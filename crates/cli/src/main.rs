//! The `fullsend` program.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    fullsend_cli::main()
}
