//! The measurements of a run: numbers, curves over time, histograms.

use std::collections::BTreeMap;

use fullsend_wire::Instant;
use serde::Serialize;

/// The measurements of one run of an experiment.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Measurements {
    /// Numbers by name; the name contains the unit.
    pub values: BTreeMap<&'static str, f64>,
    /// Power-of-two histograms.
    pub histograms: Vec<NamedHistogram>,
    /// Curves over time, which are part of the report but not of the JSON.
    #[serde(skip)]
    pub series: Vec<Series>,
}

impl Measurements {
    pub(crate) fn set(&mut self, name: &'static str, value: f64) {
        self.values.insert(name, value);
    }

    /// Returns a number by its name.
    ///
    /// # Panics
    /// If the run did not measure it.
    pub fn get(&self, name: &str) -> f64 {
        let found = self.values.get(name);
        *found.unwrap_or_else(|| panic!("`{name}` was not measured"))
    }

    pub(crate) fn series(&self, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.name == name)
    }

    pub(crate) fn histogram(&self, name: &str) -> Option<&NamedHistogram> {
        self.histograms
            .iter()
            .find(|histogram| histogram.name == name)
    }
}

/// A curve over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// The quantity that the curve shows.
    pub name: &'static str,
    /// Times in seconds and values, in order of time.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            points: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, at: Instant, value: f64) {
        self.points.push((at.as_nanos() as f64 / 1e9, value));
    }

    /// Returns the mean of the values after `start`.
    pub(crate) fn mean_since(&self, start: Instant) -> f64 {
        let start = start.as_nanos() as f64 / 1e9;
        let late = self.points.iter().filter(|(at, _)| *at > start);
        let (sum, n) = late.fold((0.0, 0), |(sum, n), (_, value)| (sum + value, n + 1));
        sum / f64::from(n.max(1))
    }
}

/// Counts of values between one power of two and the next, like DTrace's `quantize`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NamedHistogram {
    /// The quantity that the histogram counts.
    pub name: &'static str,
    /// Counts by `floor(log2(value))`; the first counts 0 and 1.
    pub counts: Vec<u64>,
}

impl NamedHistogram {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            counts: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, value: u64) {
        let bucket = value.max(1).ilog2() as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
    }

    /// Returns what TCP counted between two readings.
    pub(crate) fn between(
        name: &'static str,
        earlier: &fullsend_tcp::Histogram,
        later: &fullsend_tcp::Histogram,
    ) -> Self {
        let pairs = later.buckets().iter().zip(earlier.buckets());
        let mut counts: Vec<u64> = pairs.map(|(l, e)| u64::from(l.wrapping_sub(*e))).collect();
        while counts.pop_if(|count| *count == 0).is_some() {}
        Self { name, counts }
    }

    pub(crate) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::NamedHistogram;

    #[test]
    fn buckets_begin_at_powers_of_two() {
        let mut histogram = NamedHistogram::new("bytes");
        for value in [0, 1, 2, 3, 4, 4095, 4096] {
            histogram.add(value);
        }
        assert_eq!(histogram.counts[..3], [2, 2, 1]);
        assert_eq!(histogram.counts[11..], [1, 1]);
        assert_eq!(histogram.total(), 7);
    }
}
