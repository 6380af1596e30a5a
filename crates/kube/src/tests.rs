use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::*;
use ipam_kit::cni::Environment;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode};
use ipam_kit::host::Settings;
use ipam_servers::ConfigFile;
use ipam_testkit::fake_http::{Fake, Reply, closed, fake, http};

use Reply::{Say, SayAndClose, Silence};

#[derive(Debug, Deserialize, PartialEq)]
pub(super) struct Node {
    pub metadata: Metadata,
}

#[derive(Debug, Deserialize, PartialEq)]
pub(super) struct Metadata {
    pub name: String,
}

/// Somebody with a token at this server, and some time after the first trouble.
pub(super) fn kube_within(url: &str, timeout: Duration) -> Kube {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    std::fs::write(&file, kubeconfig(url, "s3cret")).unwrap();
    kube_of(file, timeout)
}

pub(super) fn kubeconfig(url: &str, token: &str) -> String {
    format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{url}'}}}}]\nusers: [{{name: u, user: {{token: {token}}}}}]\n"
    )
}

pub(super) fn kube_of(file: PathBuf, timeout: Duration) -> Kube {
    let named = ConfigFile { path: "ipam.kubeconfig".to_owned(), file };
    let source = CredentialsSource::find(
        "ipam.kubeconfig",
        Some(named),
        &Environment::default(),
        &Settings::default(),
    )
    .unwrap()
    .within(timeout);
    source.open(ErrorCode::UNREACHED, Deadline::after(Duration::from_secs(30))).unwrap()
}

pub(super) fn kube(url: &str) -> Kube {
    kube_within(url, Duration::from_secs(20))
}

pub(super) fn object(name: &str) -> String {
    format!(r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}"}}}}"#)
}

pub(super) fn status(code: u16, reason: &str, message: &str, details: &str) -> String {
    let message = message.replace('"', "\\\"");
    let body = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{message}","reason":"{reason}","details":{{{details}}},"code":{code}}}"#
    );
    http(code, &body)
}

pub(super) fn always(text: &str) -> Fake {
    let text = text.to_owned();
    fake(move |_| Say(text.clone()))
}

pub(super) fn read(text: &str) -> (Fake, Result<Option<Node>, Error>) {
    let server = always(text);
    let answer = kube(&server.url).get(&Resource::node("n"));
    (server, answer)
}

#[test]
fn an_object_is_one_request() {
    let (server, node) = read(&http(200, &object("n")));
    assert_eq!(node.unwrap().unwrap().metadata.name, "n");
    let seen = server.seen.lock().unwrap();
    let [request] = &seen[..] else { panic!("{seen:?}") };
    assert!(request.starts_with("GET /api/v1/nodes/n HTTP/1.1\r\n"), "{request}");
    let request = request.to_lowercase();
    for header in
        ["authorization: bearer s3cret", "accept: application/json", "user-agent: ipam-delegated/"]
    {
        assert!(request.contains(&format!("\r\n{header}")), "{request}");
    }
    assert_eq!(request.matches("\r\naccept").count(), 1);
    assert!(!request.contains("content-type"));
}

#[test]
fn an_object_that_is_not_there_is_none() {
    let absent = r#"nodes "n" not found"#;
    let (_, node) = read(&status(404, "NotFound", absent, r#""name":"n","kind":"nodes""#));
    assert_eq!(node.unwrap(), None);
}

#[test]
fn what_refuses_is_told_with_what_to_do_and_is_not_away() {
    let forbidden = |user: &str| {
        let message = format!(
            r#"nodes "n" is forbidden: User "{user}" cannot get resource "nodes" in API group "" at the cluster scope"#
        );
        status(403, "Forbidden", &message, r#""name":"n","kind":"nodes""#)
    };
    let page = "<!DOCTYPE html>\n<title>Log in</title> s3cret";
    for (answer, expected) in [
        (
            status(401, "Unauthorized", "Unauthorized", ""),
            &[
                "rejected the credentials (401): Unauthorized; renew them or configure others: the token (ipam.kubeconfig: /",
                "/config: users[u].user.token)",
            ][..],
        ),
        (
            forbidden("jane"),
            &[
                "denied the request (403): nodes \"n\" is forbidden: User \"jane\" cannot get",
                "at the cluster scope; give jane a ClusterRole with the rule {\"apiGroups\": [\"\"], \
               \"resources\": [\"nodes\"], \"verbs\": [\"get\"], \"resourceNames\": [\"n\"]}; \
               if the API server has just started, call again",
            ],
        ),
        (
            forbidden("system:anonymous"),
            &["treated the request as anonymous: configure credentials that it accepts; sent: "],
        ),
        (
            http(404, "404 page not found\n"),
            &[
                "is not a Kubernetes API server: it answered 404 and \"404 page not found\": check ipam.kubeconfig: /",
                "clusters[k].cluster.server",
            ],
        ),
        (
            status(404, "NotFound", "the server could not find the requested resource", ""),
            &[
                "does not serve nodes (404): the server could not find the requested resource; check",
            ],
        ),
        (status(400, "BadRequest", "no", ""), &["rejected the request (400): no"]),
        (
            http(200, page),
            &[
                "is not a Kubernetes API server: it answered 200 and \"<!DOCTYPE html> <title>Log in</title> …\"",
            ],
        ),
        (
            http(401, page),
            &["is not a Kubernetes API server: it answered 401 and \"<!DOCTYPE html>"],
        ),
        (http(403, page), &["is not a Kubernetes API server: it answered 403"]),
        (
            http(400, "Client sent an HTTP request to an HTTPS server.\n"),
            &["it answered 400 and \"Client sent an HTTP request"],
        ),
        (http(200, ""), &["it answered 200 without a text"]),
        (http(200, "null"), &["is not a Kubernetes API server"]),
        (http(200, "[]"), &["is not a Kubernetes API server"]),
        (http(200, r#"{"ok":true}"#), &["is not a Kubernetes API server"]),
        (http(200, &object("m")), &["is not a Kubernetes API server"]),
        (http(200, &object("n")[..30]), &["is not a Kubernetes API server"]),
        (http(200, &object("n").replace("\"n\"", "7")), &["is not a Kubernetes API server"]),
        (
            "HTTP/1.1 302 X\r\nLocation: https://sso/?t=s3cret\r\nContent-Length: 0\r\n\r\n"
                .to_owned(),
            &[
                "HTTP 302, a redirect to https://sso/?t=…, which is not followed",
                "the server is not a Kubernetes API server",
            ],
        ),
        (http(204, ""), &["every Kubernetes API server rejected the request", "HTTP 204"]),
    ] {
        let (server, node) = read(&answer);
        let error = node.unwrap_err();
        let text = error.in_full();
        assert!(text.contains(&server.url), "{text}");
        for expected in expected {
            assert!(text.contains(expected), "{text}\n  has no: {expected}");
        }
        assert!(!text.contains("s3cret"), "{text}");
        assert_eq!(error.code(), ErrorCode::BACKEND, "{text}");
        assert!(!is_unreachable(&error));
        assert_eq!(server.requests(), 1, "{text}");
    }
}

#[test]
fn what_no_right_would_allow_asks_for_none() {
    for message in [
        r#"nodes "n" is forbidden: exceeded quota: q, requested: count=1, used: count=1, limited: count=1"#,
        r#"nodes "n" is forbidden: unable to create new content in namespace x because it is being terminated"#,
        r#"nodes "n" is forbidden: node "m" is not allowed to modify node "n""#,
    ] {
        let (_, node) = read(&status(403, "Forbidden", message, r#""name":"n","kind":"nodes""#));
        let text = node.unwrap_err().in_full();
        assert!(text.ends_with(&format!("denied the request (403): {message}")), "{text}");
    }
}

#[test]
fn an_object_of_another_form_is_not_understood() {
    #[derive(Debug, Deserialize)]
    struct Strict {
        #[expect(dead_code, reason = "is not there")]
        spec: Vec<String>,
    }
    let server = always(&http(200, &object("n").replace("}}", r#"},"spec":["s3cret",1]}"#)));
    let error = kube(&server.url).get::<Strict>(&Resource::node("n")).unwrap_err();
    assert!(error.to_string().ends_with("sent an answer that cannot be parsed"), "{error}");
    assert!(error.details().starts_with("spec[1]: invalid type: integer `1`"), "{error:?}");
}

#[test]
fn what_is_away_is_told_by_its_code() {
    let node = Resource::node("n");
    let within = |url: &str, millis| kube_within(url, Duration::from_millis(millis));
    let error = within(&closed(), 300).get::<Node>(&node).unwrap_err();
    assert_eq!(error.code(), ErrorCode::UNREACHED);
    assert!(error.to_string().starts_with("no Kubernetes API server answers; http://"), "{error}");
    for text in [
        status(429, "TooManyRequests", "slow down", ""),
        status(500, "InternalError", "etcd", ""),
        status(503, "ServiceUnavailable", "soon", ""),
        status(504, "Timeout", "late", ""),
    ] {
        let server = always(&text);
        let error = within(&server.url, 300).get::<Node>(&node).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TRY_AGAIN, "{error}");
        assert!(is_unreachable(&error), "{error}");
    }
    for (server, requests) in [
        (fake(|_| Silence), 1),
        (always(&http(429, "").replace("X\r\n", "X\r\nRetry-After: 30\r\n")), 1),
        (always(&http(503, "").replace("X\r\n", "X\r\nRetry-After: 30\r\n")), 1),
    ] {
        let error = within(&server.url, 300).get::<Node>(&node).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TRY_AGAIN, "{error}");
        assert_eq!(server.requests(), requests);
    }
}

#[test]
fn a_read_is_repeated_until_it_succeeds() {
    let server = fake(|number| match number {
        0 => Say(status(500, "InternalError", "etcd", "")),
        1 => SayAndClose(http(200, &object("n"))[..60].to_owned()),
        2 => SayAndClose(String::new()),
        _ => Say(http(200, &object("n"))),
    });
    assert!(kube(&server.url).get::<Node>(&Resource::node("n")).unwrap().is_some());
    assert_eq!(server.requests(), 4);
}

pub(super) fn page(names: &[&str], next: &str) -> String {
    let items: Vec<_> = names.iter().map(|name| object(name)).collect();
    let items = items.join(",");
    let metadata = format!(r#"{{"resourceVersion":"1","continue":"{next}"}}"#);
    http(
        200,
        &format!(
            r#"{{"kind":"NodeList","apiVersion":"v1","metadata":{metadata},"items":[{items}]}}"#
        ),
    )
}

/// The names that a list shows, up to one.
fn names(server: &Fake, last: &str) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    let each = &mut |Node { metadata: Metadata { name } }| {
        names.push(name);
        if names.last().is_some_and(|name| name == last) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    kube(&server.url).list(&List::all(Resource::node("ignored")), each).map(|()| names)
}

#[test]
fn a_list_is_read_in_pages_until_it_is_broken_off() {
    let reply = |number| match number {
        0 => Say(page(&["a", "b"], "x=/&1")),
        1 => Say(page(&[], "2")),
        _ => Say(page(&["c"], "")),
    };
    let server = fake(reply);
    assert_eq!(names(&server, "").unwrap(), ["a", "b", "c"]);
    let lines: Vec<_> =
        server.seen.lock().unwrap().iter().map(|r| r.lines().next().unwrap().to_owned()).collect();
    assert_eq!(
        lines,
        [
            "GET /api/v1/nodes?limit=100 HTTP/1.1",
            "GET /api/v1/nodes?limit=100&continue=x%3D%2F%261 HTTP/1.1",
            "GET /api/v1/nodes?limit=100&continue=2 HTTP/1.1"
        ]
    );
    let server = fake(reply);
    assert_eq!(names(&server, "a").unwrap(), ["a"]);
    assert_eq!(server.requests(), 1);
    let none = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":null}"#;
    let empty = always(&http(200, none));
    assert!(names(&empty, "").unwrap().is_empty());
}

#[test]
fn a_list_asks_for_labels_and_pages_as_its_caller_wants() {
    let reply = |number| Say(page(&["a"], if number == 0 { "t" } else { "" }));
    for (labels, page, query) in [
        ("", 7, "limit=7"),
        ("a=b,x/y in (c, d)", 500, "limit=500&labelSelector=a%3Db%2Cx%2Fy%20in%20%28c%2C%20d%29"),
        ("!a", 0, "limit=1&labelSelector=%21a"),
        ("", 501, "limit=500"),
    ] {
        let server = fake(reply);
        let list = List { labels, page, ..List::all(Resource::nodes()) };
        kube(&server.url).list(&list, &mut |_: Node| ControlFlow::Continue(())).unwrap();
        let seen = server.seen.lock().unwrap();
        let lines: Vec<_> = seen.iter().map(|request| request.lines().next().unwrap()).collect();
        let line = |more: &str| format!("GET /api/v1/nodes?{query}{more} HTTP/1.1");
        assert_eq!(lines, [line(""), line("&continue=t")]);
    }
}

#[test]
fn a_list_that_the_server_has_forgotten_begins_anew() {
    let gone = || Say(status(410, "Expired", "too old", ""));
    let server = fake(move |number| match number {
        1 => gone(),
        0 | 2 => Say(page(&["a"], "t")),
        _ => Say(page(&["b"], "")),
    });
    assert_eq!(names(&server, "").unwrap(), ["a", "a", "b"]);
    let server = fake(move |number| if number % 2 == 0 { Say(page(&["a"], "t")) } else { gone() });
    let error = names(&server, "").unwrap_err();
    assert_eq!(error.code(), ErrorCode::TRY_AGAIN, "{error}");
    assert_eq!(server.requests(), 6);
}

#[test]
fn a_list_that_is_refused_names_the_rule() {
    let message = r#"User "jane" cannot list resource "nodes""#;
    let error = names(&always(&status(403, "Forbidden", message, "")), "").unwrap_err();
    let rule = r#"give jane a ClusterRole with the rule {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}; if the API server has just started, call again"#;
    assert!(error.in_full().ends_with(rule), "{}", error.in_full());
    let error = names(&always(&http(200, &object("n"))), "").unwrap_err();
    assert!(error.to_string().contains("is not a Kubernetes API server"), "{error}");
}

#[test]
fn no_form_of_it_shows_the_token() {
    let kube = kube(&closed());
    assert!(!format!("{kube:?}").contains("s3cret"), "{kube:?}");
}
