//! The experiments, one file each.

mod autocorking;
mod fairness;
mod gro_parse;
mod max_burst;
mod notsent_lowat;
mod reordering;
mod tso_split;

use crate::Experiment;

pub(crate) const ALL: &[Experiment] = &[
    tso_split::EXPERIMENT,
    autocorking::EXPERIMENT,
    notsent_lowat::EXPERIMENT,
    max_burst::EXPERIMENT,
    gro_parse::EXPERIMENT,
    fairness::EXPERIMENT,
    reordering::EXPERIMENT,
];
