//! Differential fuzzer: runs random sequences of packets and socket calls against the kernel's TCP,
//! behind a TUN device in a network namespace, and against our TCP in manual time. Any difference
//! that [`known`] does not list is a failure.
#![allow(
    clippy::disallowed_methods,
    reason = "the kernel's side takes real time"
)]

mod compare;
mod event;
mod generate;
mod history;
mod kernel;
mod known;
mod model;
mod ours;
mod run;
mod segment;
mod side;
mod view;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

/// Runs random packets and calls against the kernel's TCP and ours, and compares the results.
#[derive(Parser)]
struct Args {
    /// Seed of the first sequence, incremented for each further one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of sequences to run.
    #[arg(long, conflicts_with = "time")]
    count: Option<u64>,
    /// Seconds to run.
    #[arg(long, default_value_t = 60)]
    time: u64,
    /// Number of differences after which to stop.
    #[arg(long, default_value_t = 1)]
    differences: usize,
    /// Print each sequence.
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    // SAFETY: geteuid has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: the kernel's side needs root for a TUN device and a network namespace");
        return Ok(ExitCode::SUCCESS);
    }
    let limit = match args.count {
        Some(count) => run::Limit::Count(count),
        None => run::Limit::Time(Duration::from_secs(args.time)),
    };
    let differences = run::run(args.seed, limit, args.differences, args.verbose)?;
    Ok(ExitCode::from(u8::from(differences > 0)))
}
