//! The `fullsend` program.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "this program is a driver: it reads the clock for the sans-IO core"
)]

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
mod sending;
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
    // What a device could not do, in a line each.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
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
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
