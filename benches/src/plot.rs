//! The cost of an ADD against the leases held, as a drawing.

use std::fmt::Write;

use crate::times::Times;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
/// The drawing's own place: left, top, right, bottom.
const FRAME: [f64; 4] = [64.0, 64.0, 560.0, 360.0];
/// The least cost shown on a logarithmic scale, in milliseconds.
const LEAST: f64 = 0.1;
/// Decades of leases, right of the place of none.
const LEASES: [f64; 2] = [500.0, 50_000.0];
/// Where the leftmost point is, with no lease held: a logarithm has no zero.
const NONE: f64 = 142.0;
/// Where the same on a busy disk is.
const ON_DISK: f64 = 62.0;

const STYLE: &str = "\
svg { font: 13px system-ui, sans-serif } .ground { fill: #fff }
text { fill: #333 } .title { font-size: 16px; font-weight: 600; fill: #111 }
.grid { stroke: #ddd } .axis { stroke: #888 } .line { fill: none; stroke-width: 2.5 }
.host-local { stroke: #b3541e } text.host-local, circle.host-local { fill: #b3541e; stroke: none }
.chain { stroke: #1b6ca8 } text.chain, circle.chain { fill: #1b6ca8; stroke: none }
.alone { stroke: #2e7d4f } text.alone, circle.alone { fill: #2e7d4f; stroke: none }
.floor { stroke: #777 } text.floor { fill: #666; stroke: none } .dashed { stroke-dasharray: 4 5 }
.bold { font-weight: 600 }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } text { fill: #c9d1d9 } .title { fill: #f0f6fc }
.grid { stroke: #2b323b } .axis { stroke: #8b949e }
.host-local { stroke: #f0883e } text.host-local, circle.host-local { fill: #f0883e }
.chain { stroke: #58a6ff } text.chain, circle.chain { fill: #58a6ff }
.alone { stroke: #56d364 } text.alone, circle.alone { fill: #56d364 }
.floor { stroke: #8b949e } text.floor { fill: #8b949e } }
";

/// What is drawn.
pub struct Drawing<'a> {
    /// How often each was run.
    pub runs: usize,
    pub scale: Scale,
    pub curves: Vec<Curve<'a>>,
}

/// The curves of a system: class, name, series, and the series of a busy disk with none held.
pub type Curves = [(Class, &'static str, &'static str, Option<&'static str>); 3];

/// How costs are spread.
#[derive(Clone, Copy)]
pub enum Scale {
    Logarithmic,
    FromZero,
}

/// The costs of one system.
pub struct Curve<'a> {
    pub class: Class,
    pub name: &'a str,
    /// By the leases held.
    pub points: Vec<(usize, &'a Times)>,
    /// On a busy disk, with none held.
    pub on_disk: Option<&'a Times>,
}

/// How a curve looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Class {
    /// Dashed, without points.
    Floor,
    HostLocal,
    Alone,
    Chain,
}

/// Draws it; the leases are on a logarithmic scale.
pub fn svg(drawing: &Drawing<'_>) -> String {
    let points = drawing.curves.iter().flat_map(|curve| &curve.points);
    let most = points.map(|(_, times)| times.at(0.75)).fold(1.0, f64::max);
    let costs = match drawing.scale {
        Scale::Logarithmic => [LEAST, 10_f64.powf(most.log10().ceil())],
        Scale::FromZero => [0.0, most.ceil()],
    };
    let mut plot = Plot { out: String::new(), scale: drawing.scale, costs };
    let _ = write!(
        plot.out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Time of an ADD against the leases held\">\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n"
    );
    let left = FRAME[0];
    plot.text([left, 28.0], START, "title", "Time of an ADD against the leases held");
    let note = format!(
        "whole processes, static builds; medians of {} interleaved runs, bars are quartiles",
        drawing.runs
    );
    plot.text([left, 48.0], START, "note", &note);
    plot.axes();
    if drawing.curves.iter().any(|curve| curve.on_disk.is_some()) {
        let [left, _, _, bottom] = FRAME;
        plot.line("axis", [left + ON_DISK, bottom], [left + ON_DISK, bottom + 5.0]);
        plot.text([left + ON_DISK, bottom + 20.0], MIDDLE, "", "0, busy ext4");
    }
    for curve in &drawing.curves {
        plot.curve(curve);
    }
    plot.out.push_str("</svg>\n");
    plot.out
}

const START: &str = "start";
const MIDDLE: &str = "middle";
const END: &str = "end";

/// What has been drawn, and the costs between which it stands.
struct Plot {
    out: String,
    scale: Scale,
    costs: [f64; 2],
}

impl Plot {
    fn axes(&mut self) {
        let [left, _, right, bottom] = FRAME;
        let mut cost = self.costs[0];
        while cost < self.costs[1] * 1.01 {
            let y = self.y(cost);
            self.line("grid", [left, y], [right, y]);
            let digits = usize::from(cost > 0.0 && cost < 0.99);
            let label = match cost {
                1000.0.. => format!("{:.0} s", cost / 1000.0),
                _ => format!("{cost:.digits$} ms"),
            };
            self.text([left - 8.0, y + 4.0], END, "", &label);
            cost = match self.scale {
                Scale::Logarithmic => cost * 10.0,
                Scale::FromZero => cost + (self.costs[1] / 10.0).ceil(),
            };
        }
        // A gap in the axis: none held has no place on it.
        self.line("axis", [left, bottom], [left + NONE + 12.0, bottom]);
        self.line("axis", [left + NONE + 24.0, bottom], [right, bottom]);
        for (held, label) in [(0, "0"), (1_000, "1,000"), (10_000, "10,000"), (50_000, "50,000")] {
            let x = x(held);
            self.line("axis", [x, bottom], [x, bottom + 5.0]);
            self.text([x, bottom + 20.0], MIDDLE, "", label);
        }
        let middle = f64::midpoint(left, right);
        self.text([middle, bottom + 42.0], MIDDLE, "", "leases held");
    }

    fn curve(&mut self, Curve { class, name, points, on_disk }: &Curve<'_>) {
        let at = |plot: &Self, (held, times): &(usize, &Times)| [x(*held), plot.y(times.median())];
        let bare = *class == Class::Floor;
        let class = class.name();
        for (i, pair) in points.windows(2).enumerate() {
            let dashed = if bare || i == 0 { " dashed" } else { "" };
            let [from, to] = [at(self, &pair[0]), at(self, &pair[1])];
            self.line(&format!("line {class}{dashed}"), from, to);
        }
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        for (held, times) in points.iter().filter(|_| !bare) {
            self.point(class, x(*held), times);
        }
        if let Some(times) = on_disk {
            let x = FRAME[0] + ON_DISK;
            self.point(class, x, times);
            let y = self.y(times.median());
            self.text([x - 10.0, y + 4.0], END, class, &milliseconds(times));
        }
        if !bare {
            let [x, y] = at(self, first);
            self.text([x - 10.0, y + 4.0], END, class, &milliseconds(first.1));
        }
        let [x, y] = at(self, last);
        let bold = if bare { "" } else { " bold" };
        let label = format!("{name} {}", milliseconds(last.1));
        self.text([x + 12.0, y + 4.0], START, &format!("{class}{bold}"), &label);
    }

    fn point(&mut self, class: &str, x: f64, times: &Times) {
        let y = self.y(times.median());
        let [low, high] = [0.25, 0.75].map(|share| self.y(times.at(share)));
        self.line(class, [x, low], [x, high]);
        let _ =
            writeln!(self.out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>");
    }

    fn text(&mut self, [x, y]: [f64; 2], anchor: &str, class: &str, text: &str) {
        let _ = writeln!(
            self.out,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        let _ = writeln!(
            self.out,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    fn y(&self, milliseconds: f64) -> f64 {
        let [_, top, _, bottom] = FRAME;
        let share = match self.scale {
            Scale::Logarithmic => share(milliseconds, self.costs),
            Scale::FromZero => milliseconds / self.costs[1],
        };
        bottom - (bottom - top) * share
    }
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::HostLocal => "host-local",
            Self::Alone => "alone",
            Self::Chain => "chain",
        }
    }
}

fn milliseconds(times: &Times) -> String {
    let median = times.median();
    if median < 10.0 { format!("{median:.1} ms") } else { format!("{median:.0} ms") }
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
