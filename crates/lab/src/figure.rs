//! Figures of the references and of this stack, and their comparison.

use serde::Serialize;

/// The condition on this stack's two values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Check {
    /// The values are exactly these.
    Exactly([f64; 2]),
    /// The only value is exactly this.
    ExactlyOne(f64),
    /// The first is exactly this, and the second at least that.
    FromTo(f64, f64),
    /// The first is zero, and the second is not.
    ZeroThenMore,
    /// Each is within this fraction of the reference's.
    Within(f64),
    /// The second is at least this many times the first.
    RisesBy(f64),
    /// The first is at least this many times the second.
    FallsBy(f64),
    /// The values differ by at most this fraction.
    Unchanged(f64),
    /// The only value is at least this.
    AtLeast(f64),
    /// The only value is at most this.
    AtMost(f64),
    /// No condition: the row is for information.
    NotJudged,
}

/// One row of the table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// The measured quantity.
    pub what: String,
    /// The unit.
    pub unit: &'static str,
    /// The reference's values, before and after.
    pub reference: [Option<f64>; 2],
    /// This stack's values, before and after.
    pub ours: [Option<f64>; 2],
    /// The condition holds; `None` if there is none.
    pub holds: Option<bool>,
    /// The verdict in words.
    pub verdict: String,
    #[serde(skip)]
    digits: usize,
}

impl Figure {
    /// Returns a figure with `digits` decimals.
    pub(crate) fn new(what: impl Into<String>, unit: &'static str, digits: usize) -> Self {
        Self {
            what: what.into(),
            unit,
            reference: [None; 2],
            ours: [None; 2],
            holds: None,
            verdict: String::new(),
            digits,
        }
    }

    pub(crate) const fn reference(mut self, before: f64, after: f64) -> Self {
        self.reference = [Some(before), Some(after)];
        self
    }

    pub(crate) const fn ours(mut self, before: f64, after: f64) -> Self {
        self.ours = [Some(before), Some(after)];
        self
    }

    /// Sets the only value, without a "before".
    pub(crate) const fn ours_after(mut self, after: f64) -> Self {
        self.ours = [None, Some(after)];
        self
    }

    pub(crate) const fn reference_after(mut self, after: f64) -> Self {
        self.reference = [None, Some(after)];
        self
    }

    pub(crate) fn check(mut self, check: Check) -> Self {
        let (holds, verdict) = judge(check, self.reference, self.ours);
        self.holds = holds;
        self.verdict = match holds {
            Some(false) => format!("NOT {verdict}"),
            _ => verdict,
        };
        self
    }

    /// Formats a pair of values as `before -> after`.
    pub fn show(&self, values: [Option<f64>; 2]) -> String {
        match values {
            [Some(before), Some(after)] => {
                format!("{} -> {}", self.number(before), self.number(after))
            }
            [None, Some(one)] | [Some(one), None] => self.number(one),
            [None, None] => "-".to_owned(),
        }
    }

    fn number(&self, value: f64) -> String {
        let text = format!("{value:.*}", self.digits);
        let (whole, fraction) = match text.split_once('.') {
            Some((whole, fraction)) => (whole, fraction.trim_end_matches('0')),
            None => (text.as_str(), ""),
        };
        let mut out = String::new();
        for (i, digit) in whole.chars().enumerate() {
            if i > 0 && (whole.len() - i) % 3 == 0 && whole.len() > 4 {
                out.push(',');
            }
            out.push(digit);
        }
        if !fraction.is_empty() {
            out.push('.');
            out.push_str(fraction);
        }
        out
    }
}

/// Returns whether the values are equal, except for rounding.
fn equal(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

fn close(a: f64, b: f64, part: f64) -> bool {
    (a - b).abs() <= part * b.abs()
}

/// Judges a ratio whose direction the caller has fixed. A ratio that is not finite, because a value
/// is zero, does not hold.
fn at_least_times(ratio: Option<f64>, least: f64) -> (Option<bool>, String) {
    let ratio = ratio.filter(|ratio| ratio.is_finite()).unwrap_or(0.0);
    let verdict = format!("{ratio:.2}x (at least {least}x)");
    (Some(ratio >= least), verdict)
}

fn judge(
    check: Check,
    reference: [Option<f64>; 2],
    ours: [Option<f64>; 2],
) -> (Option<bool>, String) {
    let [before, after] = ours;
    let both = before.zip(after);
    let percent = |part: f64| format!("{} %", (part * 1000.0).round() / 10.0);
    match check {
        Check::Exactly([b, a]) => {
            let holds = both.is_some_and(|ours| equal(ours.0, b) && equal(ours.1, a));
            (Some(holds), "exact".to_owned())
        }
        Check::ExactlyOne(value) => (
            Some(after.is_some_and(|after| equal(after, value))),
            "exact".to_owned(),
        ),
        Check::FromTo(from, least) => {
            let holds = both.is_some_and(|(b, a)| equal(b, from) && a >= least);
            (Some(holds), format!("exact, then at least {least:.0}"))
        }
        Check::ZeroThenMore => {
            let holds = both.is_some_and(|(b, a)| b == 0.0 && a > 0.0);
            (Some(holds), "0 when off, more when on".to_owned())
        }
        Check::Within(part) => {
            let mut pairs = reference.into_iter().zip(ours);
            let holds = pairs.all(|pair| match pair {
                (Some(theirs), Some(ours)) => close(ours, theirs, part),
                (None, _) => true,
                _ => false,
            });
            (Some(holds), format!("within {}", percent(part)))
        }
        Check::RisesBy(least) => at_least_times(both.map(|(b, a)| a / b), least),
        Check::FallsBy(least) => at_least_times(both.map(|(b, a)| b / a), least),
        Check::Unchanged(part) => {
            let holds = both.is_some_and(|(b, a)| close(a, b, part));
            (Some(holds), format!("unchanged within {}", percent(part)))
        }
        Check::AtLeast(least) => (
            Some(after.is_some_and(|after| after >= least)),
            format!("at least {least}"),
        ),
        Check::AtMost(most) => (
            Some(after.is_some_and(|after| after <= most)),
            format!("at most {most}"),
        ),
        Check::NotJudged => (None, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Check, Figure};

    #[test]
    fn verdicts_state_the_check_and_its_result() {
        let figure = |check| {
            Figure::new("x", "packets", 2)
                .reference(3.0, 2.0)
                .ours(3.0, 2.0)
                .check(check)
        };
        let exact = figure(Check::Exactly([3.0, 2.0]));
        assert_eq!((exact.holds, exact.verdict.as_str()), (Some(true), "exact"));
        let wrong = figure(Check::Exactly([3.0, 1.0]));
        assert_eq!(
            (wrong.holds, wrong.verdict.as_str()),
            (Some(false), "NOT exact")
        );
        assert_eq!(figure(Check::FallsBy(1.4)).verdict, "1.50x (at least 1.4x)");
        assert_eq!(figure(Check::FallsBy(1.6)).holds, Some(false));
        assert_eq!(figure(Check::NotJudged).holds, None);
        assert_eq!(figure(Check::AtLeast(2.0)).verdict, "at least 2");
        assert_eq!(figure(Check::AtMost(1.5)).verdict, "NOT at most 1.5");
        assert_eq!(
            figure(Check::Unchanged(0.1)).verdict,
            "NOT unchanged within 10 %"
        );
    }

    #[test]
    fn a_ratio_in_the_opposite_direction_does_not_hold() {
        // Without a reference, the direction must not be derived from the two values.
        let figure = |before, after, check| {
            let figure = Figure::new("x", "", 0).ours(before, after).check(check);
            figure.holds
        };
        assert_eq!(figure(1.0, 2.0, Check::RisesBy(2.0)), Some(true));
        assert_eq!(figure(2.0, 1.0, Check::RisesBy(2.0)), Some(false));
        assert_eq!(figure(2.0, 1.0, Check::FallsBy(2.0)), Some(true));
        assert_eq!(figure(1.0, 2.0, Check::FallsBy(2.0)), Some(false));
        assert_eq!(figure(0.0, 2.0, Check::RisesBy(2.0)), Some(false));
        assert_eq!(figure(0.0, 0.0, Check::FallsBy(2.0)), Some(false));
    }

    #[test]
    fn numbers_are_grouped_and_trimmed() {
        let figure = Figure::new("x", "bytes", 2);
        let show = |before, after| figure.show([before, after]);
        assert_eq!(show(Some(3.0), Some(2.0)), "3 -> 2");
        assert_eq!(show(Some(1417.333), Some(280_774.0)), "1417.33 -> 280,774");
        assert_eq!(show(None, Some(12_345_678.5)), "12,345,678.5");
        assert_eq!(show(None, None), "-");
    }
}
