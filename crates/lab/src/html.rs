//! The report: one self-contained page.

use std::fmt::Write as _;

use crate::figure::Figure;
use crate::plot::{Data, Plot};
use crate::table::quantized;
use crate::{ExperimentResult, svg, tally};

/// Number of colours for curves in the style.
const COLOURS: usize = 4;
const STYLE: &str = include_str!("report.css");

/// Returns the report on `outcomes`, as one HTML page.
pub fn html(outcomes: &[ExperimentResult], seed: u64) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Fullsend lab</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    let (held, all) = tally(outcomes);
    let _ = write!(
        out,
        "<h1>Fullsend lab</h1>\n<p class=\"sum\">{held} of {all} figures are as expected. Virtual \
         time, seed {seed}: the same on any machine, except figures marked measured.</p>\n"
    );
    summary(&mut out, outcomes);
    for outcome in outcomes {
        section(&mut out, outcome);
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn summary(out: &mut String, outcomes: &[ExperimentResult]) {
    out.push_str(
        "<div class=\"wide\"><table>\n<thead><tr><th>experiment</th><th>figure</th>\
         <th class=\"n\">reference<br>before &rarr; after</th>\
         <th class=\"n\">here<br>before &rarr; after</th><th>unit</th><th>verdict</th></tr></thead>\n",
    );
    for outcome in outcomes {
        out.push_str("<tbody>\n");
        for (i, figure) in outcome.figures.iter().enumerate() {
            let name = match i {
                0 => format!("<a href=\"#{0}\">{0}</a>", outcome.experiment),
                _ => String::new(),
            };
            row(out, &name, figure);
        }
        out.push_str("</tbody>\n");
    }
    out.push_str("</table></div>\n");
}

fn row(out: &mut String, name: &str, figure: &Figure) {
    let arrow = |text: String| text.replace("->", "&rarr;");
    let class = match figure.holds {
        Some(true) => "ok",
        Some(false) => "bad",
        None => "info",
    };
    let _ = writeln!(
        out,
        "<tr><td>{name}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td>{}</td><td class=\"{class}\">{}</td></tr>",
        escape(&figure.what),
        arrow(figure.show(figure.reference)),
        arrow(figure.show(figure.ours)),
        escape(figure.unit),
        escape(&figure.verdict)
    );
}

fn section(out: &mut String, outcome: &ExperimentResult) {
    let _ = write!(
        out,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p>{}.</p>\n<p class=\"source\">Reference: {}</p>\n",
        outcome.experiment,
        outcome.experiment,
        capital(&escape(outcome.purpose)),
        escape(outcome.source)
    );
    out.push_str("<div class=\"plots\">\n");
    for plot in outcome.plots() {
        figure(out, outcome, &plot);
    }
    out.push_str("</div>\n");
    details(out, outcome);
    out.push_str("</section>\n");
}

fn figure(out: &mut String, outcome: &ExperimentResult, plot: &Plot) {
    // A case has the same colour in all plots; other curves, and cases beyond the colours, have
    // that of their position.
    let number = |place: usize, name: &str| {
        let case = outcome.cases.iter().position(|c| c.name == name);
        case.filter(|case| *case < COLOURS).unwrap_or(place)
    };
    let (names, picture): (Vec<&str>, String) = match &plot.data {
        Data::OverTime(kind, curves) => {
            let numbered = numbered(curves, number);
            let names = curves.iter().map(|(name, _)| *name).collect();
            (names, svg::over_time(*kind, plot.y, &numbered))
        }
        Data::Histograms(bars) => {
            let numbered = numbered(bars, number);
            let names = bars.iter().map(|(name, _)| *name).collect();
            (names, svg::histograms(plot.y, &numbered))
        }
    };
    let _ = write!(
        out,
        "<figure><figcaption>{}<span class=\"legend\">",
        plot.title
    );
    for (place, name) in names.into_iter().enumerate() {
        let colour = number(place, name);
        let _ = write!(out, "<i class=\"k{colour}\"></i>{}", escape(name));
    }
    let _ = writeln!(out, "</span></figcaption>{picture}</figure>");
}

/// Returns what is drawn, each with the number of its colour.
fn numbered<'a, T>(
    drawn: &'a [(&'static str, T)],
    number: impl Fn(usize, &str) -> usize,
) -> Vec<(usize, &'a T)> {
    let places = drawn.iter().enumerate();
    places
        .map(|(place, (name, what))| (number(place, name), what))
        .collect()
}

/// Adds all measurements of each case, collapsed.
fn details(out: &mut String, outcome: &ExperimentResult) {
    out.push_str("<details><summary>All numbers of each case</summary>\n<pre>");
    for case in &outcome.cases {
        let _ = writeln!(out, "{}", case.name);
        for (name, value) in &case.measures.values {
            let _ = writeln!(out, "  {name:<28} {value:.3}");
        }
        for histogram in &case.measures.histograms {
            let _ = writeln!(out, "  {}", histogram.name);
            out.push_str(&quantized(histogram));
        }
    }
    out.push_str("</pre></details>\n");
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

#[cfg(test)]
mod tests {
    use super::html;
    use crate::experiment::Scale;
    use crate::{Plan, by_name};

    #[test]
    fn the_page_is_self_contained_and_reproducible() {
        let page = || {
            let chosen = vec![by_name("max-burst").expect("it is there")];
            let plan = Plan::new(chosen, 1, Scale::Quick);
            (html(&plan.run(2), 1), plan.progress())
        };
        let (first, done) = page();
        assert_eq!(done, 1.0);
        for word in ["src=", "http://", "https://", "@import", "url("] {
            assert!(!first.contains(word), "{word}");
        }
        assert!(first.matches("<svg").count() >= 5);
        assert_eq!(first, page().0);
    }
}
