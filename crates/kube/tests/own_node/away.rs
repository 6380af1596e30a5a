//! What serves while the API server is away, and that one which refuses is obeyed.

use std::fs;
use std::time::Duration;

use ipam_testkit::kube::{Credential, End, Login, Node, Silent, Speaker};

use crate::memory::{asked, site};
use crate::site::{Kube, Kubeconfig, Site};

/// What stands in an answer of a proxy, or of a server in trouble.
fn speaker(status: &str, headers: &str, body: &str) -> Speaker {
    let certificates = Kube::shared().certificates();
    Speaker::saying(certificates, Speaker::answer(status, headers, body), End::Next)
}

#[test]
fn an_older_answer_serves_while_the_server_is_away() {
    let silent = Silent::listen();
    let failing = speaker("503 Service Unavailable", "", "");
    let busy = speaker("429 Too Many Requests", "Retry-After: 3600\r\n", "{}");
    std::thread::scope(|scope| {
        for (name, url) in [
            ("away-nobody", "https://127.0.0.1:1".to_owned()),
            ("away-silent", format!("https://{}", silent.endpoint())),
            ("away-failing", failing.url()),
            ("away-busy", busy.url()),
        ] {
            scope.spawn(move || serves_what_is_older(name, &url));
        }
    });
    assert!(silent.connections() > 0 && !failing.requests().is_empty());
    assert_eq!(busy.requests().len(), 1);
}

#[track_caller]
fn serves_what_is_older(name: &str, url: &str) {
    let site = site(name);
    let network = site.network();
    asked(&site, &network);
    site.calls(url);
    // A warm cache does not notice.
    assert_eq!(asked(&site, &network).1, "", "{name}");
    site.age_out("k8snet");
    let (found, warning) = asked(&site, &network);
    assert_eq!(found, ["11.0.1.0/24"], "{name}");
    for part in ["[WARN]", "spec.podCIDRs: the API server does not answer, using the value read 36"]
    {
        assert!(warning.contains(part), "{name}: {part}: {warning}");
    }
    // Then it is left alone for some seconds, be it there or not.
    site.calls_home();
    let (count, (found, warning)) = site.requests_during(|| asked(&site, &network));
    assert_eq!((count, found), (0, vec!["11.0.1.0/24".to_owned()]), "{name}");
    assert!(warning.contains("it was unreachable a moment ago"), "{name}: {warning}");
    site.age("k8snet", Duration::from_secs(10));
    let (count, (_, warning)) = site.requests_during(|| asked(&site, &network));
    assert_eq!((count, &*warning), (1, ""), "{name}");
}

#[test]
fn a_server_that_refuses_is_obeyed_though_there_is_an_older_answer() {
    let site = site("refused");
    let wrong = Login { credential: Credential::Token("wrong-token".into()), ..site.kube.nobody() };
    let stranger = site.kube.user();
    let kubeconfig = |login: &Login| Kubeconfig::of(site.kube, login);
    let other_authority = site.kube.certificates().other_authority();
    let page = speaker("200 OK", "Content-Type: text/html\r\n", "<html>Log in</html>");
    for (name, kubeconfig, part) in [
        ("forbidden", kubeconfig(&stranger), "(403)"),
        ("unknown", kubeconfig(&wrong), "(401)"),
        ("authority", site.kubeconfig().authority(Some(&other_authority)), "certificate"),
        ("page", site.kubeconfig().server(&page.url()), "is not a Kubernetes API server"),
    ] {
        let mut network = site.network();
        network["name"] = name.into();
        site.calls_home();
        asked(&site, &network);
        site.age_out(name);
        kubeconfig.write(&site.kubeconfig_path());
        for _ in 0..2 {
            let (code, text) = site.select(&network).failure();
            assert!(code == 103 && text.contains(part), "{name}: {code}: {text}");
        }
    }
}

#[test]
fn a_real_server_may_go_and_come_back() {
    // One of its own: nobody else may be at it.
    let kube: &'static Kube = Box::leak(Box::new(Kube::start()));
    let site = Site::of(kube, &Node::named("n").cidrs(&["11.0.1.0/24"]));
    let network = site.network();
    let ask = |away: bool| {
        let (found, warning) = asked(&site, &network);
        assert_eq!(found, ["11.0.1.0/24"]);
        assert_eq!(warning.contains("the API server does not answer"), away, "{warning}");
    };
    ask(false);

    kube.kill();
    ask(false);
    site.age_out("k8snet");
    ask(true);
    // Another network knows nothing yet.
    let mut other = network.clone();
    other["name"] = "other".into();
    let (code, text) = site.select_briefly(&other).failure();
    assert!(code == 105 && text.contains("Connection refused"), "{code}: {text}");

    kube.restart();
    site.age_out("k8snet");
    ask(false);

    kube.stop();
    site.age_out("k8snet");
    ask(true);
    kube.cont();
    site.age_out("k8snet");
    ask(false);
    kube.kill();
    kube.etcd().kill();
    for folder in kube.folders() {
        let _ = fs::remove_dir_all(folder);
    }
}
