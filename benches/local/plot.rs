//! The cost of an ADD against the leases held, as a drawing.

use std::fmt::Write;

use super::common::times::Times;
use super::measured::Measured;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
/// The drawing's own place: left, top, right, bottom.
const FRAME: [f64; 4] = [64.0, 64.0, 560.0, 360.0];
/// Decades of milliseconds.
const COSTS: [f64; 2] = [0.1, 1000.0];
/// Decades of leases, right of the place of none.
const LEASES: [f64; 2] = [500.0, 50_000.0];
/// Where none held stands: a logarithm has no zero.
const NONE: f64 = 48.0;

const STYLE: &str = "\
svg { background: #fff; font: 13px system-ui, sans-serif }
text { fill: #333 } .title { font-size: 16px; font-weight: 600; fill: #111 }
.grid { stroke: #ddd } .axis { stroke: #888 } .line { fill: none; stroke-width: 2.5 }
.host-local { stroke: #b3541e } text.host-local, circle.host-local { fill: #b3541e; stroke: none }
.chain { stroke: #1b6ca8 } text.chain, circle.chain { fill: #1b6ca8; stroke: none }
.floor { stroke: #777 } text.floor { fill: #666; stroke: none } .dashed { stroke-dasharray: 4 5 }
.bold { font-weight: 600 }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117 } text { fill: #c9d1d9 } .title { fill: #f0f6fc }
.grid { stroke: #2b323b } .axis { stroke: #8b949e }
.host-local { stroke: #f0883e } text.host-local, circle.host-local { fill: #f0883e }
.chain { stroke: #58a6ff } text.chain, circle.chain { fill: #58a6ff }
.floor { stroke: #8b949e } text.floor { fill: #8b949e } }
";

/// Draws it, on logarithmic scales.
pub fn svg(measured: &[Measured], floor: &Times, runs: usize) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Time of an ADD against the leases held\">\n<style>{STYLE}</style>\n"
    );
    text(&mut out, [FRAME[0], 28.0], "title", "Time of an ADD against the leases held");
    let note = format!(
        "whole processes, static builds; medians of {runs} interleaved runs, bars are quartiles"
    );
    text(&mut out, [FRAME[0], 48.0], "", &note);
    axes(&mut out);
    let held = |of: fn(&Measured) -> &Times| {
        measured.iter().map(move |m| (m.held, of(m))).collect::<Vec<_>>()
    };
    let ends =
        measured.first().zip(measured.last()).map(|(a, b)| [(a.held, floor), (b.held, floor)]);
    curve(&mut out, "floor", "three bare processes", &ends.unwrap_or([(0, floor); 2]));
    curve(&mut out, "host-local", "host-local", &held(|m| &m.host_local[0]));
    curve(&mut out, "chain", "ipam-delegated", &held(|m| &m.chain[0]));
    out.push_str("</svg>\n");
    out
}

fn axes(out: &mut String) {
    let [left, _, right, bottom] = FRAME;
    for milliseconds in [0.1, 1.0, 10.0, 100.0, 1000.0] {
        let y = y(milliseconds);
        line(out, "grid", [left, y], [right, y]);
        let label = format!("{milliseconds} ms");
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            left - 8.0,
            y + 4.0
        );
    }
    line(out, "axis", [left, bottom], [left + NONE - 12.0, bottom]);
    line(out, "axis", [left + NONE + 12.0, bottom], [right, bottom]);
    for (held, label) in [(0, "0"), (1_000, "1,000"), (10_000, "10,000"), (50_000, "50,000")] {
        let x = x(held);
        line(out, "axis", [x, bottom], [x, bottom + 5.0]);
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 20.0
        );
    }
    let middle = f64::midpoint(left, right);
    let _ = writeln!(
        out,
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">leases held</text>",
        bottom + 42.0
    );
}

fn curve(out: &mut String, class: &str, name: &str, points: &[(usize, &Times)]) {
    let at = |(held, times): &(usize, &Times)| [x(*held), y(times.median())];
    let bare = class == "floor";
    for (i, pair) in points.windows(2).enumerate() {
        let dashed = if bare || i == 0 { "dashed" } else { "" };
        line(out, &format!("line {class} {dashed}"), at(&pair[0]), at(&pair[1]));
    }
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
    if !bare {
        for point in points {
            let [x, middle] = at(point);
            let [low, high] = [0.25, 0.75].map(|share| y(point.1.at(share)));
            line(out, class, [x, low], [x, high]);
            let _ = writeln!(
                out,
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"4\"/>"
            );
        }
        let [x, y] = at(first);
        text(out, [x - 14.0, y - 10.0], class, &milliseconds(first.1));
    }
    let [x, y] = at(last);
    let label = format!("{name} {}", milliseconds(last.1));
    let bold = if bare { "" } else { " bold" };
    text(out, [x + 12.0, y + 4.0], &format!("{class}{bold}"), &label);
}

fn milliseconds(times: &Times) -> String {
    let median = times.median();
    if median < 10.0 { format!("{median:.1} ms") } else { format!("{median:.0} ms") }
}

fn text(out: &mut String, [x, y]: [f64; 2], class: &str, text: &str) {
    let _ = writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
}

fn line(out: &mut String, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
    let class = class.trim_end();
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn y(milliseconds: f64) -> f64 {
    let [_, top, _, bottom] = FRAME;
    bottom - (bottom - top) * share(milliseconds, COSTS)
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
fn x(held: usize) -> f64 {
    let [left, _, right, _] = FRAME;
    match held {
        0 => left + NONE,
        _ => left + NONE + (right - left - NONE) * share(held as f64, LEASES),
    }
}

/// The place of a number between two others, by their logarithms.
fn share(number: f64, [from, to]: [f64; 2]) -> f64 {
    (number / from).ln() / (to / from).ln()
}
