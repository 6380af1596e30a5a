use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;

use tempfile::TempDir;

use crate::tests::{Metadata, Node, always, kube_of, kubeconfig, object, page, read, status};
use crate::{ApiChange, ApiOutcome, Kube, List, Resource, is_unauthorized};
use ipam_kit::error::{Error, ErrorCode};
use ipam_testkit::fake_http::Reply::Say;
use ipam_testkit::fake_http::{Fake, answering, http};

/// A server that takes one token, and a client whose kubeconfig another program rewrites after the
/// client has read it.
struct Rotation {
    server: Fake,
    kube: Kube,
    _folder: TempDir,
}

impl Rotation {
    /// The server takes the token `valid`, and answers with `body`. The client has read `s3cret`;
    /// then `rewritten` makes the new text of the file from the server's URL.
    fn new(valid: &'static str, body: &str, rewritten: impl FnOnce(&str) -> String) -> Self {
        Self::answering(body.to_owned(), valid, 0, rewritten)
    }

    /// As [`Rotation::new`], with a server that takes any token for the first requests.
    fn answering(
        body: String,
        valid: &'static str,
        lenient: usize,
        rewritten: impl FnOnce(&str) -> String,
    ) -> Self {
        let server = answering(move |request, number| {
            let sent = format!("authorization: bearer {valid}\r\n");
            match number < lenient || request.to_lowercase().contains(&sent) {
                true => Say(body.clone()),
                false => Say(status(401, "Unauthorized", "Unauthorized", "")),
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        fs::write(&file, kubeconfig(&server.url, "s3cret")).unwrap();
        let kube = kube_of(file.clone(), Duration::from_secs(20));
        fs::write(&file, rewritten(&server.url)).unwrap();
        Self { server, kube, _folder: folder }
    }

    fn get(&mut self) -> Result<Option<Node>, Error> {
        self.kube.get(&Resource::node("n"))
    }
}

fn renewed(url: &str) -> String {
    kubeconfig(url, "n3w-s3cret")
}

#[test]
fn a_rejected_token_that_has_rotated_is_read_once_more() {
    let mut rotation = Rotation::new("n3w-s3cret", &http(200, &object("n")), renewed);
    for requests in [2, 3] {
        assert_eq!(rotation.get().unwrap().unwrap().metadata.name, "n");
        assert_eq!(rotation.server.requests(), requests);
    }
    let shown = format!("{:?}", rotation.kube);
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn a_change_that_was_rejected_is_sent_again_as_it_was() {
    let mut rotation = Rotation::new("n3w-s3cret", &http(200, &object("n")), renewed);
    let change = ApiChange::patch(Resource::node("n"), "[7]");
    let outcome = rotation.kube.ask::<Node>(&ApiChange { metadata_only: true, ..change }).unwrap();
    assert!(matches!(outcome, ApiOutcome::Done(_)), "{outcome:?}");
    let seen = rotation.server.seen.lock().unwrap();
    let [first, second] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(first.replace("Bearer s3cret", "Bearer n3w-s3cret"), *second);
}

#[test]
fn a_list_goes_on_where_its_token_was_rejected() {
    let pages = page(&["a", "b"], "t");
    let mut rotation = Rotation::answering(pages, "n3w-s3cret", 1, renewed);
    let mut names = Vec::new();
    let each = &mut |Node { metadata: Metadata { name } }| {
        names.push(name);
        if names.len() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    rotation.kube.list(&List::all(Resource::nodes()), each).unwrap();
    assert_eq!(names, ["a", "b", "a", "b"]);
    let seen = rotation.server.seen.lock().unwrap();
    let lines: Vec<_> = seen.iter().map(|request| request.lines().next().unwrap()).collect();
    let second = "GET /api/v1/nodes?limit=100&continue=t HTTP/1.1";
    assert_eq!(lines, ["GET /api/v1/nodes?limit=100 HTTP/1.1", second, second]);
}

#[test]
fn a_login_that_stays_rejected_is_told_from_another_refusal() {
    let elsewhere = always(&http(200, &object("n")));
    let other_url = elsewhere.url.clone();
    let same = |url: &str| kubeconfig(url, "s3cret");
    let broken = |_: &str| "{".to_owned();
    let moved = move |_: &str| kubeconfig(&other_url, "n3w-s3cret");
    for (case, mut rotation, requests) in [
        ("it is the same", Rotation::new("another", "", same), 1),
        ("the new one is rejected, too", Rotation::new("another", "", renewed), 2),
        ("the file is being written", Rotation::new("another", "", broken), 1),
        ("the file names another server", Rotation::new("another", "", moved), 1),
    ] {
        let error = rotation.get().unwrap_err();
        assert!(is_unauthorized(&error), "{case}: {error}");
        assert_eq!(error.code(), ErrorCode::BACKEND, "{case}");
        let text = error.in_full();
        assert!(
            text.contains("rejected the credentials (401): Unauthorized; renew them"),
            "{text}"
        );
        assert!(!text.contains("s3cret"), "{text}");
        assert_eq!(rotation.server.requests(), requests, "{case}");
        // The files are read again once, whatever a request finds.
        let change = ApiChange::delete(Resource::node("n"), "");
        let error = rotation.kube.ask::<Node>(&change).unwrap_err();
        assert!(is_unauthorized(&error.within("a caller").with_code(ErrorCode::TRY_AGAIN)));
        assert_eq!(rotation.server.requests(), requests + 1, "{case}");
    }
    assert_eq!(elsewhere.requests(), 0);
    for answer in [status(403, "Forbidden", "m", ""), http(401, "<html>")] {
        let (_server, node) = read(&answer);
        assert!(!is_unauthorized(&node.unwrap_err()), "{answer}");
    }
}
