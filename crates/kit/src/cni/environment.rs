use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use super::{Args, Attachment, ContainerId, IfName, Verb};
use crate::error::{Error, ErrorCode, Result};

/// The environment a plugin was called with.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Each name once, in order. Copies share them: each call of a delegate has one.
    variables: Vec<Arc<(OsString, OsString)>>,
}

impl Environment {
    /// Takes variables as [`std::env::vars_os`] gives them.
    pub fn new<K: Into<OsString>, V: Into<OsString>>(
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let mut this = Self::default();
        for (name, value) in variables {
            this.put(name.into(), value.into());
        }
        this
    }

    /// Every variable, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|variable| (variable.0.as_os_str(), variable.1.as_os_str()))
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.put(name.into(), value.into());
    }

    /// The variable's text; `None` when it is absent, empty or not UTF-8.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.value(name)?.to_str().filter(|text| !text.is_empty())
    }

    /// `CNI_COMMAND`; `None` when it is absent, which means that a person called.
    pub fn verb(&self) -> Result<Option<Verb>> {
        let Some(text) = self.value("CNI_COMMAND") else {
            return Ok(None);
        };
        text.to_str().and_then(Verb::parse).map(Some).ok_or_else(|| {
            let known = Verb::ALL.map(Verb::as_str).join(", ");
            // The words libcni and its plugins recognise.
            Error::new(
                ErrorCode::INVALID_ENVIRONMENT,
                format!("unknown CNI_COMMAND: {}: expected one of {known}", text.to_string_lossy()),
            )
        })
    }

    /// The attachment the verb is about: the variables the specification requires for it.
    pub(crate) fn attachment(&self, verb: Verb) -> Result<Option<Attachment>> {
        if !verb.has_attachment() {
            return Ok(None);
        }
        let mut required = vec!["CNI_CONTAINERID", "CNI_IFNAME"];
        if verb != Verb::Del {
            required.push("CNI_NETNS");
        }
        let missing: Vec<_> =
            required.into_iter().filter(|name| self.text(name).is_none()).collect();
        if !missing.is_empty() {
            return Err(Error::new(
                ErrorCode::INVALID_ENVIRONMENT,
                format!("required env variables [{}] missing for {verb}", missing.join(",")),
            ));
        }
        let text = |name| self.text(name).unwrap_or_default();
        Ok(Some(Attachment {
            container: ContainerId::parse(text("CNI_CONTAINERID"))?,
            ifname: IfName::parse(text("CNI_IFNAME"))?,
            netns: text("CNI_NETNS").to_owned(),
        }))
    }

    /// The pairs of `CNI_ARGS`.
    pub(crate) fn args(&self) -> Args {
        Args::parse(self.text("CNI_ARGS").unwrap_or_default())
    }

    /// The folders of `CNI_PATH`, in order.
    pub fn path(&self) -> Vec<PathBuf> {
        self.value("CNI_PATH")
            .map(|path| std::env::split_paths(path).filter(|p| !p.as_os_str().is_empty()).collect())
            .unwrap_or_default()
    }

    fn value(&self, name: &str) -> Option<&OsStr> {
        self.place(OsStr::new(name)).ok().map(|at| self.variables[at].1.as_os_str())
    }

    fn put(&mut self, name: OsString, value: OsString) {
        match self.place(&name) {
            Ok(at) => self.variables[at] = Arc::new((name, value)),
            Err(at) => self.variables.insert(at, Arc::new((name, value))),
        }
    }

    fn place(&self, name: &OsStr) -> Result<usize, usize> {
        self.variables.binary_search_by(|known| known.0.as_os_str().cmp(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_variable_is_named() {
        let environment = Environment::new([("CNI_IFNAME", "eth0"), ("CNI_NETNS", "")]);
        let error = environment.attachment(Verb::Add).unwrap_err();
        assert!(error.to_string().contains("[CNI_CONTAINERID,CNI_NETNS]"), "{error}");
        assert!(environment.attachment(Verb::Status).unwrap().is_none());
    }

    #[test]
    fn del_needs_no_namespace() {
        let environment = Environment::new([("CNI_CONTAINERID", "a"), ("CNI_IFNAME", "eth0")]);
        assert_eq!(environment.attachment(Verb::Del).unwrap().unwrap().netns, "");
    }

    #[test]
    fn without_a_command_a_person_called() {
        assert_eq!(Environment::default().verb().unwrap(), None);
        let environment = Environment::new([("CNI_COMMAND", "FROB")]);
        assert_eq!(environment.verb().unwrap_err().code(), ErrorCode::INVALID_ENVIRONMENT);
    }
}
