//! The report: one page that needs no other file.

use std::fmt::Write as _;

use crate::Outcome;

/// The report on `outcomes`, as one HTML page.
pub fn html(outcomes: &[Outcome], seed: u64) -> String {
    let mut out =
        String::from("<!doctype html>\n<meta charset=\"utf-8\">\n<title>Fullsend lab</title>\n");
    let _ = write!(out, "<pre>seed {seed}\n{}</pre>\n", crate::table(outcomes));
    out
}
