//! Logins, rights and kubeconfigs of the tests' Kubernetes API servers are what they say.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs;
use std::path::Path;
use std::process::Output;

use ipam_testkit::kube::{
    Credential, Key, Kube, Kubeconfig, Login, Material, Node, Request, Standing, Style,
};
use ipam_testkit::servers::process;
use ipam_testkit::waiting::until;
use serde_json::{Value, json};

#[test]
fn a_user_may_do_what_a_rule_allows_until_it_is_revoked() {
    let kube = Kube::shared();
    for name in ["allowed", "other"] {
        kube.create_node(&Node::named(name));
    }
    let (user, stranger) = (kube.user(), kube.user());
    assert_ne!((&user.user, user.token()), (&stranger.user, stranger.token()));
    let [client, other] = [&user, &stranger].map(|login| kube.client(login));
    let refused = client.ask_node("allowed");
    let told = format!("User \"{}\" cannot get resource \"nodes\"", user.user);
    assert!(
        refused.status == 403 && refused.text().replace('\\', "").contains(&told),
        "{refused:?}"
    );
    let grant = kube.allow_reading_nodes(&user, &["allowed"]);
    assert_eq!(client.ask_node("allowed").status, 200);
    assert_eq!((client.ask_node("other").status, other.ask_node("allowed").status), (403, 403));
    assert_eq!(client.ask("GET", "/api/v1/nodes", b"").status, 403);
    grant.revoke();
    assert_eq!(client.ask_node("allowed").status, 403);
    let all = kube.allow_reading_nodes(&user, &[]);
    assert_eq!(
        (client.ask_node("other").status, client.ask_node("no-such-node").status),
        (200, 404)
    );
    all.revoke();
    assert_eq!(kube.client(&kube.nobody()).ask_node("allowed").status, 403);
    let unknown = Login { credential: Credential::Token("unknown".to_owned()), ..user };
    assert_eq!(kube.client(&unknown).ask_node("allowed").status, 401);
    assert_eq!(kube.client(&kube.admin()).ask_node("allowed").status, 200);
}

#[test]
fn certificates_of_every_key_log_in_and_others_do_not() {
    let kube = Kube::shared();
    kube.create_node(&Node::named("certified"));
    let headers = [
        (Key::P256, "-----BEGIN PRIVATE KEY-----"),
        (Key::P256Sec1, "-----BEGIN EC PRIVATE KEY-----"),
        (Key::Rsa, "-----BEGIN PRIVATE KEY-----"),
        (Key::RsaPkcs1, "-----BEGIN RSA PRIVATE KEY-----"),
    ];
    for (number, (key, header)) in headers.into_iter().enumerate() {
        let login = kube.certified(&format!("some/one+{number}"), &["system:masters", "b"], key);
        let Credential::Certificate(pair) = &login.credential else { panic!("{login:?}") };
        assert!(fs::read_to_string(&pair.key).unwrap().starts_with(header));
        assert_eq!(kube.client(&login).ask_node("certified").status, 200);
        assert_eq!(kube.requests_of(&login.user).len(), 1);
    }
    for standing in [Standing::Expired, Standing::Strange] {
        let login = kube.certified_as("no-one", &["system:masters"], Key::P256, standing);
        let answer = kube.client(&login).ask_node("certified");
        assert_eq!(answer.status, 401, "{standing:?}");
    }
}

#[test]
fn a_kubelets_login_has_a_nodes_rights() {
    let kube = Kube::shared();
    kube.create_node(&Node::named("kubelets-own"));
    let client = kube.client(&kube.kubelet("kubelets-own"));
    assert_eq!(client.ask_node("kubelets-own").status, 200);
    assert_eq!(client.ask("GET", "/api/v1/namespaces", b"").status, 403);
    let change = json!({"status": {"nodeInfo": {"machineID": "m"}}});
    client.patch("/api/v1/nodes/kubelets-own/status", &change);
    assert_eq!(client.ask("DELETE", "/api/v1/nodes/kubelets-own", b"").status, 403);
}

#[test]
fn a_service_account_is_mounted_as_in_a_pod_until_it_is_deleted() {
    let kube = Kube::shared();
    kube.create_node(&Node::named("served"));
    let account = kube.service_account("kube-system", "ipam");
    let folder = tempfile::tempdir().unwrap();
    let first = account.mount(folder.path());
    assert_eq!(first.user, "system:serviceaccount:kube-system:ipam");
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(
        (text("token").as_str(), text("namespace").as_str()),
        (first.token().unwrap(), "kube-system")
    );
    assert_eq!(text("ca.crt"), fs::read_to_string(kube.authority()).unwrap());
    let client = kube.client(&first);
    assert_eq!(client.ask_node("served").status, 403);
    let _grant = kube.allow_reading_nodes(&first, &["served"]);
    assert_eq!(client.ask_node("served").status, 200);
    let second = account.mount(folder.path());
    assert_ne!(first.token(), second.token());
    assert_eq!(text("token"), second.token().unwrap());
    // Links, and one folder that they lead to.
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.count(), 5);
    assert_eq!(fs::read_link(folder.path().join("token")).unwrap(), Path::new("..data/token"));
    account.delete();
    until("a token that the server has not seen yet is none any more", || {
        kube.client(&second).ask_node("served").status == 401
    });
}

/// What kubectl, who wrote the form, makes of a kubeconfig.
fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Output {
    let mut command = process::plain(ipam_testkit::kube::kubectl());
    command.env("HOME", "/nonexistent").arg("--kubeconfig").arg(kubeconfig).args(arguments);
    command.output().unwrap()
}

#[test]
fn kubectl_reads_every_kubeconfig() {
    let kube = Kube::shared();
    kube.create_node(&Node::named("configured"));
    let folder = tempfile::tempdir().unwrap();
    let token = kube.user();
    let certificate = kube.certified("configured-user", &[], Key::RsaPkcs1);
    let _grants = [&token, &certificate].map(|l| kube.allow_reading_nodes(l, &["configured"]));
    let read = ["get", "--raw", "/api/v1/nodes/configured"];
    for login in [&token, &certificate] {
        for style in [Style::Block, Style::Flow, Style::Json] {
            for material in [Material::Inline, Material::Files, Material::RelativeFiles] {
                let path = folder.path().join(format!("{style:?}-{material:?}"));
                let config = Kubeconfig::of(kube, login).style(style).material(material);
                let output = kubectl(&config.write(&path), &read);
                assert!(output.status.success(), "{style:?} {material:?} {output:?}");
            }
        }
        let requests = kube.requests_of(&login.user);
        let read = |request: &&Request| request.line() == "get /api/v1/nodes/configured 200";
        assert_eq!(requests.iter().filter(read).count(), 9, "{requests:?}");
    }
}

#[test]
fn a_kubeconfig_may_name_another_authority() {
    let kube = Kube::shared();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let other = kube.certificates().other_authority();
    let config = Kubeconfig::of(kube, &kube.admin());
    let told = |config: &Kubeconfig| {
        let output = kubectl(&config.write(&path), &["get", "--raw", "/readyz"]);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let strange = config.clone().authority(Some(&other));
    assert!(told(&strange).contains("x509: certificate signed by unknown authority"));
    assert_eq!(told(&strange.insecure()), "ok");
    assert_eq!(told(&config.server(&kube.url().replace("127.0.0.1", "localhost"))), "ok");
}

#[test]
fn a_kubeconfig_is_as_kubectl_writes_it() {
    let kube = Kube::shared();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let text = |config: Kubeconfig| fs::read_to_string(config.write(&path)).unwrap();
    let user = kube.user();
    let config = Kubeconfig::of(kube, &user).insecure().context("other", kube, &kube.nobody());
    let config = config.server("https://localhost:1").authority(None).current(Some("other"));
    let (url, token) = (kube.url(), user.token().unwrap());
    let expected = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    insecure-skip-tls-verify: true\n    \
         server: {url}\n  name: test\n- cluster:\n    server: https://localhost:1\n  name: other\n\
         contexts:\n- context:\n    cluster: test\n    user: test-user\n  name: test\n\
         - context:\n    cluster: other\n    user: other-user\n  name: other\n\
         current-context: other\nkind: Config\npreferences: {{}}\nusers:\n\
         - name: test-user\n  user:\n    token: {token}\n- name: other-user\n  user: {{}}\n"
    );
    assert_eq!(text(config.clone()), expected);
    let flow = text(config.clone().style(Style::Flow).current(None));
    assert!(
        flow.starts_with("apiVersion: v1\nclusters: [{cluster: {insecure-skip-tls-verify: true, "),
        "{flow}"
    );
    assert!(!flow.contains("current-context"), "{flow}");
    let more = json!({"clusters": [{"cluster": {"server": "https://other", "x": "a: b"}}]});
    let more: Value = serde_json::from_str(&text(config.style(Style::Json).more(&more))).unwrap();
    assert_eq!(more["clusters"][0]["cluster"]["server"], "https://other");
    assert_eq!(more["clusters"][1]["cluster"]["server"], "https://localhost:1");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_kubeconfig_may_be_any_text() {
    let kube = Kube::shared();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let login = kube.certified("any-text", &["system:masters"], Key::P256Sec1);
    let text = "# mine\nclusters:\n  - name: c\n    cluster: {certificate-authority: '{ca}', \
                server: {server}}\nusers:\n- {name: u, user: {client-key: \"{key}\", \
                client-certificate-data: {certificate-data}}}\ncontexts: [{name: x, context: \
                {cluster: c, user: u}}]\ncurrent-context: x\n";
    kube.write_kubeconfig(&path, text, &login);
    let output = kubectl(&path, &["get", "--raw", "/readyz"]);
    assert!(output.status.success() && output.stdout == b"ok", "{output:?}");
    kube.write_kubeconfig(&path, "{token} {ca-data}", &kube.admin());
    assert!(fs::read_to_string(&path).unwrap().starts_with(kube.admin().token().unwrap()));
}
