use super::*;
use ipam_testkit::fields::assert_fields;
use serde_json::json;

fn store(ipam: Value) -> Result<EtcdStore> {
    serde_json::from_value::<EtcdConfig>(ipam).unwrap().store()
}

#[test]
fn every_key_is_declared() {
    assert_fields::<EtcdSection>(&names(SECTION));
    let all = |keys: &[Key], value: &dyn Fn(&str) -> Value| -> Value {
        names(keys)
            .into_iter()
            .map(|key| (key.to_owned(), value(key)))
            .collect::<Map<_, _>>()
            .into()
    };
    let theirs = serde_json::from_value(all(STORE, &|_| "x".into())).unwrap();
    let CniIpamEtcd {
        url: Some(_),
        cert_file: Some(_),
        key_file: Some(_),
        trusted_ca_file: Some(_),
        others,
    } = theirs
    else {
        panic!("{theirs:?}")
    };
    assert!(others.is_empty(), "{others:?}");
    let config = serde_json::from_value(all(KEYS, &|key| match key {
        "etcd" | "etcdConfig" => json!({}),
        "endpoints" => json!(["x"]),
        _ => "x".into(),
    }));
    let config = config.unwrap();
    let EtcdConfig {
        etcd: Some(_),
        etcd_config: Some(_),
        endpoints: Some(_),
        certfile: Some(_),
        keyfile: Some(_),
        trustedcafile: Some(_),
        others,
    } = config
    else {
        panic!("{config:?}")
    };
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn every_spelling_names_the_same_store() {
    for ipam in [
        json!({"etcd": {"endpoints": ["a:1"], "certFile": "/c", "keyFile": "/k", "trustedCaFile": "/ca"}}),
        json!({"etcdConfig": {"etcdURL": "https://a:1", "etcdCertFile": "/c", "etcdKeyFile": "/k",
                              "etcdTrustedCAFileFile": "/ca"}}),
        json!({"endpoints": ["a:1"], "certfile": "/c", "keyfile": "/k", "trustedcafile": "/ca"}),
    ] {
        let store = store(ipam).unwrap();
        let urls: Vec<_> = store.endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(urls, ["https://a:1"]);
        let (cert, key) = store.identity.unwrap();
        let files = [cert.file, key.file, store.trusted.unwrap().file];
        assert_eq!(files.map(|file| file.display().to_string()), ["/c", "/k", "/ca"]);
        assert_eq!(
            (store.timeout, store.prefix.as_str()),
            (Duration::from_secs(10), NATIVE.prefix)
        );
    }
}

#[test]
fn a_layout_goes_with_every_spelling() {
    for ipam in [
        json!({"etcd": {"endpoints": ["a:1"], "layout": "host-etcd"}}),
        json!({"endpoints": ["a:1"], "etcd": {"layout": "host-etcd"}}),
        json!({"etcdConfig": {"etcdURL": "a:1"}, "etcd": {"layout": "host-etcd", "timeout": "3s"}}),
    ] {
        let store = store(ipam).unwrap();
        assert_eq!((store.layout.name, store.prefix.as_str()), ("host-etcd", "/ipam"));
    }
    let prefixed =
        json!({"etcd": {"endpoints": ["a"], "layout": "cni-ipam-etcd", "prefix": "/x/"}});
    assert_eq!(store(prefixed).unwrap().prefix, "/x");
}

#[test]
fn files_count_over_https_alone_where_they_did() {
    let files = json!({"etcdCertFile": "/c", "etcdTrustedCAFileFile": "/ca"});
    for (url, endpoint) in [("10.0.0.1:2379", "http://10.0.0.1:2379"), ("http://a:1", "http://a:1")]
    {
        let mut theirs = files.clone();
        theirs["etcdURL"] = url.into();
        let store = store(json!({"etcdConfig": theirs})).unwrap();
        assert_eq!(store.endpoints[0].to_string(), endpoint);
        assert!(store.identity.is_none() && store.trusted.is_none());
    }
}

#[test]
fn keys_of_the_replaced_plugins_in_other_letters_are_not_passed_over() {
    for (ipam, message) in [
        (
            json!({"endpoints": ["a"], "certFile": "/c", "etcd": {"layout": "host-etcd"}}),
            "ipam.certFile: unknown key (did you mean certfile?)",
        ),
        (
            json!({"etcdConfig": {"etcdURL": "a", "etcdCAFile": "/c", "EtcdKeyFile": "/k"},
                   "etcd": {"layout": "cni-ipam-etcd"}}),
            "ipam.etcdConfig.EtcdKeyFile: unknown key (did you mean etcdKeyFile?)",
        ),
    ] {
        let error = store(ipam).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
    assert!(store(json!({"certFile": "/c", "etcd": {"endpoints": ["a"]}})).is_ok());
    // They do not read this one.
    let other = json!({"endpoints": ["a"], "etcd": {"layout": "host-etcd"}, "Etcd": {}});
    assert!(store(other).is_ok());
}

#[test]
fn a_section_with_empty_files_names_no_store() {
    let section = json!({"certFile": "", "keyFile": "", "trustedCaFile": ""});
    let ipam = json!({"etcd": section, "etcdConfig": {"etcdURL": "http://a:1"}});
    assert_eq!(store(ipam).unwrap().endpoints[0].to_string(), "http://a:1");
}

#[test]
fn empty_files_are_none() {
    let store = store(json!({"etcdConfig": {"etcdURL": "http://a:1", "etcdCertFile": "",
        "etcdKeyFile": "", "etcdTrustedCAFileFile": ""}}))
    .unwrap();
    assert!(store.identity.is_none() && store.trusted.is_none());
    assert_eq!(store.endpoints[0].to_string(), "http://a:1");
    let section = json!({"endpoints": ["a"], "username": "", "passwordFile": "", "keyFile": "",
                         "resultCache": ""});
    let store = self::store(json!({"etcd": section})).unwrap();
    assert!(store.user.is_none());
    assert_eq!(store.result_cache, PathBuf::from(ResultCache::DEFAULT));
}

#[test]
fn what_is_wrong_is_named_by_its_place() {
    for (ipam, message) in [
        (json!({}), "ipam.etcd: missing: expected the endpoints of an etcd"),
        (json!({"etcd": {}}), "ipam.etcd.endpoints: empty: expected at least one endpoint"),
        (
            json!({"etcdConfig": {"etcdURL": ""}}),
            "ipam.etcdConfig.etcdURL: empty: expected at least one endpoint",
        ),
        (json!({"etcdConfig": {"etcdURL": "a b"}}), "ipam.etcdConfig.etcdURL: \"a b\" is no"),
        (json!({"endpoints": []}), "ipam.endpoints: empty: expected at least one endpoint"),
        (
            json!({"etcd": {"endpoints": ["a"]}, "endpoints": ["b"]}),
            "ipam.endpoints: conflicts with ipam.etcd.endpoints",
        ),
        (
            json!({"etcd": {"endpoints": ["a"], "certFile": "/c"}}),
            "ipam.etcd.keyFile: missing, but ipam.etcd.certFile is given",
        ),
        (
            json!({"endpoints": ["a"], "keyfile": "/k"}),
            "ipam.certfile: missing, but ipam.keyfile is given",
        ),
        (
            json!({"etcd": {"endpoints": ["a"], "username": "u"}}),
            "ipam.etcd.passwordFile: missing, but ipam.etcd.username is given",
        ),
        (
            json!({"etcd": {"endpoints": ["a"], "password": "p"}}),
            "ipam.etcd.username: missing, but ipam.etcd.password is given",
        ),
        (
            json!({"etcd": {"endpoints": ["a"], "passwordFile": "/p"}}),
            "ipam.etcd.username: missing, but ipam.etcd.passwordFile is given",
        ),
        (
            json!({"etcd": {"endpoints": ["a"], "timeout": "soon"}}),
            "ipam.etcd.timeout: invalid duration \"soon\"",
        ),
        (json!({"etcd": {"endpoints": ["a"], "prefix": "//"}}), "ipam.etcd.prefix: empty"),
        (
            json!({"etcd": {"endpoints": ["a"], "layout": "etcd"}}),
            "ipam.etcd.layout: unknown layout \"etcd\": expected native, cni-ipam-etcd, host-etcd or whereabouts",
        ),
        (
            json!({"etcd": {"layout": "native"}}),
            "ipam.etcd.endpoints: empty: expected at least one endpoint",
        ),
        (
            json!({"etcd": {"layout": "host-etcd"}}),
            "ipam.endpoints: empty: expected at least one endpoint",
        ),
        (
            json!({"etcd": {"layout": "cni-ipam-etcd"}}),
            "ipam.etcdConfig.etcdURL: empty: expected at least one endpoint",
        ),
    ] {
        let error = store(ipam).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(error.code().number(), 7);
    }
    let error = serde_json::from_value::<EtcdConfig>(json!({"etcd": {"trustedCAfile": "/ca"}}));
    assert!(error.unwrap_err().to_string().contains("trustedCAfile"));
}
