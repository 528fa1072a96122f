//! Plots as SVG, in the colours of the page.

use std::fmt::Write as _;

use crate::measure::{NamedHistogram, Series};
use crate::plot::PlotStyle;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;
/// Most points of a curve that its width can show.
const POINTS: usize = 700;

/// The part of the picture inside the axes, with the values at its edges.
struct Frame {
    x: [f64; 2],
    y_max: f64,
}

impl Frame {
    fn x(&self, x: f64) -> f64 {
        let [first, last] = self.x;
        LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - y / self.y_max * (HEIGHT - TOP - BOTTOM)
    }
}

/// Draws the curves of all cases over time; each is given with the number of its colour.
pub(crate) fn over_time(kind: PlotStyle, y: &str, curves: &[(usize, &Series)]) -> String {
    let all = || curves.iter().flat_map(|(_, series)| &series.points);
    let times = || all().map(|(t, _)| *t);
    let first = times().reduce(f64::min).unwrap_or(0.0);
    let last = times().reduce(f64::max).unwrap_or(1.0);
    let most = all().map(|(_, v)| *v).fold(0.0, f64::max);
    let step = nice_step(most, 5.0);
    // Times below two seconds are shown in milliseconds.
    let (scale, unit) = if last < 2.0 { (1e3, "ms") } else { (1.0, "s") };
    let frame = Frame {
        x: [
            (first * scale).floor(),
            (last * scale).max((first * scale).floor() + 1.0),
        ],
        y_max: (most / step).ceil().max(1.0) * step,
    };
    let mut out = open(y, &format!("time, {unit}"));
    y_axis(&mut out, &frame, step);
    let step = nice_step(frame.x[1] - frame.x[0], 8.0);
    let ticks = (frame.x[0] / step).ceil() as i64..=(frame.x[1] / step).floor() as i64;
    for tick in ticks {
        let at = tick as f64 * step;
        x_tick(&mut out, frame.x(at), &number(at));
    }
    for (case, series) in curves {
        let points: Vec<(f64, f64)> = thinned(&series.points)
            .map(|(t, v)| (frame.x(t * scale), frame.y(v)))
            .collect();
        match kind {
            PlotStyle::Line => line(&mut out, *case, &points),
            PlotStyle::Dots => dots(&mut out, *case, &points),
        }
    }
    out.push_str("</svg>");
    out
}

/// Draws bars over powers of two, the cases side by side, each as a share of its total.
pub(crate) fn histograms(of: &str, bars: &[(usize, &NamedHistogram)]) -> String {
    let used = |h: &NamedHistogram| {
        let first = h.counts.iter().position(|count| *count > 0).unwrap_or(0);
        (first, h.counts.len())
    };
    let spans = bars.iter().map(|(_, h)| used(h));
    let (first, end) = spans.fold((usize::MAX, 1), |(a, b), (f, e)| (a.min(f), b.max(e)));
    let first = first.min(end - 1);
    let frame = Frame {
        x: [first as f64, end as f64],
        y_max: 100.0,
    };
    let mut out = open("% of sends", &format!("{of}, from each power of two on"));
    y_axis(&mut out, &frame, 20.0);
    for bucket in first..end {
        let middle = f64::midpoint(frame.x(bucket as f64), frame.x(bucket as f64 + 1.0));
        x_tick(&mut out, middle, &power(bucket));
    }
    let slot = frame.x(first as f64 + 1.0) - frame.x(first as f64);
    let width = (slot * 0.8 / bars.len().max(1) as f64).min(36.0);
    for (place, (case, histogram)) in bars.iter().enumerate() {
        let total = histogram.total().max(1) as f64;
        for (bucket, count) in histogram.counts.iter().enumerate().skip(first) {
            if *count == 0 {
                continue;
            }
            let share = *count as f64 / total * 100.0;
            let centre = f64::midpoint(frame.x(bucket as f64), frame.x(bucket as f64 + 1.0));
            let x = centre + (place as f64 - bars.len() as f64 / 2.0) * width;
            let (top, bottom) = (frame.y(share), frame.y(0.0));
            // A share too small to see is drawn nonetheless.
            let height = (bottom - top).max(1.5);
            let _ = write!(
                out,
                "<rect class=\"f{case}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\">\
                 <title>{count} ({share:.1} %)</title></rect>",
                bottom - height,
                width - 1.0,
            );
        }
    }
    out.push_str("</svg>");
    out
}

fn open(y: &str, x: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\
         <text class=\"unit\" x=\"4\" y=\"14\">{y}</text>\
         <text class=\"unit\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{x}</text>",
        WIDTH - RIGHT,
        HEIGHT - 4.0
    )
}

fn y_axis(out: &mut String, frame: &Frame, step: f64) {
    for tick in 0..=(frame.y_max / step).round() as u32 {
        let value = f64::from(tick) * step;
        let y = frame.y(value);
        let class = if value == 0.0 { "axis" } else { "grid" };
        let _ = write!(
            out,
            "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            number(value)
        );
    }
}

fn x_tick(out: &mut String, x: f64, label: &str) {
    let bottom = HEIGHT - BOTTOM;
    let _ = write!(
        out,
        "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{bottom}\" y2=\"{}\"/>\
         <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
        bottom + 4.0,
        bottom + 17.0
    );
}

fn line(out: &mut String, case: usize, points: &[(f64, f64)]) {
    let _ = write!(out, "<path class=\"s{case}\" d=\"");
    for (i, (x, y)) in points.iter().enumerate() {
        let _ = write!(out, "{}{x:.1} {y:.1}", if i == 0 { "M" } else { "L" });
    }
    out.push_str("\"/>");
}

fn dots(out: &mut String, case: usize, points: &[(f64, f64)]) {
    // A stroke of length zero with round ends is a dot, in a fifth of a circle's bytes.
    let _ = write!(out, "<path class=\"s{case} dots\" d=\"");
    for (x, y) in points {
        let _ = write!(out, "M{x:.1} {y:.1}h0");
    }
    out.push_str("\"/>");
}

/// Returns evenly chosen points, at most as many as are visible.
fn thinned(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> {
    points
        .iter()
        .copied()
        .step_by(points.len().div_ceil(POINTS).max(1))
}

/// Returns 1, 2 or 5 times a power of ten, about `parts` of which are `range`.
fn nice_step(range: f64, parts: f64) -> f64 {
    let rough = (range / parts).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    let mantissa = rough / power;
    let nice = match mantissa {
        m if m <= 1.0 => 1.0,
        m if m <= 2.0 => 2.0,
        m if m <= 5.0 => 5.0,
        _ => 10.0,
    };
    nice * power
}

/// Formats the value of a tick.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        v if v >= 1e4 => format!("{}k", trimmed(value / 1e3)),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats `2^n` with a prefix of 1024.
fn power(n: usize) -> String {
    match n {
        0..10 => (1u64 << n).to_string(),
        10..20 => format!("{}K", 1u64 << (n - 10)),
        20..30 => format!("{}M", 1u64 << (n - 20)),
        _ => format!("{}G", 1u64 << (n - 30).min(33)),
    }
}

#[cfg(test)]
mod tests {
    use super::{histograms, nice_step, number, over_time, power};
    use crate::measure::{NamedHistogram, Series};
    use crate::plot::PlotStyle;

    #[test]
    fn ticks_are_round_and_short() {
        assert_eq!(nice_step(9410.0, 5.0), 2000.0);
        assert_eq!(nice_step(3.8, 5.0), 1.0);
        assert!(nice_step(0.0, 5.0) > 0.0);
        let shown = [0.0, 0.25, 2000.0, 60_000.0, 1_500_000.0].map(number);
        assert_eq!(shown, ["0", "0.25", "2000", "60k", "1.5M"]);
        assert_eq!([0, 9, 12, 21].map(power), ["1", "512", "4K", "2M"]);
    }

    #[test]
    fn plots_without_data_are_drawn() {
        let empty = Series::new("x");
        assert!(over_time(PlotStyle::Line, "B", &[(0, &empty)]).ends_with("</svg>"));
        assert!(histograms("B", &[(0, &NamedHistogram::new("x"))]).ends_with("</svg>"));
        assert!(histograms("B", &[]).ends_with("</svg>"));
    }
}
