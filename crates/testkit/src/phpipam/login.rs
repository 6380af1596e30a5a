//! Who may ask: the App's code, or a user's token, which all Apps and nodes share.

use std::time::{Duration, Instant};

use serde_json::json;

use super::answer::{Outcome, Refusal, data, told, uncaught};
use super::server::{CODE, PASSWORD, USER};
use crate::servers::base64;
use crate::servers::relay::Request;

/// The security of the App.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// The App's code in each request; without a login.
    Code,
    /// A user's token, which a login gives.
    Token,
    /// Requests are encrypted.
    Crypt,
}

/// The state of logins.
#[derive(Debug, Default)]
pub(super) struct Logins {
    token: Option<(String, Instant)>,
    given: u32,
    /// How many logins were refused.
    pub(super) refused: u32,
}

/// How many refused logins block a client.
const MOST_REFUSED: u32 = 10;

const LIFE: Duration = Duration::from_secs(6 * 3600);

impl Logins {
    fn check_not_blocked(&self) -> Result<(), Refusal> {
        match self.refused > MOST_REFUSED {
            true => told(
                500,
                "Your IP has been blocked for 5 minutes because of excessive login failures",
            ),
            false => Ok(()),
        }
    }

    /// Gives a user the token of before, or a new one, whatever the App does with it.
    pub(super) fn log_in(&mut self, request: &Request) -> Outcome {
        self.check_not_blocked()?;
        let Some(given) = request.header("authorization").and_then(|it| it.strip_prefix("Basic "))
        else {
            return told(400, "Please provide username and password");
        };
        if base64::decode(given) != format!("{USER}:{PASSWORD}") {
            self.refused += 1;
            return uncaught("Invalid username or password");
        }
        if self.token.as_ref().is_none_or(|(_, end)| *end < Instant::now()) {
            self.given += 1;
            self.token = Some((format!("user-token-number-{:06}", self.given), Instant::now()));
        }
        let Some((token, end)) = &mut self.token else { return told(401, "Unauthorized") };
        *end = Instant::now() + LIFE;
        data(json!({"token": token, "expires": "2026-11-21 15:13:29"}))
    }

    pub(super) fn check(&mut self, security: Security, request: &Request) -> Result<(), Refusal> {
        self.check_not_blocked()?;
        let shown = request.header("phpipam-token").or_else(|| request.header("token"));
        let is_known = match (security, &mut self.token) {
            (Security::Crypt, _) => return told(503, "Invalid enc_request"),
            (Security::Code, _) => shown == Some(CODE),
            (Security::Token, None) => false,
            (Security::Token, Some((token, end))) => {
                let is_valid = *end > Instant::now() && shown == Some(&**token);
                if is_valid {
                    *end = Instant::now() + LIFE;
                }
                is_valid
            }
        };
        if is_known { Ok(()) } else { told(401, "Unauthorized") }
    }

    /// Ends the life of the token.
    pub(super) fn expire(&mut self) {
        self.token = None;
    }
}
