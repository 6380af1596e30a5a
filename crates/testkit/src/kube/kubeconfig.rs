//! Files that say where a server is and who asks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::logins::{Credential, Login};
use super::server::Kube;
use super::yaml;
use crate::servers::base64::encode;

/// How it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// As kubectl, kind and kubeadm write it.
    #[default]
    Block,
    Flow,
    Json,
}

/// Where certificates, keys and tokens are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Material {
    /// In the file itself, certificates and keys as base64.
    #[default]
    Inline,
    /// In files beside it, by their absolute paths.
    Files,
    /// In files beside it, by their names.
    RelativeFiles,
}

/// A kubeconfig that is to be written.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    contexts: Vec<Context>,
    current: Option<String>,
    style: Style,
    material: Material,
    more: Value,
}

#[derive(Clone, Debug)]
struct Context {
    name: String,
    server: String,
    authority: Option<PathBuf>,
    insecure: bool,
    login: Login,
}

impl Kubeconfig {
    /// With one context, `test`, for a server and a login.
    pub fn of(kube: &Kube, login: &Login) -> Self {
        let contexts = vec![Context::new("test", kube, login)];
        let current = Some("test".to_owned());
        let (style, material) = Default::default();
        Self { contexts, current, style, material, more: json!({}) }
    }

    /// With one more context, which is not the current one.
    pub fn context(mut self, name: &str, kube: &Kube, login: &Login) -> Self {
        self.contexts.push(Context::new(name, kube, login));
        self
    }

    /// The name of the current context, or none; it need not be there.
    pub fn current(mut self, name: Option<&str>) -> Self {
        self.current = name.map(str::to_owned);
        self
    }

    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    pub fn material(mut self, material: Material) -> Self {
        self.material = material;
        self
    }

    /// Another URL of the server of the latest context.
    pub fn server(mut self, url: &str) -> Self {
        self.latest().server = url.to_owned();
        self
    }

    /// Another authority for the server of the latest context, or none.
    pub fn authority(mut self, authority: Option<&Path>) -> Self {
        self.latest().authority = authority.map(Path::to_owned);
        self
    }

    /// With `insecure-skip-tls-verify` in the latest context, and without an authority: both are
    /// refused.
    pub fn insecure(mut self) -> Self {
        self.latest().insecure = true;
        self.authority(None)
    }

    /// More members, which are merged: `{"clusters": [{"cluster": {"tls-server-name": …}}]}` is of
    /// the first cluster.
    pub fn more(mut self, more: &Value) -> Self {
        merge(&mut self.more, more);
        self
    }

    /// Writes it, and the files that it names beside it.
    #[track_caller]
    pub fn write(&self, path: &Path) -> PathBuf {
        let folder = path.parent().unwrap();
        let clusters: Vec<Value> = self.contexts.iter().map(|c| self.cluster(c, folder)).collect();
        let users: Vec<Value> = self.contexts.iter().map(|c| self.user(c, folder)).collect();
        let context = |context: &Context| {
            let name = &context.name;
            json!({"name": name, "context": {"cluster": name, "user": format!("{name}-user")}})
        };
        let mut value = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "preferences": {},
            "clusters": clusters,
            "users": users,
            "contexts": self.contexts.iter().map(context).collect::<Vec<_>>(),
        });
        if let Some(current) = &self.current {
            value["current-context"] = current.as_str().into();
        }
        merge(&mut value, &self.more);
        let text = match self.style {
            Style::Block => yaml::block(&value),
            Style::Flow => yaml::flow(&value),
            Style::Json => value.to_string(),
        };
        write_secret(path, &text);
        path.to_owned()
    }

    fn latest(&mut self) -> &mut Context {
        self.contexts.last_mut().unwrap()
    }

    fn cluster(&self, context: &Context, folder: &Path) -> Value {
        let mut cluster = json!({"server": context.server});
        if let Some(authority) = &context.authority {
            let text = fs::read_to_string(authority).unwrap();
            let name = format!("{}-ca.crt", context.name);
            self.put(&mut cluster, "certificate-authority", &text, &folder.join(name));
        }
        if context.insecure {
            cluster["insecure-skip-tls-verify"] = true.into();
        }
        json!({"name": context.name, "cluster": cluster})
    }

    fn user(&self, context: &Context, folder: &Path) -> Value {
        let mut user = json!({});
        let file = |end: &str| folder.join(format!("{}.{end}", context.name));
        match &context.login.credential {
            Credential::Nothing => {}
            Credential::Token(token) if self.material == Material::Inline => {
                user["token"] = token.as_str().into();
            }
            Credential::Token(token) => {
                self.refer(&mut user, "tokenFile", token, &file("token"));
            }
            Credential::Certificate(pair) => {
                let [certificate, key] =
                    [&pair.certificate, &pair.key].map(|path| fs::read_to_string(path).unwrap());
                self.put(&mut user, "client-certificate", &certificate, &file("crt"));
                self.put(&mut user, "client-key", &key, &file("key"));
            }
        }
        json!({"name": format!("{}-user", context.name), "user": user})
    }

    /// A text as `KEY-data`, or as a file that `KEY` names.
    fn put(&self, object: &mut Value, key: &str, text: &str, file: &Path) {
        if self.material == Material::Inline {
            object[format!("{key}-data")] = encode(text).into();
        } else {
            self.refer(object, key, text, file);
        }
    }

    fn refer(&self, object: &mut Value, key: &str, text: &str, file: &Path) {
        write_secret(file, text);
        let name = Path::new(file.file_name().unwrap());
        let relative = self.material == Material::RelativeFiles;
        object[key] = json!(if relative { name } else { file });
    }
}

impl Context {
    fn new(name: &str, kube: &Kube, login: &Login) -> Self {
        Self {
            name: name.to_owned(),
            server: kube.url(),
            authority: Some(kube.authority()),
            insecure: false,
            login: login.clone(),
        }
    }
}

impl Kube {
    /// Writes a kubeconfig as it is given, with what stands in it for this server and a login:
    /// `{server}`, `{ca}` (a path), `{ca-data}`, `{token}`, `{certificate}` and `{key}` (paths),
    /// `{certificate-data}` and `{key-data}`.
    #[track_caller]
    pub fn write_kubeconfig(&self, path: &Path, text: &str, login: &Login) {
        let authority = self.authority();
        let mut known = vec![("server", self.url()), ("token", String::new())];
        let mut file = |name: &'static str, data: &'static str, path: &Path| {
            known.push((name, path.display().to_string()));
            known.push((data, encode(&fs::read_to_string(path).unwrap())));
        };
        file("ca", "ca-data", &authority);
        match &login.credential {
            Credential::Nothing => {}
            Credential::Token(token) => known[1].1.clone_from(token),
            Credential::Certificate(pair) => {
                file("certificate", "certificate-data", &pair.certificate);
                file("key", "key-data", &pair.key);
            }
        }
        let fill = |text: String, (name, value): &(&str, String)| {
            text.replace(&format!("{{{name}}}"), value)
        };
        write_secret(path, &known.iter().fold(text.to_owned(), fill));
    }
}

/// As kubectl writes it: for its owner alone.
fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

/// Puts the members of an object over those of another, and the items of a list likewise.
fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(more)) => {
            into.iter_mut().zip(more).for_each(|(into, more)| merge(into, more));
            into.extend(more.iter().skip(into.len()).cloned());
        }
        (into, more) => *into = more.clone(),
    }
}
