//! What the report draws.

use crate::measure::{Histogram, Series};

/// A plot: curves or histograms of several cases over each other.
#[derive(Clone, PartialEq, Debug)]
pub struct Plot {
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    /// A case's name and its data.
    pub(crate) curves: Vec<(&'static str, Data)>,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    /// The vertical axis is logarithmic.
    pub(crate) log: bool,
}

/// How data is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Line,
    Dots,
    Bars,
}

/// What is drawn.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Data {
    Series(Series),
    Histogram(Histogram),
}
