use serde::Deserialize;
use serde::de::IgnoredAny;

/// What an API server answers instead of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    kind: String,
    pub reason: String,
    pub message: String,
    pub details: Option<Details>,
}

/// What a [`Status`] is about.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Details {
    pub name: String,
    /// What is wrong with an object.
    pub causes: Vec<IgnoredAny>,
}

impl Status {
    /// `None` where it is none, as what stands before an API server answers.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok().filter(|status: &Self| status.kind == "Status")
    }

    /// Whom the server took the caller for, where that one has no right to something.
    pub(super) fn user(&self) -> Option<&str> {
        let (_, rest) = self.message.split_once("User \"")?;
        rest.split_once('"').map(|(user, _)| user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_from_other_answers() {
        let status = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
            "message":"nodes \"n\" is forbidden: User \"system:node:x\" cannot get resource \"nodes\"",
            "reason":"Forbidden","details":{"name":"n","kind":"nodes"},"code":403}"#;
        let status = Status::parse(status).unwrap();
        assert_eq!((&*status.reason, status.user()), ("Forbidden", Some("system:node:x")));
        assert_eq!(status.details.unwrap().name, "n");
        assert_eq!(Status::parse(br#"{"kind":"Status"}"#).unwrap().user(), None);
        for body in ["", "{}", "[]", "null", "404 page not found", "<html>", r#"{"kind":"Node"}"#] {
            assert!(Status::parse(body.as_bytes()).is_none(), "{body}");
        }
    }
}
