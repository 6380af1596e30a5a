//! How a delegate as a whole finds its login: in the order that the README tells, as whoever may
//! read the node.

use std::fs;
use std::process::Command;

use ipam_testkit::kube::{Key, Kube, Kubeconfig, Material};
use ipam_testkit::world::{Outcome, without};
use serde_json::json;

use crate::site::{Site, by, subnets};

/// A site whose network names no kubeconfig.
fn site(node: &str) -> Site {
    Site::new(node, &["11.0.1.0/24"])
}

/// Has the selector look for a login with these variables.
#[track_caller]
fn select(site: &Site, variables: &[(&str, String)]) -> Outcome {
    let mut command = site.selecting();
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let network = without(&site.network(), &["kubeconfig"]);
    // What it was told before is of the login before.
    let _ = fs::remove_dir_all(site.world.path("state/kubernetes"));
    site.run(command, &network)
}

#[test]
fn a_list_of_kubeconfigs_is_found_by_its_variable() {
    let site = site("by-variable");
    let file = site.kubeconfig_path().display().to_string();
    for list in
        [file.clone(), format!("/nowhere:{file}"), format!("{file}:/nowhere"), format!(":{file}:")]
    {
        let outcome = select(&site, &[("KUBECONFIG", list)]);
        assert_eq!(subnets(&outcome.success()), ["11.0.1.0/24"]);
    }
    assert_eq!(site.requests().len(), 4);
    let (code, text) = select(&site, &[("KUBECONFIG", "/nowhere".to_owned())]).failure();
    assert!(code == 7 && text.contains("/nowhere"), "{code}: {text}");
}

#[test]
fn kubectls_own_file_is_found_at_home() {
    let site = site("at-home");
    let home = site.world.path("home");
    fs::create_dir_all(home.join(".kube")).unwrap();
    site.kubeconfig().write(&home.join(".kube/config"));
    let home = home.display().to_string();
    let outcome = select(&site, &[("HOME", home.clone()), ("KUBECONFIG", "/nowhere".to_owned())]);
    assert_eq!(subnets(&outcome.success()), ["11.0.1.0/24"]);
    assert_eq!(site.requests().len(), 1);
    // What is named comes first.
    let other = site.world.path("other");
    Kubeconfig::of(site.kube, &site.kube.user()).write(&other);
    let outcome = select(&site, &[("HOME", home), ("KUBECONFIG", other.display().to_string())]);
    assert!(outcome.failure().1.contains("(403)"));
}

#[test]
fn a_pods_service_account_is_found_after_what_is_named() {
    let kube = Kube::shared();
    let site = site("in-a-pod");
    let account = kube.service_account("kube-system", "ipam");
    let folder = site.world.path("account");
    fs::create_dir(&folder).unwrap();
    let login = account.mount(&folder);
    kube.allow_reading_nodes(&login, &["in-a-pod"]);
    let (host, port) = (kube.address().ip().to_string(), kube.address().port().to_string());
    let call = |network: &serde_json::Value| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c"]);
        unshare.arg(
            "mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io \
             && ln -s \"$1\" /run/secrets/kubernetes.io/serviceaccount || exit 99\n\
             shift; exec \"$@\"",
        );
        unshare.arg("sh").arg(&folder);
        let mut command = by(unshare, &site.selecting());
        command.env("KUBERNETES_SERVICE_HOST", &host).env("KUBERNETES_SERVICE_PORT", &port);
        let outcome = site.run(command, network);
        assert!(!outcome.stderr.contains(login.token().unwrap()), "{}", outcome.stderr);
        assert_eq!(subnets(&outcome.success()), ["11.0.1.0/24"]);
    };
    call(&without(&site.network(), &["kubeconfig"]));
    let asked = || kube.requests_of(&login.user).len();
    assert_eq!((asked(), site.requests().len()), (1, 0));
    // kube-node would have taken the account.
    call(&site.network());
    assert_eq!((asked(), site.requests().len()), (1, 1));
}

#[test]
fn a_token_that_was_exchanged_is_read_anew() {
    let kube = Kube::shared();
    let site = site("rotated");
    let certified = kube.certified("rotated-user", &[], Key::Rsa);
    kube.allow_reading_nodes(&certified, &["rotated"]);
    let file = [("KUBECONFIG", site.kubeconfig_path().display().to_string())];
    site.kubeconfig().material(Material::Files).write(&site.kubeconfig_path());
    select(&site, &file).success();
    let token = site.world.path("test.token");
    let valid = fs::read_to_string(&token).unwrap();
    fs::write(&token, "old-and-gone\n").unwrap();
    assert!(select(&site, &file).failure().1.contains("(401)"));
    fs::write(&token, format!("{valid}\n")).unwrap();
    select(&site, &file).success();
    Kubeconfig::of(kube, &certified).write(&site.kubeconfig_path());
    select(&site, &file).success();
    let codes: Vec<u16> = kube.requests_of(&site.login.user).iter().map(|it| it.code).collect();
    assert_eq!(json!([codes, kube.requests_of("rotated-user").len()]), json!([[200, 200], 1]));
}
