//! The experiments, a file each.

mod tso_split;

use crate::Experiment;

pub(crate) const ALL: &[Experiment] = &[tso_split::EXPERIMENT];
