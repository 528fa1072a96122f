//! What an experiment is.

use std::sync::atomic::{AtomicU32, Ordering};

use fullsend_units::Nanos;

use crate::Measures;
use crate::experiments;
use crate::figure::Figure;
use crate::net::Net;
use crate::plot::Plot;

/// How much of an experiment to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// The reference's setting.
    Full,
    /// A smaller one that shows the same, for tests.
    Quick,
}

/// Time since any moment that does not change.
pub type Clock = fn() -> Nanos;

/// One run of an experiment, and where it tells how far it is.
#[derive(Debug)]
pub struct Run<'a> {
    /// Number of the case, in [`Experiment::cases`].
    pub case: usize,
    /// All randomness of the run derives from it.
    pub seed: u64,
    /// How much of it.
    pub scale: Scale,
    /// For what real time is the point of; without it that is left out.
    pub clock: Option<Clock>,
    /// How far it is.
    pub progress: &'a Progress,
}

impl Run<'_> {
    /// `full` of a full run, `quick` of a quick one.
    pub(crate) const fn scaled<T: Copy>(&self, full: T, quick: T) -> T {
        match self.scale {
            Scale::Full => full,
            Scale::Quick => quick,
        }
    }

    /// The first case of every experiment is how it was before.
    pub(crate) const fn before(&self) -> bool {
        self.case == BEFORE
    }
}

/// The case that shows how it was.
pub(crate) const BEFORE: usize = 0;
/// The case that shows how it is.
pub(crate) const AFTER: usize = 1;

/// How far a run is; read while it runs.
#[derive(Debug, Default)]
pub struct Progress(AtomicU32);

const WHOLE: u32 = 10_000;

impl Progress {
    pub(crate) fn set(&self, part: f64) {
        let part = (part * f64::from(WHOLE)) as u32;
        self.0.store(part.min(WHOLE), Ordering::Relaxed);
    }

    /// From 0 to 1.
    pub fn get(&self) -> f64 {
        f64::from(self.0.load(Ordering::Relaxed)) / f64::from(WHOLE)
    }
}

/// One mechanism, shown with and without.
#[derive(Debug)]
pub struct Experiment {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows, in one line.
    pub purpose: &'static str,
    /// The public reference its figures come from.
    pub source: &'static str,
    /// Its runs: the first is "before", the second "after".
    pub cases: &'static [&'static str],
    /// About how long each case takes, in any unit, for the order of work and the progress bar.
    pub(crate) weights: &'static [u32],
    pub(crate) run: fn(&Run<'_>) -> Measures,
    pub(crate) figures: fn(&[Measures]) -> Vec<Figure>,
    pub(crate) plots: fn(&[Measures]) -> Vec<Plot>,
    /// A small representative run, where there is a network to look at.
    pub(crate) trace: Option<Trace>,
}

/// Builds a network, gives it to the second argument, which attaches what looks at packets, and
/// runs it.
pub(crate) type Trace = fn(&Run<'_>, &mut dyn FnMut(&mut Net));

impl Experiment {
    /// Runs one case.
    pub fn run(&self, run: &Run<'_>) -> Measures {
        let measures = (self.run)(run);
        run.progress.set(1.0);
        measures
    }

    /// The table's rows, from what the cases measured.
    pub fn figures(&self, cases: &[Measures]) -> Vec<Figure> {
        (self.figures)(cases)
    }
}

/// Every experiment, in the order of the table.
pub const EXPERIMENTS: &[Experiment] = experiments::ALL;

/// The experiment called `name`.
///
/// # Errors
/// If there is none, with the names there are.
pub fn by_name(name: &str) -> Result<&'static Experiment, String> {
    let found = EXPERIMENTS
        .iter()
        .find(|experiment| experiment.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = EXPERIMENTS.iter().map(|e| e.name).collect();
        format!(
            "there is no experiment `{name}`; there are: {}",
            names.join(", ")
        )
    })
}
