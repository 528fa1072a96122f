//! What the report draws.

use crate::experiment::Experiment;
use crate::measure::{Histogram, Measures, Series};

/// A plot: curves or histograms of several cases over each other.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    /// What the vertical axis counts.
    pub(crate) y: &'static str,
    pub(crate) data: Data,
}

/// How values over time are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Line,
    Dots,
}

/// What is drawn, with the names of the cases.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Data {
    OverTime(Kind, Vec<(&'static str, Series)>),
    Histograms(Vec<(&'static str, Histogram)>),
}

impl Plot {
    /// The series called `name` of every case that has it.
    pub(crate) fn over_time(
        title: &'static str,
        y: &'static str,
        kind: Kind,
        cases: &[Measures],
        name: &str,
        experiment: &Experiment,
    ) -> Self {
        let named = experiment.cases.iter().zip(cases);
        let curves = named.filter_map(|(case, m)| Some((*case, m.series(name)?.clone())));
        Self {
            title,
            y,
            data: Data::OverTime(kind, curves.collect()),
        }
    }

    /// The histogram called `name` of every case that has it; `of` is what it counts.
    pub(crate) fn histograms(
        title: &'static str,
        of: &'static str,
        cases: &[Measures],
        name: &str,
        experiment: &Experiment,
    ) -> Self {
        let named = experiment.cases.iter().zip(cases);
        let bars = named.filter_map(|(case, m)| Some((*case, m.histogram(name)?.clone())));
        Self {
            title,
            y: of,
            data: Data::Histograms(bars.collect()),
        }
    }
}
