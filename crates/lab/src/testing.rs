//! Quick runs, for the tests of experiments.

use crate::experiment::{Progress, RunContext, Scale};
use crate::{Experiment, Measurements};

pub(crate) fn quick(experiment: &Experiment, case: usize) -> Measurements {
    experiment.run(&RunContext {
        case,
        seed: 1,
        scale: Scale::Quick,
        clock: None,
        progress: &Progress::default(),
    })
}

pub(crate) fn quick_all(experiment: &Experiment) -> Vec<Measurements> {
    (0..experiment.cases.len())
        .map(|case| quick(experiment, case))
        .collect()
}
