//! The plots of the report.

use crate::experiment::Experiment;
use crate::measure::{Measurements, NamedHistogram, Series};

/// A plot: curves or histograms of several cases in one frame.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Plot {
    pub(crate) title: &'static str,
    /// Label of the vertical axis.
    pub(crate) y: &'static str,
    pub(crate) data: Data,
}

/// The way that values over time are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlotStyle {
    Line,
    Dots,
}

/// The data of a plot, with the names of the cases.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Data {
    OverTime(PlotStyle, Vec<(&'static str, Series)>),
    Histograms(Vec<(&'static str, NamedHistogram)>),
}

impl Plot {
    /// Returns a plot of the series called `name` of every case that has it.
    pub(crate) fn over_time(
        title: &'static str,
        y: &'static str,
        kind: PlotStyle,
        cases: &[Measurements],
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

    /// Returns a plot of the histogram called `name` of every case that has it; `of` is what it
    /// counts.
    pub(crate) fn histograms(
        title: &'static str,
        of: &'static str,
        cases: &[Measurements],
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
