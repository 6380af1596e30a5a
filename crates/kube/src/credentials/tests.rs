use std::fs;

use super::*;

/// A kubeconfig of one context with these members of its cluster and its user.
fn config(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u, namespace: n}}}}]\n\
         clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
    )
}

fn login(texts: &[&str]) -> Result<KubeCredentials> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("t"), "of-file\n").unwrap();
    fs::write(folder.path().join("empty"), "\n").unwrap();
    let place = |i: usize| folder.path().join(format!("{i}"));
    let files: Vec<_> = (0..texts.len()).map(|i| (format!("f{i}"), place(i))).collect();
    for ((_, file), text) in files.iter().zip(texts) {
        fs::write(file, text).unwrap();
    }
    let files: Vec<_> = files.iter().map(|(origin, file)| (origin.clone(), &**file)).collect();
    KubeCredentials::of_kubeconfigs(&files)
}

#[track_caller]
fn fails(texts: &[&str], message: &str) {
    let error = login(texts).unwrap_err();
    assert!(error.in_full().starts_with(message), "{}", error.in_full());
    assert_eq!(error.code(), ipam_kit::ErrorCode::INVALID_CONFIG);
    assert!(!format!("{} {error:?}", error.in_full()).contains("s3cret"), "{error:?}");
}

#[test]
fn the_current_context_says_whom_to_call() {
    let KubeCredentials { server, trust, token, namespace, .. } =
        login(&[&config("server: https://a:6443/x/", "token: 0123")]).unwrap();
    assert_eq!(server.to_string(), "https://a:6443/x");
    let namespace = namespace.unwrap();
    assert_eq!(namespace, ("f0: contexts[c].context.namespace".to_owned(), "n".to_owned()));
    assert!(trust.ca.is_none() && trust.identity.is_none() && !trust.skip_verification);
    // A token that looks like a number is the text that stands there.
    let (place, secret) = token.unwrap();
    assert_eq!((&*place, secret.expose()), ("f0: users[u].user.token", "0123"));
}

#[test]
fn what_a_user_shows_is_what_client_go_takes() {
    for (user, expected) in [
        ("", None),
        ("token: ''", None),
        ("token: a", Some("a")),
        ("tokenFile: t", Some("of-file")),
        ("token: a, tokenFile: t", Some("of-file")),
        ("token: a, tokenFile: absent", Some("a")),
        ("token: a, tokenFile: empty", Some("a")),
        (
            "token: a, exec: null, username: '', as-groups: [], as-user-extra: {}, other: {x: y}",
            Some("a"),
        ),
    ] {
        let login = login(&[&config("server: http://a", user)]).unwrap();
        assert_eq!(login.token.as_ref().map(|(_, secret)| secret.expose()), expected, "{user}");
    }
    let nobody = config("server: http://a", "token: a").replace(", user: u", "");
    assert!(login(&[&nobody]).unwrap().token.is_none());
}

#[test]
fn a_server_without_a_scheme_is_one_over_tls_where_tls_is_spoken_of() {
    for (cluster, server) in [
        ("server: 'a:8080'", "http://a:8080"),
        ("server: 'a:6443', insecure-skip-tls-verify: true", "https://a:6443"),
        ("server: a, certificate-authority: ca", "https://a"),
        ("server: 'https://[fd00::1]:6443'", "https://[fd00::1]:6443"),
    ] {
        assert_eq!(login(&[&config(cluster, "")]).unwrap().server.to_string(), server);
    }
}

#[test]
fn data_comes_before_files_and_files_lie_beside_the_kubeconfig() {
    let cluster = "server: https://a, certificate-authority-data: eA==, certificate-authority: ca";
    let user =
        "client-certificate: sub/pair.pem, client-key: /pair.pem, client-key-data: 'eA\n ==\n'";
    let KubeCredentials { trust, ca_path, .. } = login(&[&config(cluster, user)]).unwrap();
    let authority = trust.ca.unwrap();
    assert!(matches!(authority.source, PemSource::Data(data) if data == b"x"));
    assert_eq!(ca_path, "f0: clusters[k].cluster.certificate-authority-data");
    let (certificate, key) = trust.identity.unwrap();
    assert!(
        matches!(certificate.source, PemSource::File(file) if file.is_absolute() && file.ends_with("sub/pair.pem"))
    );
    assert_eq!(key.path, "f0: users[u].user.client-key-data");
    let (certificate, _) = login(&[&config("server: a", "client-certificate: /p, client-key: /p")])
        .unwrap()
        .trust
        .identity
        .unwrap();
    assert!(matches!(certificate.source, PemSource::File(file) if file == Path::new("/p")));
}

#[test]
fn what_the_first_file_says_of_a_name_is_right() {
    let (first, second) =
        (config("server: http://a", "token: a"), config("server: http://b", "token: b"));
    let found = |texts: &[&str]| {
        let KubeCredentials { server, token, .. } = login(texts).unwrap();
        format!("{server} {}", token.unwrap().1.expose())
    };
    assert_eq!(found(&[&first, &second]), "http://a a");
    assert_eq!(found(&["", "---\n", &second, &first]), "http://b b");
    let other_user = first.replace("users: [{name: u,", "users: [{name: v,");
    assert_eq!(found(&[&other_user, &second]), "http://a b");
    let no_context = first.replace("current-context: c", "current-context: ''");
    assert_eq!(
        found(&[
            &no_context,
            &second
                .replace("{name: c,", "{name: d,")
                .replace("current-context: c", "current-context: d")
                .replace("cluster: k,", "cluster: k, x: y,")
        ]),
        "http://a a"
    );
    // One name is one whole: what a later file adds to it is left out.
    let bare = first.replace("token: a", "");
    assert!(login(&[&bare, &second]).unwrap().token.is_none());
}

#[test]
fn what_is_not_supported_is_named_with_what_to_do() {
    for (cluster, user, message) in [
        (
            "proxy-url: 'http://p'",
            "",
            "f0: clusters[k].cluster.proxy-url: is not supported: remove it, and name a server",
        ),
        (
            "tls-server-name: x",
            "",
            "f0: clusters[k].cluster.tls-server-name: is not supported: remove it, and use the name",
        ),
        (
            "",
            "exec: {command: aws, env: [s3cret]}",
            "f0: users[u].user.exec: is not supported: programs that provide credentials are not run",
        ),
        (
            "",
            "auth-provider: {name: gcp}",
            "f0: users[u].user.auth-provider: is not supported: programs that provide credentials are not run",
        ),
        (
            "",
            "username: x, password: s3cret",
            "f0: users[u].user.username: is not supported: Kubernetes does not accept passwords",
        ),
        ("", "password: s3cret", "f0: users[u].user.password: is not supported: "),
        ("", "as: x", "f0: users[u].user.as: is not supported: impersonation is not supported"),
        ("", "as-uid: 1", "f0: users[u].user.as-uid: is not supported: "),
        ("", "as-groups: [x]", "f0: users[u].user.as-groups: is not supported: "),
        ("", "as-user-extra: {x: [y]}", "f0: users[u].user.as-user-extra: is not supported: "),
    ] {
        fails(&[&config(&format!("server: http://a, {cluster}"), user)], message);
    }
}

#[test]
fn what_is_wrong_is_named_by_its_place() {
    for (cluster, user, message) in [
        ("", "", "f0: clusters[k].cluster.server: missing: set the URL of the API server"),
        ("server: [a]", "", "f0: clusters[k].cluster.server: expected a string, found a list"),
        (
            "server: 'ftp://a'",
            "",
            "f0: clusters[k].cluster.server: \"ftp://a\" does not begin with",
        ),
        (
            "server: 'https://u:s3cret@a'",
            "",
            "f0: clusters[k].cluster.server: the URL contains a user name",
        ),
        (
            "server: a, insecure-skip-tls-verify: yes",
            "",
            "f0: clusters[k].cluster.insecure-skip-tls-verify: expected true or false",
        ),
        (
            "server: a, insecure-skip-tls-verify: true, certificate-authority: ca",
            "",
            "f0: clusters[k].cluster.insecure-skip-tls-verify: true, together with f0: clusters[k].cluster.certificate-authority:",
        ),
        (
            "server: a, certificate-authority-data: '!'",
            "",
            "f0: clusters[k].cluster.certificate-authority-data: invalid base64",
        ),
        ("server: a", "token: \"s3cret\\nx\"", "f0: users[u].user.token: contains a line break"),
        (
            "server: a",
            "token: {s3cret: x}",
            "f0: users[u].user.token: expected a string, found a mapping",
        ),
        ("server: a", "tokenFile: absent", "f0: users[u].user.tokenFile: /"),
        ("server: a", "tokenFile: empty", "f0: users[u].user.tokenFile: /"),
        (
            "server: a",
            "client-key-data: s3cret",
            "f0: users[u].user.client-key-data: invalid base64",
        ),
        (
            "server: a",
            "client-key: k",
            "f0: users[u].user.client-certificate: missing, but f0: users[u].user.client-key is given",
        ),
        (
            "server: a",
            "client-certificate: k",
            "f0: users[u].user.client-key: missing, but f0: users[u].user.client-certificate is given",
        ),
    ] {
        fails(&[&config(cluster, user)], message);
    }
}

#[test]
fn what_is_no_kubeconfig_is_refused() {
    let good = config("server: a", "token: s3cret");
    let without = |what: &str| good.replace(what, "");
    for (text, message) in [
        (String::new(), "f0: is empty: expected a kubeconfig"),
        ("# nothing\n".to_owned(), "f0: is empty"),
        (
            "s3cret".to_owned(),
            "f0: expected a mapping, found a string: expected a kubeconfig in YAML or JSON",
        ),
        ("- s3cret".to_owned(), "f0: expected a mapping, found a list: "),
        ("a: b: s3cret".to_owned(), "f0: line 1, column "),
        (good.clone() + "---\na: b\n", "f0: line 8, column 1: a second document: expected one"),
        ("kind: Secret".to_owned(), "f0: kind: expected \"Config\", found \"Secret\""),
        (
            "{}".to_owned(),
            "f0: current-context: missing: contexts is empty: add an entry there, and name it here",
        ),
        (without("current-context: c\n"), "f0: current-context: missing: set it to one of: \"c\""),
        (
            good.replace("context: c\n", "context: d\n"),
            "f0: current-context: \"d\" not found in contexts: expected one of: \"c\"",
        ),
        (
            good.replace("cluster: k,", "cluster: l,"),
            "f0: contexts[c].context.cluster: \"l\" not found in clusters",
        ),
        (without("cluster: k, "), "f0: contexts[c].context.cluster: missing"),
        (
            good.replace("user: u,", "user: v,"),
            "f0: contexts[c].context.user: \"v\" not found in users",
        ),
        (
            good.replace("users: [", "users: [{name: u, user: {}}, "),
            "f0: users[u]: duplicate entry",
        ),
        (
            good.replace("users: [{name: u, user: {token: s3cret}}]", "users: {u: x}"),
            "f0: users: expected a list, found a mapping",
        ),
        (
            good.replace("{token: s3cret}", "s3cret"),
            "f0: users[u].user: expected a mapping, found a string",
        ),
        (
            good.replace("current-context: c", "current-context: [c]"),
            "f0: current-context: expected a string, found a list",
        ),
    ] {
        fails(&[&text], message);
    }
    // One that is broken is not passed over, whatever the others say.
    fails(&[&good, "a: b: c"], "f1: line 1, column ");
}

#[test]
fn json_is_a_kubeconfig_too() {
    let json = serde_json::json!({
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://a"}}], "users": [{"name": "u", "user": {"token": "x"}}],
    });
    assert_eq!(login(&[&json.to_string()]).unwrap().token.unwrap().1.expose(), "x");
}

#[test]
fn a_pod_finds_its_login_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join(TOKEN);
    fs::write(&place, "s3cret\n").unwrap();
    let login = KubeCredentials::of_pod(folder.path(), ("fd00::1", "443")).unwrap();
    assert_eq!(login.server.to_string(), "https://[fd00::1]");
    assert!(login.trust.ca.is_none() && login.namespace.is_none());
    assert_eq!(login.shown(), format!("the token ({})", place.display()));
    fs::write(folder.path().join(CA), "x").unwrap();
    fs::write(folder.path().join(NAMESPACE), "kube-system\n").unwrap();
    let login = KubeCredentials::of_pod(folder.path(), ("10.0.0.1", "6443")).unwrap();
    assert_eq!(login.server.to_string(), "https://10.0.0.1:6443");
    assert!(login.trust.ca.is_some());
    assert_eq!(login.namespace.as_ref().unwrap().1, "kube-system");
    assert!(!format!("{login:?}").contains("s3cret"));
    let error = KubeCredentials::of_pod(folder.path(), ("10.0.0.1", "https")).unwrap_err();
    assert!(error.to_string().starts_with("KUBERNETES_SERVICE_HOST: "), "{error}");
}
