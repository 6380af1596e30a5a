use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::*;
use crate::{Secret, Server, Tls};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode};
use ipam_testkit::fake_http::Reply::{Drip, Say, SayAndClose, Silence};
use ipam_testkit::fake_http::{closed, fake, http};

fn access(urls: &[&str]) -> Access {
    let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
    Access {
        service: "Test",
        servers: Server::parse_all(&urls, "p", None).unwrap(),
        tls: Tls::default(),
        headers: vec![("X-Token", Secret::parse("s3cret", "p").unwrap())],
        timeout: Duration::from_secs(20),
        unreached: ErrorCode::UNREACHED,
        advice: |status, body| {
            (status == 403 && body.contains("denied")).then_some("look at the token")
        },
    }
}

pub(super) fn client(urls: &[&str]) -> Client {
    Client::new(access(urls), Deadline::after(Duration::from_secs(30))).unwrap()
}

pub(super) const GET: HttpRequest<'_> =
    HttpRequest { limit: 1000, ..HttpRequest::new(Method::Get, "v1/x?y=z") };
pub(super) const PUT: HttpRequest<'_> = HttpRequest { method: Method::Put, body: b"{}", ..GET };

fn read(client: &mut Client) -> Result<String, Error> {
    client.read(&GET).map(|answer| String::from_utf8(answer.body).unwrap())
}

#[test]
fn a_request_goes_below_the_url_with_the_headers() {
    let server = fake(|_| Say(http(200, "a")));
    let mut client = client(&[&format!("{}/base/", server.url)]);
    assert_eq!(read(&mut client).unwrap(), "a");
    assert_eq!(client.write(&PUT).unwrap().unwrap().status, 200);
    assert_eq!(
        client
            .write(&HttpRequest { method: Method::Post, body: b"", ..GET })
            .unwrap()
            .unwrap()
            .body,
        b"a"
    );
    let seen = server.seen.lock().unwrap();
    let first: Vec<_> = seen.iter().map(|request| request.lines().next().unwrap()).collect();
    assert_eq!(
        first,
        [
            "GET /base/v1/x?y=z HTTP/1.1",
            "PUT /base/v1/x?y=z HTTP/1.1",
            "POST /base/v1/x?y=z HTTP/1.1"
        ]
    );
    assert!(seen[1].ends_with("\r\n\r\n{}"), "{seen:?}");
    for request in &*seen {
        assert!(request.to_lowercase().contains("\r\nx-token: s3cret\r\n"), "{request}");
        assert!(!request.to_lowercase().contains("\r\naccept-encoding:"), "{request}");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn the_next_server_is_asked_where_one_fails_and_stays_the_first() {
    let (broken, good) = (fake(|_| Say(http(500, "no leader"))), fake(|_| Say(http(200, "a"))));
    let nobody = closed();
    let mut client = client(&[&nobody, &broken.url, &good.url]);
    assert_eq!(client.preferred(), None);
    for _ in 0..2 {
        assert_eq!(read(&mut client).unwrap(), "a");
        assert_eq!(client.preferred(), Some(&*good.url));
    }
    assert_eq!((broken.requests(), good.requests()), (1, 2));
    client.prefer(&broken.url);
    assert_eq!(read(&mut client).unwrap(), "a");
    client.prefer("http://elsewhere");
    assert_eq!((broken.requests(), good.requests()), (2, 3));
}

#[test]
fn a_server_that_is_silent_or_cuts_its_answer_off_is_passed_over_by_a_read() {
    let silent = fake(|_| Silence);
    let half = fake(|_| SayAndClose(http(200, "whole").replace("whole", "ha")));
    let good = fake(|_| Say(http(200, "a")));
    let mut client = client(&[&half.url, &silent.url, &good.url]);
    let mut begun = Vec::new();
    let taken = client.read_with(&GET, &mut |head, body| {
        begun.push(head.status);
        let mut text = String::new();
        body.read_to_string(&mut text).map(|_| text)
    });
    assert_eq!(taken.unwrap(), "a");
    assert_eq!(begun, [200, 200]);
    assert_eq!((half.requests(), silent.requests()), (1, 1));
}

#[test]
fn where_no_server_is_reached_the_code_says_so() {
    let (a, b) = (closed(), closed());
    let mut access = access(&[&a, &b]);
    access.timeout = Duration::from_millis(300);
    let mut client = Client::new(access, Deadline::after(Duration::from_secs(30))).unwrap();
    let error = client.write(&PUT).unwrap_err();
    assert_eq!(error.code(), ErrorCode::UNREACHED);
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("no Test server answers; {a}: Connection refused")),
        "{text}"
    );
    assert!(text.contains(&format!("; {b}: Connection refused")), "{text}");
}

#[test]
fn a_server_that_was_asked_leaves_the_call_to_be_repeated() {
    let server = fake(|_| Drip(http(200, "this takes longer")));
    let mut access = access(&[&server.url]);
    access.timeout = Duration::from_millis(300);
    let mut client = Client::new(access, Deadline::after(Duration::from_secs(30))).unwrap();
    let error = read(&mut client).unwrap_err();
    assert_eq!(error.code(), ErrorCode::TRY_AGAIN, "{error}");
    assert!(error.to_string().contains("no answer within "), "{error}");
}

#[test]
fn a_refusal_of_all_is_final_and_told_in_one_line() {
    let said = format!("Permission\n\tdenied {}", "x".repeat(400));
    let (one, other) = (fake(move |_| Say(http(403, &said))), fake(|_| Say(http(404, ""))));
    let mut client = client(&[&one.url, &other.url]);
    let error = client.write(&PUT).unwrap_err();
    assert_eq!(error.code(), ErrorCode::BACKEND);
    let shown = "x".repeat(300 - "Permission denied ".len());
    assert_eq!(
        error.to_string(),
        format!(
            "every Test server rejected the request; {}: HTTP 403: Permission denied {shown} (look at the token); \
             {}: HTTP 404 (check port, path and scheme: a server that speaks TLS needs https://)",
            one.url, other.url
        )
    );
    assert_eq!((one.requests(), other.requests()), (1, 1));
}

#[test]
fn a_redirect_is_not_followed() {
    let aim = fake(|_| Say(http(200, "a")));
    let head = format!("HTTP/1.1 307 X\r\nLocation: {}/v1/x\r\nContent-Length: 0\r\n\r\n", aim.url);
    let server = fake(move |_| Say(head.clone()));
    let error = read(&mut client(&[&server.url])).unwrap_err();
    let text = format!("HTTP 307, a redirect to {}/v1/x, which is not followed", aim.url);
    assert!(error.to_string().contains(&text), "{error}");
    assert_eq!((server.requests(), aim.requests()), (1, 0));
}

#[test]
fn a_change_goes_on_from_a_server_that_does_not_speak_http() {
    let (server, other) =
        (fake(|_| Say("nonsense\r\n\r\n".to_owned())), fake(|_| Say(http(200, ""))));
    let mut client = client(&[&server.url, &other.url]);
    assert_eq!(client.write(&PUT).unwrap().unwrap().status, 200);
    assert_eq!((server.requests(), other.requests()), (1, 1));
}

#[test]
fn a_change_that_may_be_done_is_not_sent_again() {
    for reply in [
        || Say(http(500, "leadership lost")),
        || Say(http(503, "")),
        || Say(http(204, "")),
        || SayAndClose(String::new()),
        || SayAndClose("HTTP/1.1 200 X\r\nContent-Le".to_owned()),
        || SayAndClose(http(200, "whole").replace("whole", "ha")),
        || Say(http(200, &"x".repeat(1001))),
        || Silence,
    ] {
        let (server, other) = (fake(move |_| reply()), fake(|_| Say(http(200, ""))));
        let mut client = client(&[&server.url, &other.url]);
        assert_eq!(client.write(&PUT).unwrap(), None);
        assert_eq!((server.requests(), other.requests()), (1, 0));
        // What is asked then is asked of another server.
        assert_eq!(read(&mut client).unwrap(), "");
    }
}

#[test]
fn a_change_that_is_not_done_goes_to_the_next_server() {
    for status in [301, 400, 403, 404, 429, 501] {
        let (server, other) = (fake(move |_| Say(http(status, ""))), fake(|_| Say(http(200, ""))));
        let mut client = client(&[&closed(), &server.url, &other.url]);
        assert!(client.write(&PUT).unwrap().is_some(), "{status}");
        assert_eq!((server.requests(), other.requests()), (1, 1), "{status}");
    }
}

#[test]
fn a_server_that_is_busy_is_asked_again() {
    let server = fake(|number| Say(http(if number == 0 { 429 } else { 200 }, "")));
    assert!(client(&[&server.url]).write(&PUT).unwrap().is_some());
    assert_eq!(server.requests(), 2);
}

#[test]
fn a_server_that_wants_to_be_left_alone_for_longer_than_there_is_time_is_given_up_at_once() {
    for (seconds, shown) in [("21", "21"), ("18446744073709551615", "86400")] {
        let header = format!("X\r\nRetry-After: {seconds}");
        let server = fake(move |_| Say(http(429, "busy").replacen('X', &header, 1)));
        let mut client = client(&[&server.url]);
        let error = client.write(&PUT).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TRY_AGAIN);
        let text = format!("HTTP 429: busy (the server asks to retry after {shown}s)");
        assert!(error.to_string().ends_with(&text), "{error}");
        assert_eq!(server.requests(), 1);
    }
}

#[test]
fn what_is_sent_has_the_method_that_is_asked_for() {
    let server = fake(|_| Say(http(200, "")));
    let mut client = client(&[&server.url]);
    for (method, body, line) in [
        (Method::Patch, &b"[]"[..], "PATCH /v1/x?y=z HTTP/1.1"),
        (Method::Delete, b"", "DELETE /v1/x?y=z HTTP/1.1"),
        (Method::Delete, b"{}", "DELETE /v1/x?y=z HTTP/1.1"),
    ] {
        assert!(client.write(&HttpRequest { method, body, ..GET }).unwrap().is_some());
        let seen = server.seen.lock().unwrap();
        let request = seen.last().unwrap();
        assert!(request.starts_with(line), "{request}");
        assert!(request.ends_with(&format!("\r\n\r\n{}", std::str::from_utf8(body).unwrap())));
    }
}

#[test]
fn other_statuses_are_answers_where_the_caller_says_so() {
    let server = fake(|_| Say(http(409, "{}")));
    let mut client = client(&[&server.url]);
    let answer = client.write(&HttpRequest { ok_statuses: &[200, 409], ..PUT }).unwrap().unwrap();
    assert_eq!(answer, HttpAnswer::new(409, b"{}".to_vec()));
}

#[test]
fn an_answer_beyond_the_limit_is_an_error_that_names_it() {
    let server = fake(|_| Say(http(200, &"x".repeat(1001))));
    let error = read(&mut client(&[&server.url])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::BACKEND);
    assert_eq!(
        error.to_string(),
        format!("Test at {}: the answer to GET v1/x?y=z has more than 1000 bytes", server.url)
    );
    let longest = fake(|_| Say(http(200, &"x".repeat(1000))));
    assert_eq!(read(&mut client(&[&longest.url])).unwrap().len(), 1000);
}

#[test]
fn an_answer_that_the_caller_does_not_understand_is_final() {
    let (server, other) = (fake(|_| Say(http(200, "s3cret"))), fake(|_| Say(http(200, ""))));
    let mut client = client(&[&server.url, &other.url]);
    let taken = client.read_with(&GET, &mut |_, body| {
        let mut text = String::new();
        body.read_to_string(&mut text)?;
        Err::<(), _>(io::Error::other(format!("{text} is no JSON")))
    });
    let error = taken.unwrap_err();
    let expected = ": cannot parse the answer to GET v1/x?y=z: … is no JSON";
    assert!(error.in_full().ends_with(expected), "{}", error.in_full());
    assert_eq!(other.requests(), 0);
}

#[test]
fn a_connection_that_the_server_has_closed_is_opened_anew() {
    let server = fake(|_| SayAndClose(http(200, "a")));
    let mut client = client(&[&server.url]);
    for number in 1..=3 {
        assert!(client.write(&PUT).unwrap().is_some());
        while server.ended.load(Ordering::SeqCst) < number {
            client.pause(Duration::from_millis(1));
        }
        assert_eq!(
            (server.requests(), server.connections.load(Ordering::SeqCst)),
            (number, number)
        );
    }
}

#[test]
fn a_kept_connection_that_breaks_on_a_change_leaves_it_open() {
    let server = fake(|number| match number {
        0 => Say(http(200, "a")),
        _ => SayAndClose(String::new()),
    });
    let mut client = client(&[&server.url]);
    assert_eq!(read(&mut client).unwrap(), "a");
    assert_eq!(client.write(&PUT).unwrap(), None);
    assert_eq!((server.requests(), server.connections.load(Ordering::SeqCst)), (2, 1));
}

#[test]
fn a_secret_that_a_server_repeats_is_not_shown() {
    let server = fake(|_| Say(http(403, "token s3cret denied")));
    let error = read(&mut client(&[&server.url])).unwrap_err();
    assert!(error.to_string().contains("HTTP 403: token … denied"), "{error}");
    assert!(!format!("{error:?} {:?}", client(&[&server.url])).contains("s3cret"));
}

#[test]
fn a_name_is_looked_up() {
    let server = fake(|_| Say(http(200, "a")));
    let url = server.url.replace("127.0.0.1", "localhost");
    assert_eq!(read(&mut client(&[&url])).unwrap(), "a");
}

#[test]
fn a_long_body_comes_with_the_headers_that_are_kept() {
    let head =
        "HTTP/1.1 200 X\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 1\r\n\r\na";
    let server = fake(move |_| Say(head.to_owned()));
    let mut client = client(&[&server.url]);
    let ask = HttpRequest { kept_headers: &["date"], ..GET };
    let date = client.read_with(&ask, &mut |head, _| {
        Ok(head.header("Date").and_then(crate::parse_http_date).is_some())
    });
    assert!(date.unwrap());
}

#[test]
fn a_refusal_with_a_body_is_an_answer_where_the_caller_says_so() {
    for status in [400, 409, 500] {
        let server = fake(move |_| Say(http(status, r#"{"ip_address":["used"]}"#)));
        let ask = HttpRequest {
            method: Method::Post,
            media: Some(crate::media::JSON),
            ok_statuses: &[201, 400, 409, 500],
            ..PUT
        };
        let answer = client(&[&server.url]).write(&ask).unwrap().unwrap();
        assert_eq!((answer.status, &answer.body[..]), (status, &br#"{"ip_address":["used"]}"#[..]));
        let seen = server.seen.lock().unwrap()[0].to_lowercase();
        assert!(seen.contains("\r\ncontent-type: application/json\r\n"), "{seen}");
    }
}

#[test]
fn a_header_is_replaced_and_no_secret_of_a_body_is_shown() {
    let server = fake(|_| Say(http(403, "old-key new-key pass-word denied")));
    let mut client = client(&[&server.url]);
    let secret = |text: &str| Secret::parse(text, "p").unwrap();
    client.show("Authorization", &secret("Bearer old-key")).unwrap();
    client.show("Authorization", &secret("Bearer new-key")).unwrap();
    client.conceal(&secret("pass-word"));
    let error = read(&mut client).unwrap_err();
    assert!(error.to_string().contains("HTTP 403: … … … denied"), "{error}");
    let seen = server.seen.lock().unwrap()[0].to_lowercase();
    assert!(seen.contains("\r\nauthorization: bearer new-key\r\n"), "{seen}");
    assert!(!seen.contains("old-key"), "{seen}");
}
