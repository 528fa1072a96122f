//! The table, as text.

use std::fmt::Write as _;

use crate::Outcome;

/// Every figure of every outcome, a line each.
pub fn table(outcomes: &[Outcome]) -> String {
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
                figure.what.to_owned(),
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

/// How many figures hold, of those that are judged.
pub fn tally(outcomes: &[Outcome]) -> (usize, usize) {
    let judged = outcomes
        .iter()
        .flat_map(|o| &o.figures)
        .filter_map(|f| f.holds);
    judged.fold((0, 0), |(held, all), holds| {
        (held + usize::from(holds), all + 1)
    })
}
