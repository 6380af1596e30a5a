use std::fmt;

use serde_json::{Map, Value};

use super::Verb;
use super::shown;
use crate::error::{Error, ErrorCode, Result};

/// A version of the CNI specification that this library speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.1.0, also meant by a configuration without `cniVersion`.
    V0_1_0,
    /// 0.2.0, the last with `ip4` and `ip6`.
    V0_2_0,
    /// 0.3.0, the first with `ips`.
    V0_3_0,
    /// 0.3.1
    V0_3_1,
    /// 0.4.0, the first with CHECK and with `prevResult` on DEL.
    V0_4_0,
    /// 1.0.0, the first without `version` in `ips`.
    V1_0_0,
    /// 1.1.0, the first with GC and STATUS.
    V1_1_0,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Self; 7] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// The newest version.
    pub const NEWEST: Self = Self::V1_1_0;

    /// The text on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// The version a network configuration asks for: `cniVersion`, else the newest known one of
    /// `cniVersions`, else 0.1.0.
    ///
    /// Only versions spelled as the specification's releases are taken, as libcni does.
    pub fn of(config: &Map<String, Value>) -> Result<Self> {
        if let Some(version) = config.get("cniVersion").filter(|version| !version.is_null()) {
            let text = version.as_str().ok_or_else(|| {
                Error::config(
                    "cniVersion",
                    format!("expected a string such as \"1.0.0\", found {}", shown(version)),
                )
            })?;
            // libcni reads an empty version as an absent one.
            return if text.is_empty() { Ok(Self::V0_1_0) } else { Self::parse(text) };
        }
        let Some(list) = config.get("cniVersions") else {
            return Ok(Self::V0_1_0);
        };
        let texts = list
            .as_array()
            .and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>())
            .ok_or_else(|| Error::config("cniVersions", "expected an array of strings"))?;
        texts
            .iter()
            .filter_map(|text| Self::parse(text).ok())
            .max()
            .ok_or_else(|| incompatible(&texts.join(", ")))
    }

    /// Refuses a verb that this version does not have (CHECK before 0.4.0, GC and STATUS before
    /// 1.1.0).
    pub(crate) fn allows(self, verb: Verb) -> Result<()> {
        let since = match verb {
            Verb::Add | Verb::Del | Verb::Version => Self::V0_1_0,
            Verb::Check => Self::V0_4_0,
            Verb::Gc | Verb::Status => Self::V1_1_0,
        };
        if self >= since {
            return Ok(());
        }
        Err(Error::new(ErrorCode::INCOMPATIBLE_VERSION, format!("cniVersion {self} has no {verb}"))
            .advise(format!("{verb} needs cniVersion {since} or newer")))
    }

    /// Whether results of this version carry `ip4` and `ip6` instead of `ips`.
    pub fn has_single_addresses(self) -> bool {
        self <= Self::V0_2_0
    }

    /// The answer to VERSION.
    pub(crate) fn supported() -> Value {
        serde_json::json!({
            "cniVersion": Self::NEWEST.as_str(),
            "supportedVersions": Self::ALL.map(Self::as_str),
        })
    }

    fn parse(text: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| incompatible(text))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn incompatible(found: &str) -> Error {
    Error::new(ErrorCode::INCOMPATIBLE_VERSION, format!("cniVersion: {found} is not supported"))
        .advise(format!("use one of {}", Version::ALL.map(Version::as_str).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Version> {
        Version::of(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_config_without_version_is_the_oldest() {
        assert_eq!(of("{}").unwrap(), Version::V0_1_0);
        assert_eq!(of(r#"{"cniVersion":""}"#).unwrap(), Version::V0_1_0);
        assert_eq!(of(r#"{"cniVersion":null}"#).unwrap(), Version::V0_1_0);
    }

    #[test]
    fn a_list_gives_its_newest_known_version() {
        let list = r#"{"cniVersions":["0.4.0","1.0.0","9.0.0","0.3.1"]}"#;
        assert_eq!(of(list).unwrap(), Version::V1_0_0);
        assert_eq!(of(r#"{"cniVersions":["9.0.0"]}"#).unwrap_err().code().number(), 1);
        assert_eq!(of(r#"{"cniVersions":"1.0.0"}"#).unwrap_err().code().number(), 7);
    }

    #[test]
    fn near_misses_are_refused() {
        for text in ["1.0.7", "1.0", "v1.0.0", " 1.0.0", "2.0.0"] {
            let error = of(&format!(r#"{{"cniVersion":"{text}"}}"#)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INCOMPATIBLE_VERSION, "{text}");
        }
    }

    #[test]
    fn verbs_have_a_first_version() {
        assert!(Version::V0_3_1.allows(Verb::Check).is_err());
        assert!(Version::V0_4_0.allows(Verb::Check).is_ok());
        assert!(Version::V1_0_0.allows(Verb::Gc).is_err());
        assert!(Version::V1_1_0.allows(Verb::Status).is_ok());
    }
}
