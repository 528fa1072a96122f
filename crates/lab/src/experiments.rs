//! The experiments, a file each.

mod notsent_lowat;
mod tso_split;

use crate::Experiment;

pub(crate) const ALL: &[Experiment] = &[tso_split::EXPERIMENT, notsent_lowat::EXPERIMENT];
