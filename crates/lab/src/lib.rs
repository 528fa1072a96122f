//! The lab: experiments that show each sending mechanism, before and after, beside the figures of
//! the public reference that introduced it.
//!
//! The experiments run on the simulator in virtual time: the same seed gives the same figures to
//! the last digit, on any machine. Only CPU times are measured in real time, if a [`Clock`] is
//! given, and marked as such. [`EXPERIMENTS`] lists the experiments, a [`Plan`] runs them,
//! [`table()`] formats the results, and [`trace()`] shows the packets.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::float_cmp, reason = "figures are exact, and the tests say so")
)]

mod bulk;
mod cost;
mod experiment;
mod experiments;
mod figure;
mod html;
mod measure;
mod net;
mod plot;
mod run;
mod svg;
mod table;
mod tcpdump;
#[cfg(test)]
mod testing;
mod trace;

pub use experiment::{Clock, EXPERIMENTS, Experiment, Progress, RunContext, Scale, by_name};
pub use figure::Figure;
pub use html::html;
pub use measure::{Measurements, NamedHistogram, Series};
pub use run::{CaseResult, ExperimentResult, Plan};
pub use table::{quantized, table, tally};
pub use trace::{TraceConfig, trace};
