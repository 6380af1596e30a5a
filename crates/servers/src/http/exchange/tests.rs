use ipam_kit::error::ErrorCode;
use ipam_testkit::fake_http::Reply::Say;
use ipam_testkit::fake_http::{fake, http};

use super::super::media;
use super::super::tests::{GET, PUT, client};
use super::*;
use crate::secret::Secret;

#[test]
fn a_body_has_the_media_type_that_the_request_or_the_client_says() {
    let server = fake(|_| Say(http(200, "")));
    let mut quiet = client(&[&server.url]);
    let mut speaking = client(&[&server.url]).speaking(media::JSON);
    let patch = HttpRequest { method: Method::Patch, ..PUT };
    for media in [media::MERGE_PATCH, media::JSON_PATCH, media::JSON] {
        quiet.write(&HttpRequest { media: Some(media), ..patch }).unwrap();
        speaking.write(&HttpRequest { media: Some(media), ..patch }).unwrap();
        let seen = server.seen.lock().unwrap().split_off(0);
        assert!(seen.iter().all(|request| has(request, "content-type", media)), "{seen:?}");
        assert!(has(&seen[1], "accept", media::JSON), "{seen:?}");
    }
    speaking.write(&patch).unwrap();
    speaking.read(&GET).unwrap();
    let seen = server.seen.lock().unwrap();
    assert!(has(&seen[0], "content-type", media::JSON), "{seen:?}");
    assert!(!seen[1].to_lowercase().contains("content-type"), "{seen:?}");
    assert!(has(&seen[1], "accept", media::JSON), "{seen:?}");
}

#[test]
fn a_request_has_headers_of_its_own() {
    let server = fake(|_| Say(http(200, "")));
    let mut client = client(&[&server.url]);
    let secrets = [("x-token", Secret::parse("0ther", "p").unwrap())];
    let own = HttpRequest { headers: &[("If-Match", "\"7\"")], secrets: &secrets, ..PUT };
    client.write(&own).unwrap();
    client.write(&PUT).unwrap();
    let seen = server.seen.lock().unwrap();
    assert!(has(&seen[0], "if-match", "\"7\"") && has(&seen[0], "x-token", "0ther"), "{seen:?}");
    assert!(!seen[0].contains("s3cret"), "{seen:?}");
    assert!(!seen[1].contains("if-match") && has(&seen[1], "x-token", "s3cret"), "{seen:?}");
    for headers in [[("a b", "c")], [("a", "b\nc")]] {
        let error = client.read(&HttpRequest { headers: &headers, ..GET }).unwrap_err();
        assert_eq!(error.code(), ErrorCode::INTERNAL);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn an_answer_keeps_the_headers_that_are_asked_for() {
    let head = "HTTP/1.1 200 X\r\nETag: \"7\"\r\nLink: <a>\r\nLink: <b>\r\nX-Odd: caf\u{e9}\r\nContent-Length: 0\r\n\r\n";
    let server = fake(move |_| Say(head.to_owned()));
    let mut client = client(&[&server.url]);
    let wants = HttpRequest { kept_headers: &["etag", "link", "x-odd", "x-absent"], ..GET };
    for answer in [client.read(&wants).unwrap(), client.write(&wants).unwrap().unwrap()] {
        assert_eq!(answer.header("ETag"), Some("\"7\""));
        assert_eq!(answer.header("link"), Some("<a>"));
        assert_eq!((answer.header("x-odd"), answer.header("x-absent")), (None, None));
        assert_eq!(answer.header("content-length"), None);
    }
    assert_eq!(client.read(&GET).unwrap().header("etag"), None);
}

#[test]
fn headers_beyond_the_limit_are_no_answer() {
    let long = format!("X\r\nETag: {}", "x".repeat(64 * 1024));
    let server = fake(move |_| Say(http(200, "").replacen('X', &long, 1)));
    let mut client = client(&[&server.url]);
    assert_eq!(client.write(&HttpRequest { kept_headers: &["etag"], ..PUT }).unwrap(), None);
}

#[test]
fn the_parts_of_a_secret_header_and_secrets_of_one_request_are_not_shown() {
    let said = "opera:pa55 and t0ken and s3cret and b3BlcmE6cGE1NQ==";
    let server = fake(move |_| Say(http(403, said)));
    let mut client = client(&[&server.url]);
    let secrets = [
        ("Authorization", Secret::parse("Basic b3BlcmE6cGE1NQ==", "p").unwrap()),
        ("X-Other", Secret::parse("Token t0ken", "p").unwrap()),
    ];
    let error = client.read(&HttpRequest { secrets: &secrets, ..GET }).unwrap_err();
    assert!(error.to_string().ends_with("HTTP 403: … and … and … and …"), "{error}");
    // What is said later is shown without them, too.
    assert_eq!(client.secrets().shown(said.as_bytes()), "… and … and … and …");
}

fn has(request: &str, name: &str, value: &str) -> bool {
    request.lines().any(|line| {
        line.split_once(": ").is_some_and(|(n, v)| n.eq_ignore_ascii_case(name) && v == value)
    })
}

#[test]
fn a_server_that_does_nothing_of_the_kind_was_asked_for_nothing() {
    let tls = "Client sent an HTTP request to an HTTPS server.";
    let get = ErrorCode::BACKEND;
    for (status, said, put) in [
        (404, "", ErrorCode::UNREACHED),
        (405, "", ErrorCode::UNREACHED),
        (501, "", ErrorCode::UNREACHED),
        (400, tls, ErrorCode::UNREACHED),
        (400, "no such key", ErrorCode::BACKEND),
        (403, "", ErrorCode::BACKEND),
    ] {
        let server = fake(move |_| Say(http(status, said)));
        let written = client(&[&server.url]).write(&PUT).unwrap_err();
        let read = client(&[&server.url]).read(&GET).unwrap_err();
        assert_eq!((written.code(), read.code()), (put, get), "{status} {said}");
    }
}

#[test]
fn an_answer_without_the_sign_is_of_another_service() {
    let server = fake(|_| Say(http(200, "")));
    let signed =
        |sign| client(&[&server.url]).read(&HttpRequest { required_header: Some(sign), ..GET });
    assert!(signed("content-length").is_ok());
    let error = signed("x-index").unwrap_err();
    assert_eq!(error.code(), ErrorCode::BACKEND);
    let text = "HTTP 200 without the header x-index: the server is not Test";
    assert!(error.to_string().ends_with(text), "{error}");
    // No reason shows a secret, wherever it comes from.
    let error = signed("s3cret").unwrap_err();
    assert!(error.to_string().contains("without the header …"), "{error}");
}
