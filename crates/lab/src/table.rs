//! The results as a text table.

use std::fmt::Write as _;

use crate::{ExperimentResult, NamedHistogram};

/// Returns a table with every figure of every outcome, one line each.
pub fn table(outcomes: &[ExperimentResult]) -> String {
    let mut rows = vec![
        ["", "", "reference", "here", "", ""].map(str::to_owned),
        [
            "experiment",
            "figure",
            "before -> after",
            "before -> after",
            "unit",
            "verdict",
        ]
        .map(str::to_owned),
    ];
    for outcome in outcomes {
        for (i, figure) in outcome.figures.iter().enumerate() {
            let name = if i == 0 { outcome.experiment } else { "" };
            rows.push([
                name.to_owned(),
                figure.what.clone(),
                figure.show(figure.reference),
                figure.show(figure.ours),
                figure.unit.to_owned(),
                figure.verdict.clone(),
            ]);
        }
    }
    let mut out = String::new();
    let width = |column: usize| {
        let widths = rows
            .iter()
            .map(|row: &[String; 6]| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Returns the number of figures that hold, and the number of those judged.
pub fn tally(outcomes: &[ExperimentResult]) -> (usize, usize) {
    let judged = outcomes
        .iter()
        .flat_map(|o| &o.figures)
        .filter_map(|f| f.holds);
    judged.fold((0, 0), |(held, all), holds| {
        (held + usize::from(holds), all + 1)
    })
}

/// Formats a histogram like DTrace's `quantize`.
pub fn quantized(histogram: &NamedHistogram) -> String {
    const WIDTH: u64 = 40;
    let total = histogram.total().max(1);
    let mut out =
        String::from("           value  ------------- Distribution ------------- count\n");
    let first = histogram
        .counts
        .iter()
        .position(|count| *count > 0)
        .unwrap_or(0);
    let mut line = |bucket: usize, count: u64| {
        // The first bucket counts 0 and 1.
        let value = if bucket == 0 { 0 } else { 1u64 << bucket };
        let bar = "@".repeat((count * WIDTH).div_ceil(total) as usize);
        let _ = writeln!(out, "{value:>16} |{bar:<40} {count}");
    };
    if first > 0 {
        line(first - 1, 0);
    }
    for (bucket, count) in histogram.counts.iter().enumerate().skip(first) {
        line(bucket, *count);
    }
    line(histogram.counts.len(), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::quantized;
    use crate::NamedHistogram;

    #[test]
    fn histograms_match_dtrace_format() {
        let mut histogram = NamedHistogram::new("send size");
        (0..30).for_each(|_| histogram.add(7240));
        (0..10).for_each(|_| histogram.add(1448));
        let expected = "           value  ------------- Distribution ------------- count\n             512 |                                         0\n            1024 |@@@@@@@@@@                               10\n            2048 |                                         0\n            4096 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@           30\n            8192 |                                         0\n";
        assert_eq!(quantized(&histogram), expected);
    }
}
