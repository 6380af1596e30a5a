use std::collections::BTreeMap;
use std::fmt;

/// The times of one case in milliseconds, or how often a second it was done.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<f64>);

/// By what was timed.
pub type Series = BTreeMap<String, Times>;

impl Times {
    pub fn push(&mut self, number: f64) {
        self.0.push(number);
    }

    /// What this share of the runs stayed below.
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

    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The median of each ÷ the one of the others that was taken in the same turn: other load of
    /// the machine changes it less than the medians themselves.
    pub fn ratio(&self, others: &Self) -> f64 {
        let ratios: Self = self.0.iter().zip(&others.0).map(|(one, other)| one / other).collect();
        ratios.median()
    }
}

impl FromIterator<f64> for Times {
    fn from_iter<T: IntoIterator<Item = f64>>(numbers: T) -> Self {
        Self(numbers.into_iter().collect())
    }
}

/// The median, with the quartiles.
impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, high] = [0.25, 0.75].map(|share| self.at(share));
        write!(f, "{:.2} ({low:.2}–{high:.2})", self.median())
    }
}
