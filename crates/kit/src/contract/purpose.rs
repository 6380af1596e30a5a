use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::key;
use crate::cni::parse_value;
use crate::error::Result;

/// Why the chain calls a delegate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// The runtime called the chain: a DEL is about everything that the attachment holds.
    #[default]
    Runtime,
    /// A DEL takes back what an ADD has just given: the leases that come with it, and no other. On
    /// the wire `"undo": true`.
    Undo,
    /// A DEL is about the leases that come with it, and those that the attachment took between two
    /// times. On the wire `"fence": {"after": …, "before": …}`.
    TakenBetween {
        /// Milliseconds since 1970.
        after: u64,
        /// Milliseconds since 1970; `None` is the time of the call.
        before: Option<u64>,
    },
    /// An ADD claims again what the attachment holds, in a store that was restored or replaced. On
    /// the wire `"reassert": true`.
    Reassert,
}

/// The value of the member `fence`.
#[derive(Deserialize, Serialize)]
struct Fence {
    after: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before: Option<u64>,
}

impl Purpose {
    /// # Errors
    /// Error 7: `undo` or `fence` cannot be read. Such a DEL must release nothing.
    pub(super) fn read(members: &Map<String, Value>) -> Result<Self> {
        if members.get(key::REASSERT) == Some(&Value::Bool(true)) {
            return Ok(Self::Reassert);
        }
        if let Some(undo) = members.get(key::UNDO)
            && parse_value::<Option<bool>>(undo, "prevResult.undo")? == Some(true)
        {
            return Ok(Self::Undo);
        }
        let Some(fence) = members.get(key::FENCE) else { return Ok(Self::Runtime) };
        Ok(match parse_value::<Option<Fence>>(fence, "prevResult.fence")? {
            Some(Fence { after, before }) => Self::TakenBetween { after, before },
            None => Self::Runtime,
        })
    }

    pub(super) fn write(self, members: &mut Map<String, Value>) {
        let (key, value) = match self {
            Self::Runtime => return,
            Self::Undo => (key::UNDO, true.into()),
            Self::Reassert => (key::REASSERT, true.into()),
            Self::TakenBetween { after, before } => (key::FENCE, json!(Fence { after, before })),
        };
        members.insert(key.to_owned(), value);
    }
}
