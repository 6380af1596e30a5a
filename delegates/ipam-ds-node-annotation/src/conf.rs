//! The file `node-annotation.conf` of the host: how to reach the API server, and the next program.

use std::path::{Path, PathBuf};

use ipam_kit::cni::{Environment, parse_object, parse_value};
use ipam_kit::host::read_trusted;
use ipam_kit::keys::{Key, MisspeltKey, misspelt};
use ipam_kit::{ErrorCode, Result};
use ipam_kube::own_node::{NodeKeys, NodeSettings};
use serde::Deserialize;
use serde_json::Value;

/// The content of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    /// The settings that find the node.
    pub settings: NodeSettings,
    /// The program after this delegate: a path, or a command.
    pub next: Option<PathBuf>,
    /// A file to add a line to for each call.
    pub log: Option<PathBuf>,
    /// Unknown keys of the file that resemble known ones.
    pub misspelt: Vec<MisspeltKey>,
}

/// The keys of the file.
const KEYS: &[Key] = &[Key::All(NodeKeys::KEYS), Key::All(PROGRAM_KEYS)];

const PROGRAM_KEYS: &[Key] = &[Key::Value("nextipam"), Key::Value("log")];

/// The keys of the file that are not about the node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProgramKeys {
    nextipam: Option<PathBuf>,
    log: Option<PathBuf>,
}

const FILE: &str = "/etc/cni/node-annotation.conf";

/// The variable that names another file.
const VARIABLE: &str = "NODE_ANNOTATION_CFG";

impl Conf {
    /// Reads the file; the default if it does not exist.
    ///
    /// # Errors
    /// The file does not belong to root, cannot be read, or is malformed.
    pub(crate) fn load(environment: &Environment) -> Result<Self> {
        let file = Path::new(environment.text(VARIABLE).unwrap_or(FILE));
        let Some(bytes) = read_trusted(file)? else { return Ok(Self::default()) };
        let name = file.display().to_string();
        let content = Value::Object(
            parse_object(&bytes, &name)
                .map_err(|error| error.with_code(ErrorCode::INVALID_CONFIG))?,
        );
        let ProgramKeys { nextipam, log } = parse_value(&content, &name)?;
        Ok(Self {
            settings: parse_value::<NodeKeys>(&content, &name)?.read(&format!("{name}: "))?,
            next: non_empty(nextipam),
            log: non_empty(log),
            misspelt: misspelt(&content, KEYS, &name),
        })
    }

    /// The name of the next program, which becomes `ipam.type`.
    pub(crate) fn next_name(&self) -> String {
        let name = self.next.as_ref().and_then(|path| path.file_name());
        name.map_or_else(|| "ipam-da-local".to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

fn non_empty(path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_declared() {
        let names = ipam_kit::keys::names(PROGRAM_KEYS);
        ipam_testkit::fields::assert_fields::<ProgramKeys>(&names);
    }

    #[test]
    fn a_file_says_how_to_reach_the_server_and_who_comes_next() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("conf");
        let environment = Environment::new([(VARIABLE, file.as_os_str())]);
        let absent = Conf::load(&environment).unwrap();
        assert!(absent.next.is_none() && absent.log.is_none());
        assert_eq!(absent.next_name(), "ipam-da-local");
        let text =
            r#"{"kubeconfig": "/k", "nextipam": "/opt/cgi/bin/host-local", "log": "", "x": 1}"#;
        std::fs::write(&file, text).unwrap();
        let conf = Conf::load(&environment).unwrap();
        assert_eq!(conf.next_name(), "host-local");
        assert!(conf.log.is_none());
        assert_eq!(conf.settings.kubeconfig.unwrap().file, Path::new("/k"));
        for (text, message) in [
            ("", " is empty"),
            ("[]", " is JSON but not an object"),
            ("kubeconfig=/k", " is not one JSON object"),
            (r#"{"log": 5}"#, ".log: expected a path, found a number"),
            (r#"{"kubeconfig": []}"#, ".kubeconfig: expected a path, found an array"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Conf::load(&environment).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
            let expected = format!("{}{message}", file.display());
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
    }
}
