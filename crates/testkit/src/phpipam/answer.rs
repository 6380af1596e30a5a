//! Answers: an envelope of JSON, with a status of HTTP that may say something else.

use serde_json::{Map, Value, json};

/// What the server answers.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Empty for an answer without a body.
    pub(super) body: String,
}

/// Why a request is refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// With this code, which is the status, too.
    Told(u16, String),
    /// By an exception that nothing turns into a status: code 500, and status 200.
    Uncaught(String),
    /// By an error of the program: status 500, and no body.
    Crashed,
}

pub(super) type Outcome = Result<Map<String, Value>, Refusal>;

/// A refusal with a code.
pub(super) fn told<T>(code: u16, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Told(code, message.into()))
}

/// A refusal by an exception that nothing turns into a status.
pub(super) fn uncaught<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Uncaught(message.into()))
}

/// An answer with data.
pub(super) fn data(value: Value) -> Outcome {
    Ok(Map::from_iter([("code".to_owned(), 200.into()), ("data".to_owned(), value)]))
}

/// An answer with these members.
pub(super) fn members(value: Value) -> Outcome {
    match value {
        Value::Object(members) => Ok(members),
        other => panic!("{other}"),
    }
}

impl Reply {
    pub(super) fn of(outcome: Outcome) -> Self {
        let (status, mut envelope) = match outcome {
            Ok(members) => {
                let code = members["code"].as_u64().and_then(|code| u16::try_from(code).ok());
                let mut envelope = json!({"code": 200, "success": true});
                for (key, value) in members {
                    envelope[key] = value;
                }
                (code.unwrap_or(200), envelope)
            }
            Err(Refusal::Told(code, message)) => {
                (code, json!({"code": code, "success": false, "message": message}))
            }
            Err(Refusal::Uncaught(message)) => {
                (200, json!({"code": 500, "success": false, "message": message}))
            }
            Err(Refusal::Crashed) => return Self { status: 500, body: String::new() },
        };
        envelope["time"] = json!(0.011);
        Self { status, body: envelope.to_string() }
    }
}
