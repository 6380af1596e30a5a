use serde::Deserialize;
use serde::de::IgnoredAny;

/// The answer of an API server without an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiStatus {
    kind: String,
    pub reason: String,
    pub message: String,
    pub details: Option<StatusDetails>,
}

/// The subject of an [`ApiStatus`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusDetails {
    pub name: String,
    /// The faults of an object.
    pub causes: Vec<IgnoredAny>,
}

impl ApiStatus {
    /// `None` for any other answer, as of a proxy in front of an API server.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok().filter(|status: &Self| status.kind == "Status")
    }

    /// The user that the server took the caller for, if that user lacks a right.
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
        let status = ApiStatus::parse(status).unwrap();
        assert_eq!((&*status.reason, status.user()), ("Forbidden", Some("system:node:x")));
        assert_eq!(status.details.unwrap().name, "n");
        assert_eq!(ApiStatus::parse(br#"{"kind":"Status"}"#).unwrap().user(), None);
        for body in ["", "{}", "[]", "null", "404 page not found", "<html>", r#"{"kind":"Node"}"#] {
            assert!(ApiStatus::parse(body.as_bytes()).is_none(), "{body}");
        }
    }
}
