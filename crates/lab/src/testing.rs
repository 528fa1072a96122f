//! Quick runs, for the tests of experiments.

use crate::experiment::{Progress, Run, Scale};
use crate::{Experiment, Measures};

pub(crate) fn quick(experiment: &Experiment, case: usize) -> Measures {
    experiment.run(&Run {
        case,
        seed: 1,
        scale: Scale::Quick,
        clock: None,
        progress: &Progress::default(),
    })
}

pub(crate) fn quick_all(experiment: &Experiment) -> Vec<Measures> {
    (0..experiment.cases.len())
        .map(|case| quick(experiment, case))
        .collect()
}
