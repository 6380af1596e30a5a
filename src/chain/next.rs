//! The last program of a preset's chain, if a file of the host names it (`nextipam`).
//!
//! [`ProgramSource::HostFile`] marks such a program in plans and records: it is run at its own path,
//! whatever `CNI_PATH` has. Unless it is an allocator `ipam-da-*`, it is *standalone*: it knows nothing
//! of the chain, and its stdin is what a runtime would write, with another section `ipam`.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::entry::DelegateEntry;
use super::plan::Step;
use super::preset::{HostProgram, Preset, trusted_member, unknown_preset};
use super::program::{
    OwnExecutable, ProgramSource, is_allocator, is_selector, path_folders, search,
};
use super::record::Run;
use ipam_kit::cni::{Environment, Network, shown};
use ipam_kit::delegate::selector_keys::CHAIN_KEYS;
use ipam_kit::error::{Error, Result};

/// The last delegate of a chain, as a file of the host names it.
#[derive(Debug)]
pub(crate) enum LastDelegate {
    Program {
        /// The base name.
        name: String,
        /// The absolute path.
        path: PathBuf,
    },
    /// This program, under the name of a preset.
    Preset(&'static Preset),
}

impl HostProgram {
    /// Finds what replaces the chain's last delegate; `None` if the file is missing, or lacks the key.
    ///
    /// # Errors
    /// The file is not trusted or not a JSON object, or it does not name a program that can be last.
    pub(crate) fn find(
        &self,
        presets: &'static [Preset],
        own: &OwnExecutable,
        environment: &Environment,
    ) -> Result<Option<LastDelegate>> {
        let Some((name, path)) = self.find_program(environment)? else { return Ok(None) };
        if !own.is(&path) {
            return Ok(Some(LastDelegate::Program { name, path }));
        }
        let key_path = self.key_path(environment);
        match Preset::find(presets, &name) {
            None => Err(unknown_preset(&key_path, &name, &path)),
            Some(preset) if preset.host_program.is_some() => {
                let message =
                    format!("{} is the preset {name}, which would run itself", path.display());
                Err(Error::config(key_path, message)
                    .advise("name the program that gives the addresses"))
            }
            Some(preset) => Ok(Some(LastDelegate::Preset(preset))),
        }
    }

    /// The path of a standalone program; `None` for a preset or an allocator `ipam-da-*`.
    ///
    /// # Errors
    /// As [`HostProgram::find`].
    pub(crate) fn find_standalone(
        &self,
        presets: &'static [Preset],
        own: &OwnExecutable,
        environment: &Environment,
    ) -> Result<Option<PathBuf>> {
        match self.find(presets, own, environment)? {
            Some(LastDelegate::Program { name, path }) if !is_allocator(&name) => Ok(Some(path)),
            _ => Ok(None),
        }
    }

    /// The program that the file names: its base name and its absolute path.
    fn find_program(&self, environment: &Environment) -> Result<Option<(String, PathBuf)>> {
        let file = environment.text(self.variable).unwrap_or(self.file);
        let Some(value) = trusted_member(file, self.key)? else { return Ok(None) };
        let found = program_named_by(&value, environment).map_err(|why| {
            Error::config(self.key_path(environment), format!("{why} {}", shown(&value)))
                .advise("name a program: an absolute path, or a command in PATH")
        })?;
        Ok(Some(found))
    }

    /// The file and the key, for errors.
    fn key_path(&self, environment: &Environment) -> String {
        let file = environment.text(self.variable).unwrap_or(self.file);
        format!("{file}: {}", self.key)
    }
}

/// The program that a value names; an error is the beginning of a message that ends in the value.
fn program_named_by(
    value: &Value,
    environment: &Environment,
) -> Result<(String, PathBuf), &'static str> {
    let text = value.as_str().ok_or("expected a string, found")?;
    if text.is_empty() || text.contains('/') && !text.starts_with('/') {
        return Err("expected an absolute path or a command, found");
    }
    // An absolute path stays itself, whatever folder it is joined to.
    let folders = if text.starts_with('/') { vec!["/".into()] } else { path_folders(environment) };
    let program = search(&folders, text.as_ref()).ok_or("missing or not executable:")?;
    match program.file_name().and_then(|name| name.to_str()) {
        Some(name) if is_selector(name) => Err("expected an allocator, found the selector"),
        Some(name) => Ok((name.to_owned(), program)),
        None => Err("expected a program, found"),
    }
}

/// In a record: the member `fixed`.
impl From<bool> for ProgramSource {
    fn from(is_fixed: bool) -> Self {
        if is_fixed { Self::HostFile } else { Self::CniPath }
    }
}

impl From<ProgramSource> for bool {
    fn from(source: ProgramSource) -> Self {
        source == ProgramSource::HostFile
    }
}

impl Step {
    /// A program of the host's file in place of the last delegate of a preset, whose entry this is.
    pub(super) fn of_host(name: String, path: PathBuf, entry: DelegateEntry) -> Self {
        let step = Self::of(DelegateEntry { name, ..entry }, path);
        let step = Self { source: ProgramSource::HostFile, ..step };
        if !step.is_standalone() {
            return step;
        }
        // It reads neither settings of a preset nor pools.
        Self { overrides: Map::new(), answers_any: true, ..step }
    }

    /// Whether it is a program of the host's file that knows nothing of the chain.
    pub(crate) fn is_standalone(&self) -> bool {
        is_standalone(self.source, &self.name)
    }

    /// The run of a standalone program: its section `ipam` lacks the keys of the chain.
    pub(super) fn standalone_run(&self, ipam: &Map<String, Value>, network: &Network) -> Run {
        let mut ipam = ipam.clone();
        ipam.retain(|key, _| !CHAIN_KEYS.contains(&key.as_str()));
        ipam.insert("type".to_owned(), self.name.clone().into());
        Run {
            delegate: self.name.clone(),
            program: self.program.display().to_string(),
            source: self.source,
            ipam,
            args: network.config().get("args").cloned(),
            ip_ranges: network.ip_ranges().cloned(),
            ..Run::default()
        }
    }
}

impl Run {
    /// Whether it is a program of the host's file that knows nothing of the chain: its stdin has no
    /// `prevResult` of the chain, and its secrets are of a selector's source.
    pub(crate) fn is_standalone(&self) -> bool {
        is_standalone(self.source, &self.delegate)
    }

    /// The same run with the allocator of the preset that has replaced the recorded program. The
    /// allocator uses the state of that program, so it finds the lease.
    pub(super) fn handed_to(&self, allocator: Step, node: &str) -> Self {
        let mut ipam = self.ipam.clone();
        ipam.extend(allocator.overrides);
        ipam.insert("type".to_owned(), allocator.name.clone().into());
        ipam.insert("node".to_owned(), node.into());
        Self {
            delegate: allocator.name,
            program: allocator.program.display().to_string(),
            source: ProgramSource::CniPath,
            ipam,
            ..self.clone()
        }
    }
}

fn is_standalone(source: ProgramSource, name: &str) -> bool {
    source == ProgramSource::HostFile && !is_allocator(name)
}

/// The program kept aside as `NAME.orig`, if a preset has replaced a recorded program of the host's file.
pub(super) fn kept_aside(recorded: &Path, own: &OwnExecutable, kept_name: &str) -> Option<PathBuf> {
    let beside = recorded.with_file_name(kept_name);
    (own.is(recorded) && beside.exists()).then_some(beside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_kit::error::ErrorCode;
    use std::fs;
    use std::os::unix::fs::OpenOptionsExt;

    const HOST_PROGRAM: HostProgram =
        HostProgram { file: "/nowhere/x", variable: "CFG", key: "next" };

    /// What a file of this content, in a folder with the programs `a` and `ipam-ds-a` and the file
    /// `b`, says.
    fn find(content: &str) -> Result<Option<(String, PathBuf)>> {
        let temp = tempfile::TempDir::new().unwrap();
        let at = |name: &str| temp.path().join(name);
        for (name, mode) in [("a", 0o755), ("ipam-ds-a", 0o755), ("b", 0o644), ("conf", 0o644)] {
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).mode(mode).open(at(name)).unwrap();
        }
        let folder = temp.path().to_str().unwrap();
        fs::write(at("conf"), content.replace("HERE", folder)).unwrap();
        let path = format!(":relative:/nowhere:{folder}");
        let conf = at("conf").into_os_string();
        let environment = Environment::new([("CFG", conf), ("PATH", path.into())]);
        let found = HOST_PROGRAM.find_program(&environment)?;
        Ok(found.map(|(name, program)| (name, program.strip_prefix(folder).unwrap().to_owned())))
    }

    #[test]
    fn a_program_is_named_by_its_path_or_found_in_path() {
        let a = Some(("a".to_owned(), PathBuf::from("a")));
        assert_eq!(find(r#"{"next": "HERE/a", "unknown": 1}"#).unwrap(), a);
        assert_eq!(find(r#"{"next": "a"}"#).unwrap(), a);
        assert_eq!(find("{}").unwrap(), None);
        assert_eq!(HOST_PROGRAM.find_program(&Environment::default()).unwrap(), None);
    }

    #[test]
    fn a_value_that_names_no_program_is_an_error_with_file_and_key() {
        for (value, why) in [
            ("1", "conf: next: expected a string, found a number"),
            ("null", "conf: next: expected a string, found null"),
            (r#""""#, "conf: next: expected an absolute path or a command, found \"\""),
            (r#""./a""#, "conf: next: expected an absolute path or a command, found \"./a\""),
            (r#""HERE""#, "conf: next: missing or not executable: \"/"),
            (r#""/""#, "conf: next: missing or not executable: \"/\""),
            (r#""HERE/b""#, "/b\""),
            (r#""c""#, "conf: next: missing or not executable: \"c\""),
            (r#""HERE/c""#, "/c\""),
            (r#""ipam-ds-a""#, "expected an allocator, found the selector \"ipam-ds-a\""),
        ] {
            let error = find(&format!(r#"{{"next": {value}}}"#)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
            assert!(error.to_string().contains(why), "{value}: {error}");
        }
        for text in ["", "[]", "{", "next: a"] {
            let error = find(text).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
            assert!(error.to_string().contains("conf is "), "{text}: {error}");
        }
    }
}
