//! What the selector remembers, made older than it is.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::Site;

impl Site {
    /// What is remembered of a network: the last whole line of its file.
    #[track_caller]
    pub fn remembered(&self, network: &str) -> Value {
        let text = fs::read_to_string(self.memory(network)).unwrap();
        text.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap()
    }

    /// Makes it so much older.
    #[track_caller]
    pub fn age(&self, network: &str, by: Duration) {
        self.shift(network, |time| time - u64::try_from(by.as_millis()).unwrap());
    }

    /// Makes it older than `cacheTtl`, and older than the rest that is given to a server which is away.
    #[track_caller]
    pub fn age_out(&self, network: &str) {
        self.age(network, Duration::from_secs(3600));
    }

    /// Makes it of the future, as after a clock was set back.
    #[track_caller]
    pub fn postdate(&self, network: &str) {
        self.shift(network, |time| time + 3_600_000);
    }

    #[track_caller]
    fn shift(&self, network: &str, shift: impl Fn(u64) -> u64) {
        let mut noted = self.remembered(network);
        for key in ["read", "failed"] {
            if let Some(time) = noted[key].as_u64() {
                noted[key] = shift(time).into();
            }
        }
        fs::write(self.memory(network), format!("{noted}\n")).unwrap();
    }
}
