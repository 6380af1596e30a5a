use std::fs;
use std::path::Path;
use std::process::Command;

use ipam_kit::error::ErrorCode;
use ipam_testkit::fields::assert_fields;
use serde_json::json;
use tempfile::TempDir;

use super::*;

const SECTION: ServerSection = ServerSection {
    service: "Rack",
    servers: "rack_servers",
    example: "http://10.20.30.40:8080",
    name: "racks",
    keys: &[Key::All(ServerSection::KEYS), Key::Value("row")],
    token: "RACKS_TOKEN",
    token_file: Some("RACKS_TOKEN_FILE"),
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Own {
    row: Option<u8>,
}

fn read_with(section: Value, variables: &[(&str, &str)]) -> Result<(ServerSettings, Own)> {
    let Value::Object(section) = section else { panic!("{section}") };
    let servers = Some(vec!["http://a".to_owned()]);
    SECTION.read(servers, Some(section), &Environment::new(variables.iter().copied()))
}

fn read(section: Value) -> Result<ServerSettings> {
    read_with(section, &[]).map(|(settings, _)| settings)
}

/// A folder with the files `token`, which says `of-file`, and `pipe`, which nobody writes.
fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("token"), "of-file\n").unwrap();
    let made = Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    assert!(made.unwrap().success());
    folder
}

#[test]
fn every_key_is_declared() {
    assert_fields::<ServerKeys>(&names(ServerSection::KEYS));
    assert_fields::<UrlKeys>(&names(ServerSection::URLS));
    assert_fields::<LoginKeys>(&names(ServerSection::LOGIN));
}

#[test]
fn the_token_of_the_section_comes_before_that_of_the_environment() {
    let folder = folder();
    let file = folder.path().join("token").display().to_string();
    let (token, token_file) = (("RACKS_TOKEN", "of-variable"), ("RACKS_TOKEN_FILE", &*file));
    for (section, variables, expected) in [
        (json!({"token": "own"}), &[token, token_file][..], Some("own")),
        (json!({"token": "own", "tokenFile": ""}), &[], Some("own")),
        (json!({"tokenFile": file}), &[token], Some("of-file")),
        (json!({"token": " \n", "tokenFile": file}), &[token], Some("of-file")),
        (json!({"token": null, "tokenFile": ""}), &[token], Some("of-variable")),
        (json!({"token": ""}), &[token, token_file], Some("of-variable")),
        (json!({}), &[("RACKS_TOKEN", " "), token_file], Some("of-file")),
        (json!({}), &[("RACKS_TOKEN", ""), ("RACKS_TOKEN_FILE", " ")], None),
        (json!({}), &[("RACKS_TOKEN_FILE", "")], None),
    ] {
        let (settings, _) = read_with(section.clone(), variables).unwrap();
        let token = settings.token.as_ref().map(Secret::expose);
        assert_eq!(token, expected, "{section} {variables:?}");
    }
}

#[test]
fn what_is_absent_or_empty_has_its_default() {
    let servers = Some(vec!["http://a".to_owned()]);
    let absent = SECTION.read::<Own>(servers, None, &Environment::default()).unwrap();
    let empty = json!({"caFile": "", "certFile": "", "keyFile": "", "timeout": null});
    for settings in [absent.0, read(empty).unwrap()] {
        assert!(settings.token.is_none());
        assert!(settings.tls.ca.is_none() && settings.tls.identity.is_none());
        assert_eq!(settings.timeout, Duration::from_secs(10));
    }
}

#[test]
fn files_are_named_with_their_keys() {
    let section = json!({"caFile": "/ca", "certFile": "/c", "keyFile": "/k", "timeout": "3s",
                         "row": 7});
    let (settings, own) = read_with(section, &[]).unwrap();
    assert_eq!((settings.timeout, own.row), (Duration::from_secs(3), Some(7)));
    let (certificate, key) = settings.tls.identity.unwrap();
    for (named, path, file) in [
        (settings.tls.ca.unwrap(), "ipam.racks.caFile", "/ca"),
        (certificate, "ipam.racks.certFile", "/c"),
        (key, "ipam.racks.keyFile", "/k"),
    ] {
        assert_eq!((&*named.path, &*named.file), (path, Path::new(file)));
    }
}

#[test]
fn what_is_wrong_is_named_by_its_place() {
    let nowhere = "ipam.racks.tokenFile: /nowhere cannot be read";
    for (section, message, details) in [
        (
            json!({"token": "a", "tokenFile": "/b"}),
            "ipam.racks.token: given together with tokenFile",
            "remove one of them",
        ),
        (json!({"token": "s3\ncret"}), "ipam.racks.token: contains a line break", ""),
        (json!({"token": "", "tokenFile": "/nowhere"}), nowhere, "No such file"),
        (
            json!({"certFile": "/c", "keyFile": ""}),
            "ipam.racks.keyFile: missing, but ipam.racks.certFile is given",
            "give both or neither",
        ),
        (
            json!({"keyFile": "/k"}),
            "ipam.racks.certFile: missing, but ipam.racks.keyFile is given",
            "give both or neither",
        ),
        (
            json!({"timeout": "soon"}),
            "ipam.racks.timeout: invalid duration \"soon\"",
            "expected for example",
        ),
        (
            json!({"cafile": "/c"}),
            "ipam.racks.cafile: unknown key",
            "expected one of token, tokenFile, caFile, certFile, keyFile, timeout, row",
        ),
        (json!({"tokenFile": 5}), "ipam.racks.tokenFile: expected a path, found a number", ""),
        (json!({"token": ["s3cret"]}), "ipam.racks.token: expected a string, found an array", ""),
        (json!({"row": "x"}), "ipam.racks.row: expected a whole number, found a string", ""),
    ] {
        let error = read(section).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert!(error.details().contains(details), "{error:?}");
        assert!(!error.in_full().contains("s3"), "{error:?}");
        assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
    }
    let file = [("RACKS_TOKEN_FILE", "/nowhere")];
    let error = read_with(json!({}), &file).unwrap_err();
    assert_eq!(error.to_string(), "RACKS_TOKEN_FILE: /nowhere cannot be read");
}

#[test]
fn servers_that_are_missing_or_no_urls_are_named_by_their_key() {
    for (servers, message, details) in [
        (
            None,
            "ipam.rack_servers: missing",
            r#"name the Rack servers, for example "rack_servers": ["http://10.20.30.40:8080"]"#,
        ),
        (Some(vec![]), "ipam.rack_servers: empty list", "name at least one"),
        (Some(vec!["http://a", "b"]), "ipam.rack_servers[1]: \"b\"", "expected http://"),
    ] {
        let servers = servers.map(|urls| urls.into_iter().map(str::to_owned).collect());
        let error = SECTION.read::<Own>(servers, None, &Environment::default()).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert!(error.details().starts_with(details), "{error:?}");
    }
}

#[test]
fn a_token_file_without_an_end_or_without_a_writer_is_refused_at_once() {
    let folder = folder();
    for file in [folder.path().join("pipe").to_str().unwrap(), "/dev/zero"] {
        for (error, path) in [
            (read(json!({"tokenFile": file})).unwrap_err(), "ipam.racks.tokenFile"),
            (read_with(json!({}), &[("RACKS_TOKEN_FILE", file)]).unwrap_err(), "RACKS_TOKEN_FILE"),
        ] {
            assert_eq!(error.to_string(), format!("{path}: {file} cannot be read"));
            assert!(error.details().starts_with("not a regular file"), "{error:?}");
        }
    }
}

const WITH_LOGIN: ServerSection = ServerSection {
    keys: &[
        Key::All(ServerSection::KEYS),
        Key::All(ServerSection::URLS),
        Key::All(ServerSection::LOGIN),
    ],
    ..SECTION
};

fn login(section: Value) -> Result<(ServerSettings, Option<ServerLogin>)> {
    let Value::Object(section) = section else { panic!("{section}") };
    let (settings, keys): (_, LoginKeys) =
        WITH_LOGIN.read_with_urls(Some(section), &Environment::default())?;
    let login = WITH_LOGIN.login(keys, &settings)?;
    Ok((settings, login))
}

#[test]
fn a_section_may_name_its_servers_and_a_login() {
    let folder = folder();
    let file = folder.path().join("token");
    for (section, servers, expected) in [
        (json!({"url": "https://a/", "username": "u", "password": "p"}), 1, Some("u:p")),
        (json!({"urls": ["https://a", "http://b"], "token": "t"}), 2, None),
        (
            json!({"url": "http://a", "username": "u", "passwordFile": file, "insecure": true}),
            1,
            Some("u:of-file"),
        ),
        (json!({"url": "http://a", "username": "", "password": " "}), 1, None),
    ] {
        let (settings, login) = login(section).unwrap();
        assert_eq!(settings.servers.len(), servers);
        let login = login.map(|login| format!("{}:{}", login.user, login.password.expose()));
        assert_eq!(login.as_deref(), expected);
    }
    for (section, message) in [
        (json!({}), "ipam.racks.url: missing"),
        (
            json!({"url": "http://a", "urls": ["http://b"]}),
            "ipam.racks.url: given together with urls",
        ),
        (json!({"url": "a"}), "ipam.racks.url: \"a\" does not begin with"),
        (json!({"urls": ["http://a", "b"]}), "ipam.racks.urls[1]: \"b\" does not begin with"),
        (json!({"url": "https://a", "user": "u"}), "ipam.racks.user: unknown key"),
        (
            json!({"url": "https://a", "username": "u"}),
            "ipam.racks.password: missing, but ipam.racks.username is given",
        ),
        (
            json!({"url": "https://a", "username": "u", "password": "p4ss", "token": "t"}),
            "ipam.racks.username: given together with a token",
        ),
        (
            json!({"url": "https://a", "username": "u", "password": "p4ss", "passwordFile": "/x"}),
            "ipam.racks.password: given together with passwordFile",
        ),
        (
            json!({"urls": ["https://a", "http://b"], "username": "u", "password": "p4ss"}),
            "ipam.racks.password: the password would go to http://b unencrypted",
        ),
    ] {
        let error = login(section).unwrap_err();
        assert_eq!(error.code().number(), 7);
        assert!(error.to_string().starts_with(message), "{error}");
        assert!(!error.in_full().contains("p4ss"), "{error}");
    }
}

/// Writes a provider's file, and reads a section that names it.
fn provider(file: &Value, more: Value) -> Result<(ServerSettings, Option<ServerLogin>)> {
    let folder = folder();
    let path = folder.path().join("provider.conf");
    fs::write(&path, file.to_string()).unwrap();
    let mut section = json!({"providerFile": path});
    section.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    login(section)
}

fn racks() -> Value {
    json!({"ipamtype": "racks", "ipamuser": "ann", "ipampwd": "s3cret", "ipamurl": "10.0.0.9:8080",
        "appid": "whereabouts"})
}

/// The file of [`racks`] with other values.
fn racks_with(more: Value) -> Value {
    let mut file = racks();
    file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    file
}

#[test]
fn the_file_of_a_provider_names_the_server_and_the_login() {
    for (url, server) in [
        ("10.0.0.9:8080", "http://10.0.0.9:8080"),
        ("ipam.example.org", "http://ipam.example.org"),
        ("https://ipam.example.org", "https://ipam.example.org"),
    ] {
        let (settings, login) = provider(&racks_with(json!({"ipamurl": url})), json!({})).unwrap();
        let servers: Vec<String> = settings.servers.iter().map(ToString::to_string).collect();
        let login = login.unwrap();
        assert_eq!(servers, [server]);
        assert_eq!((&*login.user, login.password.expose()), ("ann", "s3cret"));
    }
}

#[test]
fn the_file_of_a_provider_is_read_again_at_every_call() {
    let folder = folder();
    let path = folder.path().join("provider.conf");
    for password in ["one", "two"] {
        fs::write(&path, racks_with(json!({"ipampwd": password})).to_string()).unwrap();
        let (_, login) = login(json!({"providerFile": path})).unwrap();
        assert_eq!(login.unwrap().password.expose(), password);
    }
}

#[test]
fn a_malformed_file_of_a_provider_is_error_7_and_shows_no_password() {
    let whole = |file: Value| (file, json!({}));
    for ((file, section), message) in [
        (whole(racks_with(json!({"ipamtype": "nsxtipam"}))), "nsxtipam is not supported"),
        (whole(racks_with(json!({"ipamtype": "phpipam"}))), "expected \"racks\", found"),
        (whole(racks_with(json!({"ipamtype": ""}))), "ipamtype: missing"),
        (whole(racks_with(json!({"ipamuser": null}))), "ipamuser: missing"),
        (whole(racks_with(json!({"ipampwd": " "}))), "ipampwd: missing"),
        (whole(racks_with(json!({"ipampwd": ["s3cret"]}))), "ipampwd: expected a string"),
        (whole(racks_with(json!({"ipampwd": "s3cret\nx"}))), "ipampwd: contains a line break"),
        (whole(racks_with(json!({"ipamurl": "ftp://a"}))), "ipamurl: \"ftp://a\" does not begin"),
        (whole(racks_with(json!({"IpamPwd": "s3cret"}))), "write ipampwd"),
        (whole(json!("s3cret")), "is not one JSON object"),
        ((racks(), json!({"url": "http://a"})), "given together with url"),
        ((racks(), json!({"token": "t"})), "given together with token"),
        ((racks(), json!({"insecure": false})), "would go to http://10.0.0.9:8080 unencrypted"),
    ] {
        let error = provider(&file, section).unwrap_err();
        let text = error.in_full();
        assert_eq!(error.code(), ErrorCode::INVALID_CONFIG, "{text}");
        assert!(text.starts_with("ipam.racks.") && text.contains(message), "{message}: {text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
    for (file, message) in [("/nowhere/x.conf", "does not exist"), ("x.conf", "is relative")] {
        let error = login(json!({"providerFile": file})).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[test]
fn a_file_of_a_provider_that_others_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let folder = folder();
    let path = folder.path().join("provider.conf");
    fs::write(&path, racks().to_string()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(login(json!({"providerFile": path})).unwrap_err().code().number(), 7);
}

#[test]
fn the_token_of_the_environment_does_not_count_beside_the_file_of_a_provider() {
    let folder = folder();
    let path = folder.path().join("provider.conf");
    fs::write(&path, racks().to_string()).unwrap();
    let Value::Object(section) = json!({"providerFile": path}) else { unreachable!() };
    let environment = Environment::new([("RACKS_TOKEN", "of-variable")]);
    let (settings, keys): (_, LoginKeys) =
        WITH_LOGIN.read_with_urls(Some(section), &environment).unwrap();
    assert!(settings.token.is_none());
    assert!(WITH_LOGIN.login(keys, &settings).unwrap().is_some());
}
