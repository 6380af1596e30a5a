//! The client over TLS, and what it logs.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipam_kit::delegate::Deadline;
use ipam_kit::{Error, ErrorCode};
use ipam_servers::{Access, Client, ConfigFile, HttpRequest, Method, Secret, Server, Tls};
use ipam_testkit::certificates::{Certificates, Pair};
use log::{LevelFilter, Log, Metadata, Record};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A server over TLS that answers everything; it takes only clients of its CA if `asks`.
fn server(certificates: &Certificates, asks: bool) -> String {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let Pair { certificate, key } = certificates.server();
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let mut authorities = RootCertStore::empty();
    authorities.add(CertificateDer::from_pem_file(certificates.authority()).unwrap()).unwrap();
    let builder = if asks {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider);
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let config =
        builder.with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap();
    let config = Arc::new(config);
    serve("https", move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        answer(StreamOwned::new(connection, stream));
    })
}

fn serve(scheme: &str, each: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("{scheme}://{}", listener.local_addr().unwrap());
    let each = Arc::new(each);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let each = Arc::clone(&each);
            std::thread::spawn(move || each(stream.unwrap()));
        }
    });
    url
}

/// Answers each request that comes in one piece, as those without a body do.
fn answer(mut stream: impl Read + Write) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        assert!(buffer[..length].ends_with(b"\r\n\r\n"));
        if stream.write_all(ANSWER).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

fn named(key: &str, file: &Path) -> ConfigFile {
    ConfigFile { path: format!("ipam.test.{key}"), file: file.to_owned() }
}

fn trusting(certificates: &Certificates, client: Option<Pair>) -> Tls {
    Tls {
        ca: Some(named("caFile", &certificates.authority())),
        identity: client.map(|Pair { certificate, key }| {
            (named("certFile", &certificate), named("keyFile", &key))
        }),
    }
}

fn client(urls: &[&str], tls: Tls) -> Result<Client, Error> {
    let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
    let access = Access {
        service: "Test",
        servers: Server::parse_all(&urls, "ipam.test.servers", None).unwrap(),
        tls,
        headers: vec![("X-Token", Secret::parse("s3cret", "p").unwrap())],
        timeout: Duration::from_secs(20),
        unreached: ErrorCode::UNREACHED,
        advice: |_, _| None,
    };
    Client::new(access, Deadline::after(Duration::from_secs(30)))
}

const GET: HttpRequest<'_> = HttpRequest::new(Method::Get, "v1/x");

#[track_caller]
fn answers(urls: &[&str], tls: Tls) {
    let mut client = client(urls, tls).unwrap();
    for _ in 0..2 {
        assert_eq!(client.read(&GET).unwrap().body, b"ok");
    }
}

#[test]
fn a_server_of_the_authority_that_is_named_is_trusted() {
    let certificates = Certificates::make();
    let url = server(&certificates, false);
    answers(&[&url], trusting(&certificates, None));
    answers(&[&url.replace("127.0.0.1", "localhost")], trusting(&certificates, None));
}

#[test]
fn a_client_shows_its_certificate() {
    let certificates = Certificates::make();
    let url = server(&certificates, true);
    for pair in [certificates.client(), certificates.rsa_client()] {
        answers(&[&url], trusting(&certificates, Some(pair)));
    }
}

#[test]
fn a_server_that_does_not_take_the_client_is_not_asked_again() {
    let certificates = Certificates::make();
    let url = server(&certificates, true);
    for pair in [None, Some(certificates.other_client()), Some(certificates.expired_client())] {
        let mut client = client(&[&url], trusting(&certificates, pair)).unwrap();
        let error = client.read(&GET).unwrap_err();
        assert!(error.to_string().contains("check the client's certificate and key"), "{error}");
        // A change was not done, and may go to another server.
        let error = client.write(&HttpRequest { method: Method::Put, ..GET }).unwrap_err();
        assert_eq!(error.code(), ErrorCode::BACKEND);
    }
}

#[test]
fn a_server_of_another_authority_or_name_is_not_trusted() {
    let certificates = Certificates::make();
    let url = server(&certificates, false);
    // Whom a client trusts does not depend on what it shows of itself.
    for pair in [None, Some(certificates.client())] {
        let mine = || trusting(&certificates, pair.clone());
        let other = Some(named("caFile", &certificates.other_authority()));
        for (url, tls) in [
            (url.clone(), Tls { ca: other, ..mine() }),
            (url.clone(), Tls { ca: None, ..mine() }),
            (url.replace("127.0.0.1", "[::ffff:127.0.0.1]"), mine()),
        ] {
            let error = client(&[&url], tls).unwrap().read(&GET).unwrap_err();
            assert!(error.to_string().contains("is not from a trusted CA"), "{pair:?}: {error}");
            assert_eq!(error.code(), ErrorCode::UNREACHED);
        }
    }
}

#[test]
fn a_server_without_tls_or_that_does_not_shake_hands_is_passed_over() {
    let certificates = Certificates::make();
    let plain = serve("https", |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let error = client(&[&plain], trusting(&certificates, None)).unwrap().read(&GET).unwrap_err();
    assert!(error.to_string().contains("does not speak TLS: use http://"), "{error}");
    let silent = serve("https", |_| std::thread::park());
    let good = server(&certificates, false);
    answers(&[&plain, &silent, &good], trusting(&certificates, None));
}

#[test]
fn a_key_of_another_certificate_is_an_error_of_the_configuration() {
    let certificates = Certificates::make();
    let pair = Pair { key: certificates.other_client().key, ..certificates.client() };
    let error = client(&["https://a"], trusting(&certificates, Some(pair.clone()))).unwrap_err();
    let (file, of) = (pair.key.display(), pair.certificate.display());
    assert_eq!(
        error.to_string(),
        format!("ipam.test.keyFile: {file} does not match the certificate {of}")
    );
    assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
    // Where no server is over TLS, nobody looks at the files.
    assert!(client(&["http://a"], trusting(&certificates, Some(pair))).is_ok());
}

struct Lines(Mutex<Vec<String>>);

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

static LINES: Lines = Lines(Mutex::new(Vec::new()));

#[test]
fn no_debug_line_shows_a_secret() {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(LevelFilter::Debug);
    let certificates = Certificates::make();
    let urls = [server(&certificates, true), serve("http", answer)];
    for url in &urls {
        answers(&[url], trusting(&certificates, Some(certificates.client())));
    }
    let lines = LINES.0.lock().unwrap();
    for url in &urls {
        let line = format!("{url}: GET v1/x: 200 in ");
        assert!(lines.iter().any(|said| said.starts_with(&line)), "{lines:?}");
    }
    // The lines of what the client is made of are among them.
    assert!(lines.iter().any(|line| line.contains("HEADERS ARE REDACTED")), "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("s3cret")), "{lines:?}");
}
