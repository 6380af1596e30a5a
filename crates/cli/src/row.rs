use serde_json::{Map, Value};

/// One entry of a verb's output, for people and for programs: members by name.
#[derive(Clone, Debug, Default)]
pub struct Row(Map<String, Value>);

impl Row {
    /// Sets a member.
    pub fn set(&mut self, key: &str, value: Value) {
        self.0.insert(key.to_owned(), value);
    }

    /// Sets a member to a string.
    pub fn set_text(&mut self, key: &str, text: &str) {
        self.set(key, Value::String(text.to_owned()));
    }

    /// Sets a member to a string, or to null.
    pub fn set_text_or_null(&mut self, key: &str, text: Option<&str>) {
        match text {
            Some(text) => self.set_text(key, text),
            None => self.set(key, Value::Null),
        }
    }

    /// A member; null if it is missing.
    pub fn get(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }

    /// A member that is a string; empty if it is not.
    pub fn text(&self, key: &str) -> &str {
        self.get(key).as_str().unwrap_or_default()
    }
}

impl From<Map<String, Value>> for Row {
    fn from(members: Map<String, Value>) -> Self {
        Self(members)
    }
}

impl From<Row> for Value {
    fn from(Row(members): Row) -> Self {
        Self::Object(members)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_missing_member_is_null() {
        let mut row = Row::default();
        row.set_text("a", "x");
        row.set_text_or_null("b", None);
        assert_eq!((row.text("a"), row.text("c"), row.get("c")), ("x", "", &Value::Null));
        assert_eq!(Value::from(row), json!({"a": "x", "b": null}));
    }
}
