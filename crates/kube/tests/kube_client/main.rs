//! The Kubernetes client with real API servers, and with what stands in their places.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipam_kit::cni::Environment;
use ipam_kit::delegate::Deadline;
use ipam_kit::host::Settings;
use ipam_kit::{Error, ErrorCode};
use ipam_kube::{CredentialsSource, Kube, List, Resource, is_unauthorized, is_unreachable};
use ipam_servers::ConfigFile;
use ipam_testkit::kube::{
    Certificates, Credential, End, Key, Kubeconfig, Login, Material, Node, Speaker, Standing, Style,
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tempfile::TempDir;

mod changes;

type Result<T> = ipam_kit::Result<T>;

fn open(source: &CredentialsSource) -> Result<Kube> {
    source.open(ErrorCode::UNREACHED, Deadline::after(Duration::from_secs(30)))
}

/// With the kubeconfig in a file.
fn with(file: &Path) -> Result<Kube> {
    let named = ConfigFile { path: "ipam.kubeconfig".to_owned(), file: file.to_owned() };
    open(
        &CredentialsSource::find(
            "ipam.kubeconfig",
            Some(named),
            &Environment::default(),
            &Settings::default(),
        )?
        .within(Duration::from_secs(25)),
    )
}

/// With a kubeconfig that is written for this alone. The folder is to be kept as long as its files.
fn with_config(config: &Kubeconfig) -> (TempDir, Result<Kube>) {
    let folder = TempDir::new().unwrap();
    let file = config.write(&folder.path().join("config"));
    (folder, with(&file))
}

/// The name of a node, as it is read.
fn read(kube: &mut Kube, node: &str) -> Result<Option<String>> {
    let node: Option<Value> = kube.get(&Resource::node(node))?;
    Ok(node.map(|node| node["metadata"]["name"].as_str().unwrap().to_owned()))
}

#[track_caller]
fn reads(config: &Kubeconfig, node: &str) {
    let (_folder, client) = with_config(config);
    assert_eq!(read(&mut client.unwrap(), node).unwrap().as_deref(), Some(node), "{config:?}");
}

/// The error of reading a node.
#[track_caller]
fn refuses(config: &Kubeconfig) -> Error {
    let (_folder, client) = with_config(config);
    let error = client.and_then(|mut client| read(&mut client, "refused")).unwrap_err();
    assert!(!is_unreachable(&error), "{error}");
    error
}

fn has(error: &Error, parts: &[&str]) {
    let text = error.in_full();
    for part in parts {
        assert!(text.contains(part), "{text}\n  has no: {part}");
    }
}

#[test]
fn every_login_and_every_form_of_a_kubeconfig_reads_a_node() {
    let server = ipam_testkit::kube::Kube::shared();
    server.create_node(&Node::named("every"));
    let mut logins = vec![server.admin()];
    for key in [Key::P256, Key::P256Sec1, Key::Rsa, Key::RsaPkcs1] {
        logins.push(server.certified("someone", &["system:masters"], key));
    }
    logins.push(server.kubelet("every"));
    for login in &logins {
        for material in [Material::Inline, Material::Files, Material::RelativeFiles] {
            for style in [Style::Block, Style::Flow, Style::Json] {
                reads(&Kubeconfig::of(server, login).style(style).material(material), "every");
            }
        }
    }
    reads(&Kubeconfig::of(server, &server.admin()).insecure(), "every");
    let localhost = server.url().replace("127.0.0.1", "localhost");
    reads(&Kubeconfig::of(server, &server.admin()).server(&localhost), "every");
    let other = Kubeconfig::of(server, &server.nobody()).context("b", server, &server.admin());
    reads(&other.current(Some("b")), "every");
}

#[test]
fn a_node_is_one_request_of_one_connection() {
    let server = ipam_testkit::kube::Kube::shared();
    server.create_node(&Node::named("once").annotation("x.io/pools", "a"));
    let user = server.user();
    let _grant = server.allow_reading_nodes(&user, &["once", "never"]);
    let (_folder, client) = with_config(&Kubeconfig::of(server, &user));
    let mut client = client.unwrap();
    let before = server.requests_of(&user.user).len();
    let node: Value = client.get(&Resource::node("once")).unwrap().unwrap();
    assert_eq!(node["metadata"]["annotations"]["x.io/pools"], "a");
    assert_eq!(read(&mut client, "never").unwrap(), None);
    let lines: Vec<_> = server.requests_of(&user.user)[before..]
        .iter()
        .map(ipam_testkit::kube::Request::line)
        .collect();
    assert_eq!(lines, ["get /api/v1/nodes/once 200", "get /api/v1/nodes/never 404"]);
}

#[test]
fn one_file_may_hold_the_certificate_with_its_key() {
    let server = ipam_testkit::kube::Kube::shared();
    server.create_node(&Node::named("joined"));
    let login = server.kubelet("joined");
    let Credential::Certificate(pair) = &login.credential else { panic!("{login:?}") };
    let folder = TempDir::new().unwrap();
    let [certificate, key] =
        [&pair.certificate, &pair.key].map(|file| fs::read_to_string(file).unwrap());
    fs::write(folder.path().join("current.pem"), certificate + &key).unwrap();
    let file = folder.path().join("kubelet.conf");
    let text = "current-context: d\ncontexts: [{name: d, context: {cluster: d, user: d, namespace: default}}]\n\
        clusters: [{name: d, cluster: {server: '{server}', certificate-authority-data: {ca-data}}}]\n\
        users: [{name: d, user: {client-certificate: current.pem, client-key: current.pem}}]\n";
    server.write_kubeconfig(&file, text, &login);
    let mut client = with(&file).unwrap();
    assert_eq!(read(&mut client, "joined").unwrap().as_deref(), Some("joined"));
    assert_eq!(client.namespace(), Some("default"));
}

#[test]
fn a_pods_service_account_logs_in_and_its_token_is_read_at_each_call() {
    let server = ipam_testkit::kube::Kube::shared();
    server.create_node(&Node::named("podded"));
    let account = server.service_account("kube-system", "client");
    let folder = TempDir::new().unwrap();
    let login = account.mount(folder.path());
    let _grant = server.allow_reading_nodes(&login, &["podded"]);
    let environment = Environment::new([
        ("KUBERNETES_SERVICE_HOST", server.address().ip().to_string()),
        ("KUBERNETES_SERVICE_PORT", server.address().port().to_string()),
    ]);
    let source = CredentialsSource::service_account(folder.path(), &environment).unwrap();
    for _ in 0..2 {
        let mut client = open(&source).unwrap();
        assert_eq!(read(&mut client, "podded").unwrap().as_deref(), Some("podded"));
        assert_eq!(client.namespace(), Some("kube-system"));
        account.mount(folder.path());
    }
    fs::remove_file(folder.path().join("token")).unwrap();
    let error = open(&source).unwrap_err();
    has(&error, &["the service account: ", "/token cannot be read"]);
}

#[test]
fn an_address_of_ipv6_stands_in_brackets() {
    let server = ipam_testkit::kube::Kube::builder().on_ipv6().start();
    server.create_node(&Node::named("six"));
    let admin = server.admin();
    reads(&Kubeconfig::of(&server, &admin), "six");
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("token"), admin.token().unwrap()).unwrap();
    fs::copy(server.authority(), folder.path().join("ca.crt")).unwrap();
    let environment = Environment::new([
        ("KUBERNETES_SERVICE_HOST", "::1".to_owned()),
        ("KUBERNETES_SERVICE_PORT", server.address().port().to_string()),
    ]);
    let source = CredentialsSource::service_account(folder.path(), &environment).unwrap();
    assert_eq!(read(&mut open(&source).unwrap(), "six").unwrap().as_deref(), Some("six"));
}

#[test]
fn several_kubeconfigs_are_one() {
    let server = ipam_testkit::kube::Kube::shared();
    server.create_node(&Node::named("merged"));
    let folder = TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name);
    let admin = server.admin();
    let whole = Kubeconfig::of(server, &admin).write(&file("whole"));
    let nobody = Kubeconfig::of(server, &server.nobody()).write(&file("nobody"));
    fs::write(file("context"), "kind: Config\ncurrent-context: test\n").unwrap();
    fs::write(file("empty"), "").unwrap();
    let named = |files: &[PathBuf]| {
        let list = std::env::join_paths(files).unwrap().into_string().unwrap();
        open(
            &CredentialsSource::find(
                "ipam.kubeconfig",
                None,
                &Environment::new([("KUBECONFIG", list)]),
                &Settings::default(),
            )
            .unwrap(),
        )
        .unwrap()
    };
    let files = [file("absent"), file("empty"), file("context"), whole.clone(), nobody.clone()];
    assert_eq!(read(&mut named(&files), "merged").unwrap().as_deref(), Some("merged"));
    let error = read(&mut named(&[nobody, whole]), "merged").unwrap_err();
    has(
        &error,
        &[
            "denied the request (403)",
            "treated the request as anonymous: configure credentials that it accepts; sent: no credentials",
        ],
    );
}

#[test]
fn a_user_without_rights_is_told_the_rule() {
    let server = ipam_testkit::kube::Kube::shared();
    let user = server.user();
    let config = Kubeconfig::of(server, &user);
    let error = refuses(&config);
    let rule = r#"{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["refused"]}"#;
    has(
        &error,
        &["(403): nodes \"refused\" is forbidden", "ClusterRole with the rule", &user.user, rule],
    );
    assert_eq!(error.code(), ErrorCode::BACKEND);
    // The rule is the one that is missing.
    let rule: Value = serde_json::from_str(rule).unwrap();
    let _grant = server.allow(&user, &json!([rule]));
    let (_folder, client) = with_config(&config);
    assert_eq!(read(&mut client.unwrap(), "refused").unwrap(), None);
}

#[test]
fn a_user_who_may_not_read_a_namespace_is_told_of_a_role_in_it() {
    let server = ipam_testkit::kube::Kube::shared();
    let (user, namespace) = (server.user(), server.create_namespace());
    let (_folder, client) = with_config(&Kubeconfig::of(server, &user));
    let mut client = client.unwrap();
    let resource = Resource { plural: "namespaces", ..Resource::node(&namespace) };
    let mut reads = || -> Result<Option<Value>> { client.get(&resource) };
    let rule = json!({
        "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"],
        "resourceNames": [namespace],
    });
    let told = format!("give {} a Role in the namespace {namespace} with the rule ", user.user);
    let error = reads().unwrap_err().in_full();
    let (_, advised) = error.split_once(&told).unwrap_or_else(|| panic!("{error}"));
    let (advised, _) = advised.split_once("; if the API server has just started").unwrap();
    assert_eq!(serde_json::from_str::<Value>(advised).unwrap(), rule);
    // That is enough.
    let _grant = server.allow_in(&namespace, &user, &json!([rule]));
    assert!(reads().unwrap().is_some());
}

#[test]
fn a_login_that_the_server_does_not_know_is_named() {
    let server = ipam_testkit::kube::Kube::shared();
    let unknown =
        Login { credential: Credential::Token("s3cret-t0ken".to_owned()), ..server.nobody() };
    for (login, part) in [
        (unknown, "renew them or configure others: the token (ipam.kubeconfig: "),
        (
            server.certified_as("x", &[], Key::P256, Standing::Expired),
            "users[test-user].user.client-certificate-data), which expired at 2020-01-02T00:00:00Z",
        ),
        (
            server.certified_as("x", &[], Key::Rsa, Standing::Strange),
            "users[test-user].user.client-certificate-data)",
        ),
    ] {
        let error = refuses(&Kubeconfig::of(server, &login));
        has(&error, &["rejected the credentials (401): Unauthorized", part]);
        assert_eq!(error.code(), ErrorCode::BACKEND);
        assert!(!error.in_full().contains("s3cret"), "{error:?}");
    }
}

#[test]
fn a_login_that_rotates_is_read_again_when_it_is_rejected() {
    let server = ipam_testkit::kube::Kube::shared();
    server.create_node(&Node::named("rotated"));
    let unknown =
        Login { credential: Credential::Token("s3cret-t0ken".to_owned()), ..server.nobody() };
    let expired = server.certified_as("x", &["system:masters"], Key::P256, Standing::Expired);
    let valid = server.certified("x", &["system:masters"], Key::Rsa);
    let folder = TempDir::new().unwrap();
    let write = |login: &Login| {
        let config = Kubeconfig::of(server, login).material(Material::Files);
        config.write(&folder.path().join("config"))
    };
    for (old, new) in [(&unknown, &server.admin()), (&expired, &valid), (&unknown, &valid)] {
        let mut client = with(&write(old)).unwrap();
        write(new);
        assert_eq!(read(&mut client, "rotated").unwrap().as_deref(), Some("rotated"));
        let mut client = with(&write(new)).unwrap();
        write(old);
        assert_eq!(read(&mut client, "rotated").unwrap().as_deref(), Some("rotated"));
    }
    let mut client = with(&write(&unknown)).unwrap();
    write(&expired);
    assert!(is_unauthorized(&read(&mut client, "rotated").unwrap_err()));
}

#[test]
fn an_untrusted_server_is_an_error_with_advice() {
    let server = ipam_testkit::kube::Kube::shared();
    let admin = server.admin();
    let strange = server.certificates().other_authority();
    let data = "clusters[test].cluster.certificate-authority-data";
    for config in [
        Kubeconfig::of(server, &admin).authority(Some(&strange)),
        Kubeconfig::of(server, &admin).authority(None),
        Kubeconfig::of(server, &admin)
            .server(&server.url().replace("127.0.0.1", "[::ffff:127.0.0.1]")),
    ] {
        let error = refuses(&config);
        assert_eq!(error.code(), ErrorCode::BACKEND, "{error}");
        has(&error, &["is not from a trusted CA", data]);
    }
    let files = Kubeconfig::of(server, &admin).authority(Some(&strange)).material(Material::Files);
    has(&refuses(&files), &["clusters[test].cluster.certificate-authority"]);
    // Without TLS it says itself what is wrong.
    let plain = Kubeconfig::of(server, &admin).server(&server.url().replace("https", "http"));
    has(
        &refuses(&plain),
        &["is not a Kubernetes API server: it answered 400 and \"Client sent an HTTP request"],
    );
}

#[test]
fn a_servers_certificate_that_has_expired_refuses() {
    let server = ipam_testkit::kube::Kube::shared();
    let certificates = Certificates::make();
    let expired = Speaker::deciding(&certificates.expired_client(), |_| panic!("it was asked"));
    let config = Kubeconfig::of(server, &server.admin())
        .server(&expired.url())
        .authority(Some(&certificates.authority()));
    let error = refuses(&config);
    has(
        &error,
        &["the server's certificate is not valid at this time, or this machine's clock is wrong"],
    );
    assert_eq!(error.code(), ErrorCode::BACKEND);
}

#[test]
fn what_is_no_api_server_refuses() {
    let server = ipam_testkit::kube::Kube::shared();
    let certificates = Certificates::make();
    let html = "<html>\n<body>Sign in</body></html>";
    for (status, headers, text) in [
        (
            "200 OK",
            "Content-Type: text/html\r\n",
            "it answered 200 and \"<html> <body>Sign in</body></html>\"",
        ),
        ("404 Not Found", "", "it answered 404 and \"<html>"),
        (
            "302 Found",
            "Location: https://sso.example/\r\n",
            "a redirect to https://sso.example/, which is not followed",
        ),
    ] {
        let answer = Speaker::answer(status, headers, html);
        let speaker = Speaker::saying(&certificates, answer, End::Next);
        let config = Kubeconfig::of(server, &server.admin())
            .server(&speaker.url())
            .authority(Some(&certificates.authority()));
        let error = refuses(&config);
        has(&error, &[text, "is not a Kubernetes API server"]);
        assert_eq!((error.code(), speaker.requests().len()), (ErrorCode::BACKEND, 1));
    }
}

#[test]
fn a_path_that_the_server_does_not_have_is_no_missing_object() {
    let server = ipam_testkit::kube::Kube::shared();
    let (_folder, client) = with_config(&Kubeconfig::of(server, &server.admin()));
    let mut client = client.unwrap();
    let pool = Resource {
        group: "ipam.example.org",
        version: "v1",
        plural: "pools",
        namespace: Some("default"),
        name: Some("a"),
    };
    let error = client.get::<Value>(&pool).unwrap_err();
    has(&error, &["404", "install the custom resource definitions of ipam.example.org"]);
    let version = Resource { group: "apps", ..pool };
    has(&client.get::<Value>(&version).unwrap_err(), &["404"]);
    let below = Kubeconfig::of(server, &server.admin()).server(&format!("{}/k8s", server.url()));
    has(&refuses(&below), &["404", "clusters[test].cluster.server"]);
    let there = Resource { group: "", plural: "configmaps", ..pool };
    assert_eq!(client.get::<Value>(&there).unwrap(), None);
}

#[test]
fn what_is_away_and_comes_again() {
    let server = ipam_testkit::kube::Kube::start();
    server.create_node(&Node::named("away"));
    let folder = TempDir::new().unwrap();
    let config = Kubeconfig::of(&server, &server.admin()).write(&folder.path().join("config"));
    let named = ConfigFile { path: "ipam.kubeconfig".to_owned(), file: config };
    let source = CredentialsSource::find(
        "ipam.kubeconfig",
        Some(named),
        &Environment::default(),
        &Settings::default(),
    )
    .unwrap();
    let new = |seconds| open(&source.clone().within(Duration::from_secs(seconds))).unwrap();
    let mut asked = [new(2), new(2)];
    for client in &mut asked {
        assert!(read(client, "away").unwrap().is_some());
    }
    server.stop();
    let error = read(&mut asked[0], "away").unwrap_err();
    assert_eq!(error.code(), ErrorCode::TRY_AGAIN, "{error}");
    server.cont();
    assert!(read(&mut new(25), "away").unwrap().is_some());
    server.kill();
    for (client, code) in
        [(&mut new(1), ErrorCode::UNREACHED), (&mut asked[1], ErrorCode::TRY_AGAIN)]
    {
        let error = read(client, "away").unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(is_unreachable(&error));
    }
    server.restart();
    assert!(read(&mut new(25), "away").unwrap().is_some());
}

#[test]
fn a_list_of_many_comes_in_pages() {
    let server = ipam_testkit::kube::Kube::start();
    let names: BTreeSet<String> = (0..250).map(|i| format!("many-{i:03}")).collect();
    for name in &names {
        let parity = ["even", "odd"][name.as_bytes()[name.len() - 1] as usize % 2];
        server.create_node(&Node::named(name).label("parity", parity));
    }
    let (_folder, client) = with_config(&Kubeconfig::of(&server, &server.admin()));
    let mut client = client.unwrap();
    let mut found = BTreeSet::new();
    let requests = server.requests_during(|| {
        let take = &mut |node: Value| {
            assert!(found.insert(node["metadata"]["name"].as_str().unwrap().to_owned()));
            ControlFlow::Continue(())
        };
        client.list(&List::all(Resource::nodes()), take).unwrap();
    });
    assert_eq!(found, names);
    assert_eq!(requests.iter().filter(|request| request.verb == "list").count(), 3);
    let mut seen = 0;
    let requests = server.requests_during(|| {
        let take = &mut |_: IgnoredAny| {
            seen += 1;
            if seen == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        client.list(&List::all(Resource::nodes()), take).unwrap();
    });
    assert_eq!((seen, requests.len()), (5, 1));
    for (labels, page, expected) in [
        ("", 500, (250, 1)),
        ("parity=odd", 50, (125, 3)),
        ("parity in (odd, even),parity!=odd", 500, (125, 1)),
        ("!parity", 100, (0, 1)),
    ] {
        let list = List { labels, page, ..List::all(Resource::nodes()) };
        let mut seen = 0;
        let requests = server.requests_during(|| {
            let take = &mut |_: IgnoredAny| {
                seen += 1;
                ControlFlow::Continue(())
            };
            client.list(&list, take).unwrap();
        });
        assert_eq!((seen, requests.len()), expected, "{labels}");
    }
    let list = List { labels: "a b", ..List::all(Resource::nodes()) };
    let take = &mut |_: IgnoredAny| ControlFlow::Continue(());
    has(&client.list(&list, take).unwrap_err(), &["rejected the request (400): unable to parse"]);
}
