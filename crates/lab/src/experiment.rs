//! The definition of an experiment.

use std::sync::atomic::{AtomicU32, Ordering};

use fullsend_wire::Nanos;

use crate::Measurements;
use crate::experiments;
use crate::figure::Figure;
use crate::net::Net;
use crate::plot::Plot;

/// The size of an experiment's runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// The setting of the reference.
    Full,
    /// A smaller setting with the same effect, for tests.
    Quick,
}

/// A function that returns the time since a fixed moment.
pub type Clock = fn() -> Nanos;

/// One run of an experiment, with its progress.
#[derive(Debug)]
pub struct RunContext<'a> {
    /// Index of the case in [`Experiment::cases`].
    pub case: usize,
    /// Seed of all randomness of the run.
    pub seed: u64,
    /// The size of the run.
    pub scale: Scale,
    /// The clock for measurements of real time; `None` skips them.
    pub clock: Option<Clock>,
    /// The progress of the run.
    pub progress: &'a Progress,
}

impl RunContext<'_> {
    /// Returns `full` in a full run, `quick` in a quick one.
    pub(crate) const fn scaled<T: Copy>(&self, full: T, quick: T) -> T {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => quick,
        }
    }

    /// Returns whether this is the first case, which has the old behaviour in every experiment.
    pub(crate) const fn is_before(&self) -> bool {
        self.case == BEFORE
    }
}

/// The case with the old behaviour.
pub(crate) const BEFORE: usize = 0;
/// The case with the new behaviour.
pub(crate) const AFTER: usize = 1;

/// The progress of a run, which may be read while it runs.
#[derive(Debug, Default)]
pub struct Progress(AtomicU32);

const PROGRESS_SCALE: u32 = 10_000;

impl Progress {
    pub(crate) fn set(&self, part: f64) {
        let part = (part * f64::from(PROGRESS_SCALE)) as u32;
        self.0.store(part.min(PROGRESS_SCALE), Ordering::Relaxed);
    }

    /// Returns the completed part, from 0 to 1.
    pub fn get(&self) -> f64 {
        f64::from(self.0.load(Ordering::Relaxed)) / f64::from(PROGRESS_SCALE)
    }
}

/// An experiment: one mechanism, shown with and without.
#[derive(Debug)]
pub struct Experiment {
    /// The experiment's name on the command line.
    pub name: &'static str,
    /// The result that the experiment shows, in one line.
    pub purpose: &'static str,
    /// The public reference of the experiment's figures.
    pub source: &'static str,
    /// Names of its runs: the first is "before", the second "after".
    pub cases: &'static [&'static str],
    /// Relative durations of the cases, for the order of work and the progress bar.
    pub(crate) weights: &'static [u32],
    pub(crate) run: fn(&RunContext<'_>) -> Measurements,
    pub(crate) figures: fn(&[Measurements]) -> Vec<Figure>,
    pub(crate) plots: fn(&[Measurements]) -> Vec<Plot>,
    /// A small representative run, if the experiment has a network.
    pub(crate) trace: Option<Trace>,
}

/// A function that builds a network, passes it to the second argument, which attaches observers of
/// packets, and runs it.
pub(crate) type Trace = fn(&RunContext<'_>, &mut dyn FnMut(&mut Net));

impl Experiment {
    /// Runs one case.
    pub fn run(&self, run: &RunContext<'_>) -> Measurements {
        let measures = (self.run)(run);
        run.progress.set(1.0);
        measures
    }

    /// Returns the rows of the table from the measurements of the cases.
    pub fn figures(&self, cases: &[Measurements]) -> Vec<Figure> {
        (self.figures)(cases)
    }
}

/// All experiments, in the order of the table.
pub const EXPERIMENTS: &[Experiment] = experiments::ALL;

/// Returns the experiment called `name`.
///
/// # Errors
/// Returns an error that lists the names if there is none.
pub fn by_name(name: &str) -> Result<&'static Experiment, String> {
    let found = EXPERIMENTS
        .iter()
        .find(|experiment| experiment.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        format!(
            "`{name}` is not an experiment; write one of {}",
            names.join(", ")
        )
    })
}
