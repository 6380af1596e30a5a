use std::fmt;
use std::time::Duration;

/// The times of one case.
#[derive(Clone, Debug)]
pub struct Times(Vec<f64>);

impl Times {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn push(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1000.0);
    }

    /// The time that this share of the runs stayed below, in milliseconds.
    pub fn at(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        let index = ((sorted.len() - 1) as f64 * share).round() as usize;
        sorted[index]
    }

    /// In milliseconds.
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }
}

/// The median, with the quartiles.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, high] = [0.25, 0.75].map(|share| self.at(share));
        write!(f, "{:.2} ({low:.2}–{high:.2})", self.median())
    }
}
