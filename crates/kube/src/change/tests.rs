use std::time::Duration;

use serde::de::IgnoredAny;

use super::*;
use crate::RefusalReason;
use crate::tests::{Node, always, kube, kube_within, object, status};
use ipam_kit::error::{Error, ErrorCode};
use ipam_testkit::fake_http::Reply::{Say, SayAndClose, Silence};
use ipam_testkit::fake_http::{Fake, fake, http};

const POOL: Resource<'_> = Resource {
    group: "x.org",
    version: "v1",
    plural: "pools",
    namespace: Some("ns"),
    name: Some("n"),
};

fn ask(server: &Fake, method: Method, body: &[u8]) -> Result<ApiOutcome<Node>, Error> {
    let resource = Resource { name: POOL.name.filter(|_| method != Method::Post), ..POOL };
    kube(&server.url).ask(&ApiChange { method, resource, body, metadata_only: false })
}

#[test]
fn a_change_is_sent_once_with_its_type() {
    for (method, body, line, media) in [
        (
            Method::Post,
            &b"{}"[..],
            "POST /apis/x.org/v1/namespaces/ns/pools",
            Some("application/json"),
        ),
        (Method::Put, b"{}", "PUT /apis/x.org/v1/namespaces/ns/pools/n", Some("application/json")),
        (
            Method::Patch,
            b"[]",
            "PATCH /apis/x.org/v1/namespaces/ns/pools/n",
            Some("application/json-patch+json"),
        ),
        (
            Method::Delete,
            b"{}",
            "DELETE /apis/x.org/v1/namespaces/ns/pools/n",
            Some("application/json"),
        ),
        (Method::Delete, b"", "DELETE /apis/x.org/v1/namespaces/ns/pools/n", None),
    ] {
        let server = always(&http(201, &object("n")));
        let ApiOutcome::Done(node) = ask(&server, method, body).unwrap() else { panic!("{line}") };
        assert_eq!(node.metadata.name, "n");
        let seen = server.seen.lock().unwrap();
        let [request] = &seen[..] else { panic!("{seen:?}") };
        assert!(request.starts_with(&format!("{line} HTTP/1.1\r\n")), "{request}");
        assert!(request.as_bytes().ends_with(body));
        let told =
            |line: &str| line.to_lowercase().strip_prefix("content-type: ").map(str::to_owned);
        assert_eq!(request.lines().find_map(told).as_deref(), media, "{request}");
    }
    let deleted =
        http(200, r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#);
    let change = ApiChange::delete(POOL, "");
    let outcome = kube(&always(&deleted).url).ask::<IgnoredAny>(&change).unwrap();
    assert!(matches!(outcome, ApiOutcome::Done(IgnoredAny)));
}

#[test]
fn a_change_that_is_not_done_says_why() {
    let named = r#""name":"n","kind":"pools""#;
    for (answer, reason) in [
        (status(404, "NotFound", "m", named), RefusalReason::NotFound),
        (
            status(404, "NotFound", "m", r#""name":"ns","kind":"namespaces""#),
            RefusalReason::NotFound,
        ),
        (status(409, "AlreadyExists", "m", named), RefusalReason::AlreadyExists),
        (status(409, "Conflict", "m", named), RefusalReason::Conflict),
        (status(422, "Invalid", "m", ""), RefusalReason::TestFailed),
        (status(422, "Invalid", "m", r#""causes":[{"message":"wrong"}]"#), RefusalReason::Invalid),
        (status(413, "RequestEntityTooLarge", "m", ""), RefusalReason::TooLarge),
    ] {
        let outcome = ask(&always(&answer), Method::Patch, b"[]").unwrap();
        assert_eq!(outcome, ApiOutcome::Refused(ApiRefusal { reason, message: "m".to_owned() }));
    }
    let says_why = |method: Method, answer: String| match ask(&always(&answer), method, b"[]") {
        Ok(ApiOutcome::Refused(refusal)) => refusal.reason,
        other => panic!("{other:?}"),
    };
    let webhook = r#"{"kind":"Status","reason":"Invalid","message":"admission webhook"}"#;
    assert_eq!(says_why(Method::Patch, http(422, webhook)), RefusalReason::Invalid);
    assert_eq!(says_why(Method::Put, status(422, "Invalid", "m", "")), RefusalReason::Invalid);
    let forbidden = r#"User "jane" cannot create resource "pools""#;
    for (answer, code, text) in [
        (
            status(403, "Forbidden", forbidden, ""),
            ErrorCode::BACKEND,
            r#"give jane a Role in the namespace ns with the rule {"apiGroups": ["x.org"], "resources": ["pools"], "verbs": ["create"]}"#,
        ),
        (status(401, "Unauthorized", "m", ""), ErrorCode::BACKEND, "renew them"),
        (
            http(404, "404 page not found"),
            ErrorCode::BACKEND,
            "install the custom resource definitions of x.org",
        ),
        (http(409, "<html>"), ErrorCode::BACKEND, "is not a Kubernetes API server"),
        (http(413, "<html>"), ErrorCode::BACKEND, "is not a Kubernetes API server"),
        (
            status(415, "UnsupportedMediaType", "m", ""),
            ErrorCode::BACKEND,
            "rejected the request (415): m",
        ),
        (
            http(429, "").replace("X\r\n", "X\r\nRetry-After: 30\r\n"),
            ErrorCode::TRY_AGAIN,
            "HTTP 429",
        ),
    ] {
        let error = ask(&always(&answer), Method::Post, b"{}").unwrap_err();
        assert!(error.in_full().contains(text), "{}", error.in_full());
        assert_eq!(error.code(), code, "{error}");
    }
}

#[test]
fn a_change_whose_answer_is_lost_or_not_understood_is_unknown() {
    for reply in [
        || SayAndClose(String::new()),
        || SayAndClose(http(200, &object("n"))[..40].to_owned()),
        || Say(status(500, "InternalError", "m", "")),
        || Say(status(500, "InternalError", "etcdserver: request timed out", "")),
        || Say(http(500, "etcdserver: request is too large")),
        || SayAndClose(status(500, "", "etcdserver: request is too large", "")[..60].to_owned()),
        || Say(status(503, "ServiceUnavailable", "etcdserver: request is too large", "")),
        || Say(status(504, "Timeout", "m", "")),
        || Say(http(200, "<html>")),
        || Say(http(200, &object("n").replace("\"n\"", "7"))),
    ] {
        let server = fake(move |_| reply());
        assert_eq!(ask(&server, Method::Patch, b"[]").unwrap(), ApiOutcome::Unknown);
        assert_eq!(server.requests(), 1);
    }
    let mut silent = kube_within(&fake(|_| Silence).url, Duration::from_millis(500));
    let change = ApiChange::delete(POOL, "");
    assert_eq!(silent.ask::<Node>(&change).unwrap(), ApiOutcome::Unknown);
}

#[test]
fn an_object_that_the_store_does_not_take_is_refused() {
    for words in [
        "etcdserver: request is too large",
        "rpc error: code = ResourceExhausted desc = trying to send message larger than max \
         (2098073 vs. 2097152)",
    ] {
        for method in [Method::Post, Method::Put, Method::Patch] {
            let server = always(&status(500, "", words, ""));
            let ApiOutcome::Refused(refusal) = ask(&server, method, b"[]").unwrap() else {
                panic!("{method}: {words}")
            };
            assert_eq!((refusal.reason, &*refusal.message), (RefusalReason::TooLarge, words));
            assert_eq!(server.requests(), 1);
        }
    }
}

#[test]
fn an_answer_may_be_the_metadata_alone() {
    let metadata = object("n").replace("Node", "PartialObjectMetadata");
    let wanted = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
    for (metadata_only, accept) in [(true, wanted), (false, "application/json")] {
        for change in
            [ApiChange::post(POOL, "{}"), ApiChange::put(POOL, "{}"), ApiChange::patch(POOL, "[]")]
        {
            let server = always(&http(200, &metadata));
            let change = ApiChange { metadata_only, ..change };
            let outcome = kube(&server.url).ask::<Node>(&change).unwrap();
            let ApiOutcome::Done(node) = outcome else { panic!("{outcome:?}") };
            assert_eq!(node.metadata.name, "n");
            let request = server.seen.lock().unwrap()[0].to_lowercase();
            let line = format!("\r\naccept: {}\r\n", accept.to_lowercase());
            assert!(request.contains(&line), "{request}");
            assert_eq!(request.matches("\r\naccept").count(), 1, "{request}");
        }
    }
}
