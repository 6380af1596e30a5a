use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::yaml::{self, YamlNode};
use ipam_kit::error::{Error, Result};
use ipam_servers::{Pem, PemSource, read_text};

/// One or more kubeconfigs. The first that has a name decides what it means.
#[derive(Debug)]
pub(super) struct Kubeconfig(Vec<KubeconfigFile>);

/// One file.
#[derive(Debug)]
struct KubeconfigFile {
    /// The file and its path, as errors show it.
    origin: String,
    /// The folder that relative paths start from.
    folder: PathBuf,
    root: Rc<YamlNode>,
}

/// The mapping of a name: `users[NAME].user`, and so on.
pub(super) struct KubeconfigSection<'a> {
    document: &'a KubeconfigFile,
    location: String,
    node: Option<&'a YamlNode>,
}

/// The current context with its cluster and user.
pub(super) struct CurrentContext<'a> {
    pub context: KubeconfigSection<'a>,
    pub cluster: KubeconfigSection<'a>,
    /// `None` for anonymous requests.
    pub user: Option<KubeconfigSection<'a>>,
}

impl Kubeconfig {
    /// Reads files, each with the name that errors give it.
    ///
    /// # Errors
    /// One cannot be read, or is not a kubeconfig; all are empty.
    pub(super) fn read(files: &[(String, &Path)]) -> Result<Self> {
        let mut documents = Vec::new();
        for (origin, path) in files {
            let root = parse(origin, path)?;
            if *root != YamlNode::Null {
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                documents.push(KubeconfigFile { origin: origin.clone(), folder, root });
            }
        }
        match files {
            [(origin, _), ..] if documents.is_empty() => {
                Err(Error::config(origin, "is empty").advise("expected a kubeconfig"))
            }
            _ => Ok(Self(documents)),
        }
    }

    /// The current context.
    ///
    /// # Errors
    /// It is missing, or names something that is missing.
    pub(super) fn current(&self) -> Result<CurrentContext<'_>> {
        let (root, name) = self.named_context()?;
        let context = self
            .find("contexts", "context", name)?
            .ok_or_else(|| self.unknown_name(&root, "current-context", "contexts", name))?;
        let cluster = context.string("cluster")?.ok_or_else(|| context.missing("cluster"))?;
        let cluster = self
            .find("clusters", "cluster", cluster)?
            .ok_or_else(|| self.unknown_name(&context, "cluster", "clusters", cluster))?;
        let user = match context.string("user")? {
            None => None,
            Some(name) => Some(
                self.find("users", "user", name)?
                    .ok_or_else(|| self.unknown_name(&context, "user", "users", name))?,
            ),
        };
        Ok(CurrentContext { context, cluster, user })
    }

    fn named_context(&self) -> Result<(KubeconfigSection<'_>, &str)> {
        for document in &self.0 {
            let root = document.root();
            if let Some(name) = root.string("current-context")? {
                return Ok((root, name));
            }
        }
        let origins: Vec<_> = self.0.iter().map(|document| &*document.origin).collect();
        Err(Error::config(origins.join(", "), "current-context: missing")
            .advise(self.choice("set it to", "contexts")))
    }

    /// The section of a name in the first file that has it.
    fn find(&self, list: &str, member: &str, name: &str) -> Result<Option<KubeconfigSection<'_>>> {
        for document in &self.0 {
            let mut found = document.list(list)?.iter().filter(|entry| is_called(entry, name));
            let (Some(entry), again) = (found.next(), found.next()) else { continue };
            let location = format!("{list}[{name}]");
            if again.is_some() {
                return Err(Error::config(
                    format_args!("{}: {location}", document.origin),
                    "duplicate entry",
                ));
            }
            let entry =
                KubeconfigSection { document, location: location.clone(), node: Some(entry) };
            let node = entry.get(member);
            if node.is_some_and(|node| !matches!(node, YamlNode::Map(_))) {
                return Err(entry.wrong(member, "a mapping"));
            }
            return Ok(Some(KubeconfigSection {
                document,
                location: format!("{location}.{member}"),
                node,
            }));
        }
        Ok(None)
    }

    fn unknown_name(
        &self,
        section: &KubeconfigSection<'_>,
        key: &str,
        list: &str,
        name: &str,
    ) -> Error {
        Error::config(section.path(key), format_args!("{name:?} not found in {list}"))
            .advise(self.choice("expected", list))
    }

    /// Advice to name one of a list, or to fill the list.
    fn choice(&self, verb: &str, list: &str) -> String {
        let entries = self.0.iter().flat_map(|document| document.list(list).unwrap_or_default());
        let names = entries.filter_map(|entry| match member(entry, "name")? {
            YamlNode::String(name) => Some(format!("{name:?}")),
            _ => None,
        });
        let names: Vec<_> = names.collect();
        match names.is_empty() {
            true => format!("{list} is empty: add an entry there, and name it here"),
            false => format!("{verb} one of: {}", names.join(", ")),
        }
    }
}

fn parse(origin: &str, path: &Path) -> Result<Rc<YamlNode>> {
    let text = read_text(path).map_err(|error| {
        Error::config(origin, "cannot be read")
            .caused_by(error)
            .advise("name a kubeconfig that root can read")
    })?;
    let root = yaml::parse(&text).map_err(|error| malformed(origin, error))?;
    if !matches!(*root, YamlNode::Map(_) | YamlNode::Null) {
        return Err(malformed(origin, format_args!("expected a mapping, found {}", root.kind())));
    }
    match member(&root, "kind") {
        Some(YamlNode::String(kind)) if kind != "Config" => {
            Err(malformed(origin, format_args!("kind: expected \"Config\", found {kind:?}")))
        }
        _ => Ok(root),
    }
}

fn malformed(origin: &str, message: impl std::fmt::Display) -> Error {
    Error::config(origin, message).advise("expected a kubeconfig in YAML or JSON")
}

fn member<'a>(node: &'a YamlNode, key: &str) -> Option<&'a YamlNode> {
    let YamlNode::Map(entries) = node else { return None };
    entries.get(key).map(|node| &**node).filter(|node| **node != YamlNode::Null)
}

fn is_called(entry: &YamlNode, name: &str) -> bool {
    matches!(member(entry, "name"), Some(YamlNode::String(found)) if found == name)
}

impl KubeconfigFile {
    fn root(&self) -> KubeconfigSection<'_> {
        KubeconfigSection { document: self, location: String::new(), node: Some(&self.root) }
    }

    fn list(&self, key: &str) -> Result<&[Rc<YamlNode>]> {
        match member(&self.root, key) {
            None => Ok(&[]),
            Some(YamlNode::List(items)) => Ok(items),
            Some(_) => Err(self.root().wrong(key, "a list")),
        }
    }
}

impl<'a> KubeconfigSection<'a> {
    /// The path of a member, as errors name it.
    pub(super) fn path(&self, key: &str) -> String {
        let dot = if self.location.is_empty() { "" } else { "." };
        format!("{}: {}{dot}{key}", self.document.origin, self.location)
    }

    /// A string, or a number as it is written; `None` for an empty one.
    pub(super) fn string(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(YamlNode::String(string)) => {
                Ok(Some(&**string).filter(|string| !string.is_empty()))
            }
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        match self.string(key)? {
            None | Some("false" | "False" | "FALSE") => Ok(false),
            Some("true" | "True" | "TRUE") => Ok(true),
            Some(_) => Err(Error::config(self.path(key), "expected true or false")),
        }
    }

    /// A file; a relative path starts from the kubeconfig's folder.
    pub(super) fn file(&self, key: &str) -> Result<Option<PathBuf>> {
        Ok(self.string(key)?.map(|file| self.document.folder.join(file)))
    }

    /// The PEM in `KEY-data`, else in the file that `KEY` names.
    pub(super) fn pem(&self, key: &str) -> Result<Option<Pem>> {
        let data = format!("{key}-data");
        if let Some(text) = self.string(&data)? {
            let content = decode(text).ok_or_else(|| {
                Error::config(self.path(&data), "invalid base64")
                    .advise("expected base64-encoded PEM")
            })?;
            return Ok(Some(Pem { path: self.path(&data), source: PemSource::Data(content) }));
        }
        let Some(file) = self.file(key)? else { return Ok(None) };
        Ok(Some(Pem { path: self.path(key), source: PemSource::File(file) }))
    }

    /// Fails if there is such a member; `instead` is the advice.
    pub(super) fn without(&self, key: &str, instead: &str) -> Result<()> {
        let empty = match self.get(key) {
            None | Some(YamlNode::Null) => true,
            Some(YamlNode::String(text)) => text.is_empty(),
            Some(YamlNode::List(items)) => items.is_empty(),
            Some(YamlNode::Map(entries)) => entries.is_empty(),
        };
        if empty {
            return Ok(());
        }
        Err(Error::config(self.path(key), "is not supported").advise(instead))
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        Error::config(self.path(key), "missing")
    }

    fn get(&self, key: &str) -> Option<&'a YamlNode> {
        member(self.node?, key)
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        let found = self.get(key).map_or("nothing", YamlNode::kind);
        Error::config(self.path(key), format_args!("expected {expected}, found {found}"))
    }
}

/// Base64, also where YAML broke it into lines.
fn decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(text).ok()
}
