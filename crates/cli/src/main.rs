//! The `fullsend` program.
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
mod idle;
mod lab;
mod net;
mod pattern;
mod perf;
mod preamble;
mod progress;
mod report;
mod script;
mod send_report;
mod serve;
mod server;
mod size;
mod stat;
mod usage;
mod wan;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Device losses, limits reached and similar events, one line each.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_target(false)
        .without_time()
        .init();
    let done = match cli.command {
        Command::Perf(perf) => perf::run(perf),
        Command::Stat(args) => stat::run(args),
        Command::Lab(lab) => lab::run(lab),
        Command::Wan(args) => wan::run(&args),
        Command::Script(args) => script::run_scripts(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
