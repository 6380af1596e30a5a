//! The program that the host's own file names as the last of a preset's chain.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::program::{is_selector, search};
use ipam_kit::cni::{Environment, parse_object, shown};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::read_trusted;

/// Where the host may name another last program for a preset's chain: a JSON object in a file that
/// root alone may write.
#[derive(Clone, Copy, Debug)]
pub struct HostProgram {
    /// The file.
    pub file: &'static str,
    /// A variable that names another file.
    pub variable: &'static str,
    /// The member that names the program: an absolute path, or a command that is found in `PATH`.
    pub key: &'static str,
}

impl HostProgram {
    /// The program's absolute path and its base name; `None` where the file names none, or is missing.
    ///
    /// # Errors
    /// The file is not trusted or no JSON object, or what it names is no program.
    pub(crate) fn find(&self, environment: &Environment) -> Result<Option<(String, PathBuf)>> {
        let file = environment.text(self.variable).unwrap_or(self.file);
        let Some(bytes) = read_trusted(Path::new(file))? else { return Ok(None) };
        let object = parse_object(&bytes, file);
        let object = object.map_err(|error| error.with_code(ErrorCode::INVALID_CONFIG))?;
        let Some(named) = object.get(self.key) else { return Ok(None) };
        let found = program(named, environment).map_err(|why| {
            Error::config(self.place(environment), [&shown(named), " ", why].concat())
                .advise("name a program: an absolute path, or a command in PATH")
        })?;
        Ok(Some(found))
    }

    /// Where the program is named, for errors.
    pub(crate) fn place(&self, environment: &Environment) -> String {
        let file = environment.text(self.variable).unwrap_or(self.file);
        [file, ": ", self.key].concat()
    }
}

/// The program that a value names, and its base name; else what is wrong with the value.
fn program(named: &Value, environment: &Environment) -> Result<(String, PathBuf), &'static str> {
    let text = named.as_str().ok_or("is no text")?;
    if text.is_empty() || text.contains('/') && !text.starts_with('/') {
        return Err("is neither an absolute path nor a command");
    }
    // An absolute path stays itself, whatever folder it is joined to.
    let folders = if text.starts_with('/') { vec!["/".into()] } else { path_folders(environment) };
    let program = search(&folders, text.as_ref()).ok_or("is not there, or no executable file")?;
    match program.file_name().and_then(|name| name.to_str()) {
        Some(name) if is_selector(name) => Err("is a selector, which gives no address"),
        Some(name) => Ok((name.to_owned(), program)),
        None => Err("is no program"),
    }
}

/// The folders of `PATH`. An empty or relative one would lie wherever the caller happens to be.
pub(crate) fn path_folders(environment: &Environment) -> Vec<PathBuf> {
    let path = environment.text("PATH").unwrap_or_default();
    std::env::split_paths(path).filter(|folder| folder.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::OpenOptionsExt;

    const NEXT: HostProgram = HostProgram { file: "/nowhere/x", variable: "CFG", key: "next" };

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
        let found = NEXT.find(&environment)?;
        Ok(found.map(|(name, program)| (name, program.strip_prefix(folder).unwrap().to_owned())))
    }

    #[test]
    fn a_program_is_named_by_its_path_or_found_in_path() {
        let a = Some(("a".to_owned(), PathBuf::from("a")));
        assert_eq!(find(r#"{"next": "HERE/a", "unknown": 1}"#).unwrap(), a);
        assert_eq!(find(r#"{"next": "a"}"#).unwrap(), a);
        assert_eq!(find("{}").unwrap(), None);
        assert_eq!(NEXT.find(&Environment::default()).unwrap(), None);
    }

    #[test]
    fn what_names_no_program_is_an_error_with_file_and_key() {
        for (value, why) in [
            ("1", "conf: next: a number is no text"),
            ("null", "conf: next: null is no text"),
            (r#""""#, "conf: next: \"\" is neither"),
            (r#""./a""#, "conf: next: \"./a\" is neither"),
            (r#""HERE""#, " is not there"),
            (r#""/""#, "conf: next: \"/\" is not there"),
            (r#""HERE/b""#, "/b\" is not there, or no executable"),
            (r#""c""#, "conf: next: \"c\" is not there"),
            (r#""HERE/c""#, "/c\" is not there"),
            (r#""ipam-ds-a""#, "\"ipam-ds-a\" is a selector"),
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
