//! Finding a network's configuration, by name or by path, as runtimes read it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use ipam_cli::read_file;
use ipam_kit::cni::{Version, parse_object};
use ipam_kit::error::{Error, ErrorCode, Result};

/// Where runtimes look for network configurations.
const FOLDERS: [&str; 2] = ["/etc/cni/net.d", "/opt/cni/config"];

const ENDINGS: [&str; 3] = ["conflist", "conf", "json"];

/// A network configuration file.
#[derive(Debug)]
pub(crate) struct NetworkFile {
    pub file: PathBuf,
    /// The network's name.
    pub name: String,
    /// Each plugin's configuration, with the list's `cniVersion` and `name`.
    pub plugins: Vec<Map<String, Value>>,
}

/// Finds a network. `word` is a path ([`is_path`]), or a name that is looked up in `folder`, or in
/// the runtimes' own folders.
///
/// # Errors
/// Error 7: the network is missing, or several files define it differently.
pub(crate) fn find_network(word: &str, folder: Option<&str>) -> Result<NetworkFile> {
    if is_path(word) {
        let path = Path::new(word);
        let config = read(path)?;
        return plugins(path, &config);
    }
    let mut named: Vec<(PathBuf, Map<String, Value>)> = Vec::new();
    let (mut others, mut unreadable) = (Vec::new(), Vec::new());
    for file in files(folder) {
        match read(&file) {
            Err(error) => unreadable.push(error.in_full()),
            Ok(config) => match config.get("name").and_then(Value::as_str) {
                Some(name) if name == word => named.push((file, config)),
                Some(other) if !others.iter().any(|it| it == other) => {
                    others.push(other.to_owned());
                }
                _ => {}
            },
        }
    }
    let Some((file, config)) = named.first() else {
        let message = format!("network {word:?} not found in {}", folders(folder).join(" or "));
        let mut error = Error::new(ErrorCode::INVALID_CONFIG, message);
        if !others.is_empty() {
            error = error.advise(format!("networks there: {}", others.join(", ")));
        }
        if !unreadable.is_empty() {
            error = error.advise(unreadable.join("; "));
        }
        return Err(error.advise("--conf-dir DIR names another folder"));
    };
    if let Some((other, _)) = named.iter().find(|(_, other)| other != config) {
        let message = format!(
            "{} and {} define the network {word:?} differently",
            file.display(),
            other.display()
        );
        return Err(Error::new(ErrorCode::INVALID_CONFIG, message)
            .advise("remove one, or name the network by the path of its file"));
    }
    plugins(file, config)
}

/// Whether a word is a path, by a slash or the ending of a configuration.
pub(super) fn is_path(word: &str) -> bool {
    let ending = Path::new(word).extension().and_then(OsStr::to_str).unwrap_or_default();
    word.contains('/') || ENDINGS.contains(&ending)
}

/// The names of the networks that are configured in `folder`, or in the runtimes' own folders.
/// Files that cannot be read are ignored.
pub(crate) fn network_names(folder: Option<&str>) -> Vec<String> {
    let mut names = Vec::new();
    for file in files(folder) {
        let config = read(&file).unwrap_or_default();
        if let Some(Value::String(name)) = config.get("name")
            && !names.contains(name)
        {
            names.push(name.clone());
        }
    }
    names
}

/// Every configuration of `folder`, or of the runtimes' own folders, and of one more.
pub(crate) fn configurations_of(
    folder: Option<&str>,
    more: &Path,
) -> Vec<(PathBuf, Result<Map<String, Value>>)> {
    let mut files = files(folder);
    configurations(more, &mut files);
    files.into_iter().map(|file| (file.clone(), read(&file))).collect()
}

fn folders(folder: Option<&str>) -> Vec<&str> {
    folder.map_or_else(|| FOLDERS.to_vec(), |folder| vec![folder])
}

fn files(folder: Option<&str>) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in folders(folder) {
        configurations(Path::new(folder), &mut files);
    }
    files
}

/// Adds the configuration files of a folder, by name. A missing folder adds nothing; folders, FIFOs
/// and the like are skipped.
fn configurations(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending)) {
            names.push(name);
        }
    }
    names.sort_unstable();
    for name in names {
        let path = folder.join(name);
        // A file without metadata is reported as unreadable.
        if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            continue;
        }
        files.push(path);
    }
}

fn read(path: &Path) -> Result<Map<String, Value>> {
    parse_object(&read_file(path)?, &path.display().to_string())
}

/// The plugins of a list, or the one of a plain configuration.
fn plugins(file: &Path, config: &Map<String, Value>) -> Result<NetworkFile> {
    let wrong = |path: &str, message: &str| Error::config(path, message).within(file.display());
    let name = config.get("name").and_then(Value::as_str).unwrap_or_default();
    let plugins = match config.get("plugins") {
        None => vec![config.clone()],
        Some(Value::Array(plugins)) => {
            let version = version_of_list(config);
            let mut all = Vec::new();
            for plugin in plugins {
                let Value::Object(plugin) = plugin else {
                    return Err(wrong("plugins", "expected an array of objects"));
                };
                let mut plugin = plugin.clone();
                plugin.insert("name".to_owned(), name.into());
                if let Some(version) = &version {
                    plugin.insert("cniVersion".to_owned(), version.clone());
                }
                all.push(plugin);
            }
            all
        }
        Some(_) => return Err(wrong("plugins", "expected an array of objects")),
    };
    Ok(NetworkFile { file: file.to_owned(), name: name.to_owned(), plugins })
}

/// The version that libcni puts into each plugin: the newest known one of both keys.
fn version_of_list(config: &Map<String, Value>) -> Option<Value> {
    let single = config.get("cniVersion");
    let mut newest = None;
    for text in
        config.get("cniVersions").and_then(Value::as_array).into_iter().flatten().chain(single)
    {
        let mut alone = Map::new();
        alone.insert("cniVersion".to_owned(), text.clone());
        newest = newest.max(Version::of(&alone).ok());
    }
    newest.map(|version| version.as_str().into()).or_else(|| single.cloned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    fn folder(files: &[(&str, Value)]) -> TempDir {
        let temp = TempDir::new().unwrap();
        for (name, content) in files {
            fs::write(temp.path().join(name), content.to_string()).unwrap();
        }
        temp
    }

    fn find_in(temp: &TempDir, word: &str) -> Result<NetworkFile> {
        find_network(word, temp.path().to_str())
    }

    #[test]
    fn plugins_of_a_list_get_its_name_and_version() {
        let list = json!({
            "cniVersion": "0.4.0", "cniVersions": ["1.0.0", "0.3.1", "9.9.9"], "name": "net",
            "plugins": [{"type": "bridge", "ipam": {"type": "x"}}, {"type": "portmap"}],
        });
        let plain = json!({"cniVersion": "0.3.1", "name": "one", "type": "bridge", "ipam": {}});
        let temp = folder(&[
            ("10-a.conflist", list),
            ("20-b.conf", plain.clone()),
            ("c.txt", json!({"name": "net"})),
            ("conf", json!({"name": "net"})),
        ]);
        let found = find_in(&temp, "net").unwrap();
        assert_eq!((found.name.as_str(), found.plugins.len()), ("net", 2));
        assert_eq!(
            Value::from(found.plugins[1].clone()),
            json!({"type": "portmap", "name": "net", "cniVersion": "1.0.0"})
        );
        assert_eq!(Value::from(find_in(&temp, "one").unwrap().plugins[0].clone()), plain);
        let path = temp.path().join("20-b.conf");
        assert_eq!(find_network(path.to_str().unwrap(), None).unwrap().name, "one");
    }

    #[test]
    fn a_network_that_is_missing_or_defined_twice_is_an_error_that_names_the_files() {
        let one = |mtu: u32| json!({"name": "net", "type": "bridge", "mtu": mtu});
        let temp = folder(&[
            ("a.conf", one(1)),
            ("b.conf", one(1)),
            ("other.json", json!({"name": "blue"})),
        ]);
        assert!(find_in(&temp, "net").is_ok(), "twice the same is no contradiction");
        let error = find_in(&temp, "nets").unwrap_err().in_full();
        assert!(
            error.contains("network \"nets\" not found") && error.contains("there: net, blue;"),
            "{error}"
        );
        fs::write(temp.path().join("c.conf"), one(2).to_string()).unwrap();
        let error = find_in(&temp, "net").unwrap_err().in_full();
        assert!(error.contains("a.conf") && error.contains("c.conf"), "{error}");
        fs::write(temp.path().join("d.conf"), "{").unwrap();
        assert!(find_in(&temp, "nets").unwrap_err().in_full().contains("d.conf"));
        assert!(find_network("/nowhere.conflist", None).is_err());
    }
}
