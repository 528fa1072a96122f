//! The failure of a run.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

/// The error of a host's software: any error, as `?` converts it.
pub type SoftwareError = Box<dyn Error + Send + Sync>;

/// The result of a host's software.
pub type SoftwareResult = Result<(), SoftwareError>;

/// The reason why a run failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The software of a host returned an error.
    Software {
        /// The name of the host.
        host: String,
        /// The error.
        error: SoftwareError,
    },
    /// The software of a client has not ended at the time limit.
    TimeLimit {
        /// The names of the clients that are still running.
        clients: Vec<String>,
    },
    /// Tasks wake each other without end, and no time passes.
    Stalled,
    /// A host's stack cannot be built, e.g. because of an invalid setting.
    Start {
        /// The name of the host.
        host: String,
        /// The error.
        error: io::Error,
    },
}

/// The error of [`Simulation::run`](crate::Simulation::run). The text has the seed that reproduces it.
#[derive(Debug)]
pub struct RunError {
    pub(crate) seed: u64,
    pub(crate) at: Duration,
    pub(crate) failure: Failure,
}

impl RunError {
    /// Returns the seed of the simulation.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the virtual time since the start of the simulation at which the run failed.
    pub fn at(&self) -> Duration {
        self.at
    }

    /// Returns the reason of the failure.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, failure } = self;
        match failure {
            Failure::Software { host, error } => {
                write!(f, "the software of `{host}` failed after {at:?}: {error}")?;
            }
            Failure::TimeLimit { clients } => write!(
                f,
                "the software of {} had not ended after {at:?}; find out what it waits for, or \
                 call Simulation::set_time_limit",
                names(clients)
            )?,
            Failure::Stalled => write!(
                f,
                "tasks wake each other without end at {at:?}, and no time passes; give the links a \
                 delay or a rate"
            )?,
            Failure::Start { host, error } => {
                write!(f, "the stack of `{host}` could not be built: {error}")?;
            }
        }
        write!(f, " (seed {seed}: {})", replay(*seed))
    }
}

impl Error for RunError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.failure {
            Failure::Software { error, .. } => Some(&**error),
            Failure::Start { error, .. } => Some(error),
            Failure::TimeLimit { .. } | Failure::Stalled => None,
        }
    }
}

/// Returns the text that describes how to repeat the run of a seed.
pub(crate) fn replay(seed: u64) -> String {
    format!(
        "FULLSEND_SEEDS={seed}..{} repeats it",
        seed.saturating_add(1)
    )
}

/// Returns the first names of a list as text.
fn names(all: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<_> = all
        .iter()
        .take(SHOWN)
        .map(|name| format!("`{name}`"))
        .collect();
    let shown = shown.join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
