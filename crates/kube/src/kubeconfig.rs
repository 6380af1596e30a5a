use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::yaml::{self, Node};
use ipam_kit::error::{Error, Result};
use ipam_servers::{Pem, PemSource, read_text};

/// One or more kubeconfigs, of which the first that says something of a name is right.
#[derive(Debug)]
pub(super) struct Kubeconfig(Vec<Document>);

/// What a file holds.
#[derive(Debug)]
struct Document {
    /// The file, and who names it, as errors show it.
    origin: String,
    /// Where relative paths begin.
    folder: PathBuf,
    root: Rc<Node>,
}

/// What is said of one name: the mapping in `users[NAME].user`, and so on.
pub(super) struct Section<'a> {
    document: &'a Document,
    place: String,
    node: Option<&'a Node>,
}

/// The current context with what it names.
pub(super) struct Current<'a> {
    pub context: Section<'a>,
    pub cluster: Section<'a>,
    /// None: nobody in particular.
    pub user: Option<Section<'a>>,
}

impl Kubeconfig {
    /// Reads files, each with the name that errors give it.
    ///
    /// # Errors
    /// One cannot be read, or is no kubeconfig; all are empty.
    pub(super) fn read(files: &[(String, &Path)]) -> Result<Self> {
        let mut documents = Vec::new();
        for (origin, path) in files {
            let root = parse(origin, path)?;
            if *root != Node::Null {
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                documents.push(Document { origin: origin.clone(), folder, root });
            }
        }
        match files {
            [(origin, _), ..] if documents.is_empty() => {
                Err(Error::config(origin, "is empty").advise("expected a kubeconfig"))
            }
            _ => Ok(Self(documents)),
        }
    }

    /// What the current context names.
    ///
    /// # Errors
    /// There is none, or it names what there is not.
    pub(super) fn current(&self) -> Result<Current<'_>> {
        let (root, name) = self.named_context()?;
        let missing = |of: &Section<'_>, key: &str, list: &str, name: &str| {
            Error::config(of.path(key), format_args!("there is no {name:?} in {list}"))
                .advise(format!("name one that there is: {}", self.names(list)))
        };
        let context = self
            .find("contexts", "context", name)?
            .ok_or_else(|| missing(&root, "current-context", "contexts", name))?;
        let cluster = context.text("cluster")?.ok_or_else(|| context.missing("cluster"))?;
        let cluster = self
            .find("clusters", "cluster", cluster)?
            .ok_or_else(|| missing(&context, "cluster", "clusters", cluster))?;
        let user = match context.text("user")? {
            None => None,
            Some(name) => Some(
                self.find("users", "user", name)?
                    .ok_or_else(|| missing(&context, "user", "users", name))?,
            ),
        };
        Ok(Current { context, cluster, user })
    }

    fn named_context(&self) -> Result<(Section<'_>, &str)> {
        for document in &self.0 {
            let root = document.root();
            if let Some(name) = root.text("current-context")? {
                return Ok((root, name));
            }
        }
        let origins: Vec<_> = self.0.iter().map(|document| &*document.origin).collect();
        Err(Error::config(origins.join(", "), "current-context: missing")
            .advise(format!("name the context to use: {}", self.names("contexts"))))
    }

    /// What the first file that has it says of a name.
    fn find(&self, list: &str, member: &str, name: &str) -> Result<Option<Section<'_>>> {
        for document in &self.0 {
            let mut found = document.list(list)?.iter().filter(|entry| is_called(entry, name));
            let (Some(entry), again) = (found.next(), found.next()) else { continue };
            let place = format!("{list}[{name}]");
            if again.is_some() {
                return Err(Error::config(
                    format_args!("{}: {place}", document.origin),
                    "stands there twice",
                ));
            }
            let entry = Section { document, place: place.clone(), node: Some(entry) };
            let node = entry.get(member);
            if node.is_some_and(|node| !matches!(node, Node::Map(_))) {
                return Err(entry.wrong(member, "a mapping"));
            }
            return Ok(Some(Section { document, place: format!("{place}.{member}"), node }));
        }
        Ok(None)
    }

    /// The names in a list, for an error.
    fn names(&self, list: &str) -> String {
        let entries = self.0.iter().flat_map(|document| document.list(list).unwrap_or_default());
        let names = entries.filter_map(|entry| match member(entry, "name")? {
            Node::Text(name) => Some(format!("{name:?}")),
            _ => None,
        });
        let names: Vec<_> = names.collect();
        if names.is_empty() { "there is none".to_owned() } else { names.join(", ") }
    }
}

fn parse(origin: &str, path: &Path) -> Result<Rc<Node>> {
    let text = read_text(path).map_err(|error| {
        Error::config(origin, "cannot be read")
            .caused_by(error)
            .advise("name a kubeconfig that root may read")
    })?;
    let wrong = |message: &dyn std::fmt::Display| {
        Error::config(origin, message).advise("expected a kubeconfig in YAML or JSON")
    };
    let root = yaml::parse(&text).map_err(|error| wrong(&error))?;
    if !matches!(*root, Node::Map(_) | Node::Null) {
        return Err(wrong(&format_args!("it is {}", root.kind())));
    }
    match member(&root, "kind") {
        Some(Node::Text(kind)) if kind != "Config" => {
            Err(wrong(&format_args!("kind: it is {kind:?}, and no \"Config\"")))
        }
        _ => Ok(root),
    }
}

fn member<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    let Node::Map(entries) = node else { return None };
    entries.get(key).map(|node| &**node).filter(|node| **node != Node::Null)
}

fn is_called(entry: &Node, name: &str) -> bool {
    matches!(member(entry, "name"), Some(Node::Text(found)) if found == name)
}

impl Document {
    fn root(&self) -> Section<'_> {
        Section { document: self, place: String::new(), node: Some(&self.root) }
    }

    fn list(&self, key: &str) -> Result<&[Rc<Node>]> {
        match member(&self.root, key) {
            None => Ok(&[]),
            Some(Node::List(items)) => Ok(items),
            Some(_) => Err(self.root().wrong(key, "a list")),
        }
    }
}

impl<'a> Section<'a> {
    /// Where a member is, as errors name it.
    pub(super) fn path(&self, key: &str) -> String {
        let dot = if self.place.is_empty() { "" } else { "." };
        format!("{}: {}{dot}{key}", self.document.origin, self.place)
    }

    /// A text, a number as it is written; an empty one is none.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Node::Text(text)) => Ok(Some(&**text).filter(|text| !text.is_empty())),
            Some(_) => Err(self.wrong(key, "a text")),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        match self.text(key)? {
            None | Some("false" | "False" | "FALSE") => Ok(false),
            Some("true" | "True" | "TRUE") => Ok(true),
            Some(_) => Err(Error::config(self.path(key), "is neither true nor false")),
        }
    }

    /// A file; a relative path begins at the kubeconfig.
    pub(super) fn file(&self, key: &str) -> Result<Option<PathBuf>> {
        Ok(self.text(key)?.map(|file| self.document.folder.join(file)))
    }

    /// PEM that stands in `KEY-data`, else in the file that `KEY` names.
    pub(super) fn pem(&self, key: &str) -> Result<Option<Pem>> {
        let data = format!("{key}-data");
        if let Some(text) = self.text(&data)? {
            let content = decode(text).ok_or_else(|| {
                Error::config(self.path(&data), "is no base64")
                    .advise("expected PEM in base64, in one piece")
            })?;
            return Ok(Some(Pem { path: self.path(&data), source: PemSource::Data(content) }));
        }
        let pem = |file| Pem { path: self.path(key), source: PemSource::File(file) };
        Ok(self.file(key)?.map(pem))
    }

    /// Fails where there is such a member; `instead` says what to do.
    pub(super) fn without(&self, key: &str, instead: &str) -> Result<()> {
        let empty = match self.get(key) {
            None | Some(Node::Null) => true,
            Some(Node::Text(text)) => text.is_empty(),
            Some(Node::List(items)) => items.is_empty(),
            Some(Node::Map(entries)) => entries.is_empty(),
        };
        if empty {
            return Ok(());
        }
        Err(Error::config(self.path(key), "is not supported").advise(instead))
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        Error::config(self.path(key), "missing")
    }

    fn get(&self, key: &str) -> Option<&'a Node> {
        member(self.node?, key)
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        let found = self.get(key).map_or("nothing", Node::kind);
        Error::config(self.path(key), format_args!("is {found}: expected {expected}"))
    }
}

/// Base64, also where YAML broke it into lines.
fn decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(text).ok()
}
