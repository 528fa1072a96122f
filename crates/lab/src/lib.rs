//! The laboratory: experiments that show each sending mechanism at work, before and after, beside
//! the figures of the public reference that introduced it.
//!
//! Everything runs on the simulator in virtual time: the same seed gives the same figures to the
//! last digit, on any machine. Only where a processor's time is the point, and a [`Clock`] is given,
//! it is measured, and said so. [`EXPERIMENTS`] lists them, a [`Plan`] runs them, [`table()`] shows
//! what came of it, and [`trace()`] the packets.
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

pub use experiment::{Clock, EXPERIMENTS, Experiment, Progress, Run, Scale, by_name};
pub use figure::Figure;
pub use html::html;
pub use measure::{Histogram, Measures, Series};
pub use run::{Case, Outcome, Plan};
pub use table::{quantized, table, tally};
pub use trace::{TraceConfig, trace};
