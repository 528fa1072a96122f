//! Runs experiments, several cases at a time.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::Serialize;

use crate::experiment::{Clock, EXPERIMENTS, Experiment, Progress, Run, Scale};
use crate::plot::Plot;
use crate::{Figure, Measures};

/// An experiment's result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Its name.
    pub experiment: &'static str,
    /// What it shows.
    pub purpose: &'static str,
    /// Where the reference's figures come from.
    pub source: &'static str,
    /// The table's rows.
    pub figures: Vec<Figure>,
    /// What each case measured.
    pub cases: Vec<Case>,
}

impl Outcome {
    /// What there is to draw of it.
    pub(crate) fn plots(&self) -> Vec<Plot> {
        let experiment = EXPERIMENTS.iter().find(|e| e.name == self.experiment);
        let measures: Vec<Measures> = self.cases.iter().map(|c| c.measures.clone()).collect();
        experiment.map_or_else(Vec::new, |experiment| (experiment.plots)(&measures))
    }
}

/// What one case of an experiment measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Its numbers and histograms.
    #[serde(flatten)]
    pub measures: Measures,
}

/// What is to be run, and how far it is.
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
    /// Number in the plan.
    experiment: usize,
    case: usize,
    weight: u32,
    progress: Progress,
    result: Mutex<Option<Measures>>,
}

impl Plan {
    /// Every case of `experiments`, each from `seed`.
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

    /// Also measures what real time is the point of. The outcome is another each time then.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How far all of it is, from 0 to 1.
    pub fn progress(&self) -> f64 {
        let all: u32 = self.jobs.iter().map(|job| job.weight).sum();
        let done = self
            .jobs
            .iter()
            .map(|job| f64::from(job.weight) * job.progress.get());
        done.sum::<f64>() / f64::from(all.max(1))
    }

    /// Cases that have begun and not ended, for people.
    pub fn at_work(&self) -> String {
        let at_work = |job: &&Job| (f64::MIN_POSITIVE..1.0).contains(&job.progress.get());
        let name = |job: &Job| {
            let experiment = self.experiments[job.experiment];
            format!("{} ({})", experiment.name, experiment.cases[job.case])
        };
        let names: Vec<String> = self.jobs.iter().filter(at_work).map(name).collect();
        names.join(", ")
    }

    /// Runs it on `threads` threads. The outcome does not depend on their number.
    pub fn run(&self, threads: usize) -> Vec<Outcome> {
        let mut order: Vec<&Job> = self.jobs.iter().collect();
        // The longest first, so that no thread is left with it in the end.
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

    fn run_job(&self, job: &Job) -> Measures {
        self.experiments[job.experiment].run(&Run {
            case: job.case,
            seed: self.seed,
            scale: self.scale,
            clock: self.clock,
            progress: &job.progress,
        })
    }

    fn outcome(&self, index: usize) -> Outcome {
        let experiment = self.experiments[index];
        let jobs = self.jobs.iter().filter(|job| job.experiment == index);
        let measures: Vec<Measures> = jobs
            .filter_map(|job| {
                job.result
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take()
            })
            .collect();
        let figures = experiment.figures(&measures);
        let cases = experiment.cases.iter().zip(measures);
        Outcome {
            experiment: experiment.name,
            purpose: experiment.purpose,
            source: experiment.source,
            figures,
            cases: cases
                .map(|(&name, measures)| Case { name, measures })
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
