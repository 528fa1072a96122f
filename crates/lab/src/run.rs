//! Runs experiments, several cases concurrently.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::Serialize;

use crate::experiment::{Clock, EXPERIMENTS, Experiment, Progress, RunContext, Scale};
use crate::plot::Plot;
use crate::{Figure, Measurements};

/// The result of an experiment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ExperimentResult {
    /// The experiment's name.
    pub experiment: &'static str,
    /// The effect that the experiment shows.
    pub purpose: &'static str,
    /// The reference of its figures.
    pub source: &'static str,
    /// The rows of the table.
    pub figures: Vec<Figure>,
    /// The measurements of each case.
    pub cases: Vec<CaseResult>,
}

impl ExperimentResult {
    /// Returns the plots.
    pub(crate) fn plots(&self) -> Vec<Plot> {
        let experiment = EXPERIMENTS.iter().find(|e| e.name == self.experiment);
        let measures: Vec<Measurements> = self.cases.iter().map(|c| c.measures.clone()).collect();
        experiment.map_or_else(Vec::new, |experiment| (experiment.plots)(&measures))
    }
}

/// The measurements of one case of an experiment.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CaseResult {
    /// The case's name.
    pub name: &'static str,
    /// The numbers and histograms.
    #[serde(flatten)]
    pub measures: Measurements,
}

/// The cases to run, with their progress.
#[derive(Debug)]
pub struct Plan {
    jobs: Vec<Job>,
    experiments: Vec<&'static Experiment>,
    seed: u64,
    scale: Scale,
    clock: Option<Clock>,
}

#[derive(Debug)]
struct Job {
    /// Index of the experiment in the plan.
    experiment: usize,
    case: usize,
    weight: u32,
    progress: Progress,
    result: Mutex<Option<Measurements>>,
}

impl Plan {
    /// Returns a plan of every case of `experiments`, each run from `seed`.
    pub fn new(experiments: Vec<&'static Experiment>, seed: u64, scale: Scale) -> Self {
        let cases = |(i, experiment): (usize, &&'static Experiment)| {
            let weights = experiment.weights.iter().enumerate();
            let jobs = weights.map(move |(case, weight)| Job {
                experiment: i,
                case,
                weight: *weight,
                progress: Progress::default(),
                result: Mutex::new(None),
            });
            jobs.collect::<Vec<_>>()
        };
        Self {
            jobs: experiments.iter().enumerate().flat_map(cases).collect(),
            experiments,
            seed,
            scale,
            clock: None,
        }
    }

    /// Enables measurements of real time, whose results vary from run to run.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Returns the completed part of the plan, from 0 to 1.
    pub fn progress(&self) -> f64 {
        let all: u32 = self.jobs.iter().map(|job| job.weight).sum();
        let done = self
            .jobs
            .iter()
            .map(|job| f64::from(job.weight) * job.progress.get());
        done.sum::<f64>() / f64::from(all.max(1))
    }

    /// Returns the names of the cases that are running, for a progress line.
    pub fn running_cases(&self) -> String {
        let running_cases = |job: &&Job| (f64::MIN_POSITIVE..1.0).contains(&job.progress.get());
        let name = |job: &Job| {
            let experiment = self.experiments[job.experiment];
            format!("{} ({})", experiment.name, experiment.cases[job.case])
        };
        let names: Vec<String> = self.jobs.iter().filter(running_cases).map(name).collect();
        names.join(", ")
    }

    /// Runs the plan on `threads` threads. The results do not depend on their number.
    pub fn run(&self, threads: usize) -> Vec<ExperimentResult> {
        let mut order: Vec<&Job> = self.jobs.iter().collect();
        // The longest first, so that none of them is started last.
        order.sort_by_key(|job| std::cmp::Reverse(job.weight));
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..threads.clamp(1, order.len().max(1)) {
                scope.spawn(|| {
                    while let Some(job) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let measures = self.run_job(job);
                        let mut result = job.result.lock().unwrap_or_else(PoisonError::into_inner);
                        *result = Some(measures);
                    }
                });
            }
        });
        (0..self.experiments.len())
            .map(|i| self.outcome(i))
            .collect()
    }

    fn run_job(&self, job: &Job) -> Measurements {
        self.experiments[job.experiment].run(&RunContext {
            case: job.case,
            seed: self.seed,
            scale: self.scale,
            clock: self.clock,
            progress: &job.progress,
        })
    }

    fn outcome(&self, index: usize) -> ExperimentResult {
        let experiment = self.experiments[index];
        let jobs = self.jobs.iter().filter(|job| job.experiment == index);
        let measures: Vec<Measurements> = jobs
            .filter_map(|job| {
                job.result
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take()
            })
            .collect();
        let figures = experiment.figures(&measures);
        let cases = experiment.cases.iter().zip(measures);
        ExperimentResult {
            experiment: experiment.name,
            purpose: experiment.purpose,
            source: experiment.source,
            figures,
            cases: cases
                .map(|(&name, measures)| CaseResult { name, measures })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;
    use crate::experiment::{EXPERIMENTS, Scale};

    #[test]
    fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
        let run = |threads| {
            let plan = Plan::new(EXPERIMENTS.iter().collect(), 7, Scale::Quick);
            let outcomes = plan.run(threads);
            let json = serde_json::to_string(&outcomes).expect("numbers and strings");
            (json, crate::html(&outcomes, 7))
        };
        let (one, three) = (run(1), run(3));
        assert_eq!(one, three);
        assert!(one.0.contains("\"packets_per_transaction\":3.0"));
    }
}
