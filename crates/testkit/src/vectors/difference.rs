//! A place where we differ from what was recorded.

use serde::Deserialize;
use serde_json::Value;

/// One place in which we differ, with the reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// A JSON pointer into what was recorded.
    pub at: String,
    /// What stands there with us; nothing when absent.
    #[serde(default, deserialize_with = "some")]
    pub ours: Option<Value>,
    /// The name of a reason.
    pub why: String,
}

/// Tells `"ours": null` from no `ours`.
fn some<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Difference {
    /// Puts our value where the recorded one stands; a difference that is none is a fault.
    pub fn apply(&self, recorded: &mut Value) -> Result<(), String> {
        let theirs = recorded.pointer(&self.at).cloned();
        if theirs == self.ours {
            return Err(format!("{} is no difference", self.at));
        }
        let (parent, key) = self.at.rsplit_once('/').ok_or("a pointer begins with /")?;
        let key = key.replace("~1", "/").replace("~0", "~");
        let missing = || format!("{} has no place", self.at);
        match (recorded.pointer_mut(parent).ok_or_else(missing)?, &self.ours) {
            (Value::Object(object), Some(ours)) => {
                object.insert(key, ours.clone());
            }
            (Value::Object(object), None) => {
                object.remove(&key);
            }
            (Value::Array(array), ours) => {
                let index: usize = key.parse().map_err(|_| missing())?;
                if index < array.len() {
                    array.remove(index);
                }
                if let Some(ours) = ours {
                    array.insert(index, ours.clone());
                }
            }
            _ => return Err(missing()),
        }
        Ok(())
    }
}
