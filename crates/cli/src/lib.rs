//! The `fullsend` program as a library: [`main`] is its entry point, and `fuzzing` has the parsers of
//! its sockets for fuzz targets.
#![forbid(unsafe_code)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "these panic when the reader of a pipe has closed it; use `outln!` and `errln!`"
)]
#![allow(
    clippy::disallowed_methods,
    reason = "this program is a driver: it reads the clock for the sans-IO core"
)]

#[macro_use]
mod output;

mod args;
mod client;
mod core;
mod flow;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod idle;
mod lab;
mod net;
mod pattern;
mod perf;
mod preamble;
mod private_file;
mod progress;
mod report;
mod script;
mod send_report;
mod serve;
mod server;
mod set;
mod shard_threads;
mod size;
mod stat;
mod top;
mod usage;
mod wan;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::gateway::Personality;

/// Runs the program with the arguments of the process, and returns its exit status.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some((personality, arguments)) = Personality::of_command_line(&words) {
        log_warnings();
        return personality.run(arguments);
    }
    let cli = Cli::parse();
    log_warnings();
    let done = match cli.command {
        Command::Perf(perf) => perf::run(perf),
        Command::Stat(args) => stat::run(args),
        Command::Top(args) => top::run(args),
        Command::Lab(lab) => lab::run(lab),
        Command::Wan(args) => wan::run(&args),
        Command::Script(args) => script::run_scripts(&args),
        Command::Gateway(args) => return exit_code(gateway::run(args)),
        // These were selected above, before clap parses their options.
        Command::Slirp4netns(_)
        | Command::Pasta(_)
        | Command::Passt(_)
        | Command::Gvproxy(_)
        | Command::Pesto(_) => Ok(()),
    };
    exit_code(done.map(|()| ExitCode::SUCCESS))
}

/// Prints an error, and returns the exit status of the program.
fn exit_code(done: anyhow::Result<ExitCode>) -> ExitCode {
    done.unwrap_or_else(|error| {
        errln!("error: {}", output::ErrorLine(&error));
        ExitCode::FAILURE
    })
}

/// Makes the libraries' warnings, e.g. about device losses or reached limits, lines on standard error.
fn log_warnings() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_target(false)
        .without_time()
        .init();
}
