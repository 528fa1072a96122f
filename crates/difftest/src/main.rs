//! Differential fuzzer: random sequences of packets and socket calls are given to the kernel's
//! TCP, behind a TUN device in a network namespace, and to ours in manual time. Whatever the two
//! answer differently and [`known`] does not list is a failure.
#![allow(
    clippy::disallowed_methods,
    reason = "the kernel's side takes real time"
)]

mod compare;
mod event;
mod generate;
mod kernel;
mod known;
mod model;
mod ours;
mod run;
mod side;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

/// Runs random packets and calls against the kernel's TCP and ours and compares the answers.
#[derive(Parser)]
struct Args {
    /// The seed of the first sequence; each next one counts up.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many sequences to run.
    #[arg(long, conflicts_with = "time")]
    count: Option<u64>,
    /// For how many seconds to run.
    #[arg(long, default_value_t = 60)]
    time: u64,
    /// How many differences to print before the end.
    #[arg(long, default_value_t = 1)]
    differences: usize,
    /// Print each sequence.
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    // SAFETY: takes nothing and cannot fail.
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
