//! An API server that refuses, is overloaded, is away or is another one: a clear error, no guess.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ipam_testkit::kube::{End, Kubeconfig, Speaker};
use ipam_testkit::world::with;
use serde_json::{Value, json};

use crate::site::{Site, lines};

fn sticky() -> Value {
    json!({"sticky": "name", "nameScope": "cluster"})
}

/// An ADD with three seconds of a server at this URL.
#[track_caller]
fn add_at(site: &Site, url: &str) -> (u64, String) {
    let file = site.world.path("other");
    Kubeconfig::of(site.kube, &site.login).server(url).write(&file);
    let network = with(&site.network(&sticky()), "kubeconfig", file.display().to_string());
    let mut command = site.command("ADD", &site.args("a", "1"));
    command.env("IPAM_DELEGATED_DEADLINE_MS", "3000");
    let begin = Instant::now();
    let failure = site.run(command, &network).failure();
    assert!(begin.elapsed() < Duration::from_secs(15), "{failure:?}");
    failure
}

#[test]
fn a_server_that_is_away_or_another_is_told_in_time() {
    let site = Site::new();
    let say = |text: Vec<u8>, end| Speaker::saying(site.kube.certificates(), text, end);
    let html = "Content-Type: text/html\r\n";
    let page = say(Speaker::answer("200 OK", html, "<h1>Log in</h1>"), End::Next);
    let proxy = say(Speaker::answer("504 Gateway Timeout", html, "<h1>Late</h1>"), End::Next);
    let cut = say(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{".to_vec(), End::Cut);
    let other = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "b"}}).to_string();
    let other = say(Speaker::answer("200 OK", "", &other), End::Next);
    let odd = json!({"kind": "Pod", "apiVersion": "v1",
                     "metadata": {"name": "a", "annotations": {"podname": 5}}});
    let odd = say(Speaker::answer("200 OK", "", &odd.to_string()), End::Next);
    for (url, code, part) in [
        ("https://127.0.0.1:1".to_owned(), 105, "Connection refused"),
        (page.url(), 103, "<h1>Log in</h1>"),
        (proxy.url(), 11, "504"),
        (cut.url(), 11, ""),
        (other.url(), 103, "is not a Kubernetes API server"),
        (odd.url(), 103, "metadata.annotations.podname"),
    ] {
        let (found, text) = add_at(&site, &url);
        assert_eq!(found, code, "{url}: {text}");
        assert!(text.contains(part), "{part:?}: {text}");
    }
}

#[test]
fn an_overloaded_server_is_asked_again_when_it_says() {
    let site = Site::new();
    let pod = json!({"kind": "Pod", "apiVersion": "v1",
                     "metadata": {"name": "a", "uid": "1", "annotations": {"podname": "db"}}});
    let status = json!({"kind": "Status", "apiVersion": "v1", "message": "busy", "code": 429});
    let answered = AtomicUsize::new(0);
    let speaker = Speaker::deciding(&site.kube.certificates().server(), move |_| {
        let answer = match answered.fetch_add(1, Ordering::SeqCst) {
            0 => {
                Speaker::answer("429 Too Many Requests", "Retry-After: 1\r\n", &status.to_string())
            }
            _ => Speaker::answer("200 OK", "", &pod.to_string()),
        };
        (answer, End::Next)
    });
    let file = site.world.path("other");
    Kubeconfig::of(site.kube, &site.login).server(&speaker.url()).write(&file);
    let network = with(&site.network(&sticky()), "kubeconfig", file.display().to_string());
    let begin = Instant::now();
    let answer = site.add(&site.args("a", "1"), &network).success();
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    assert_eq!(lines(&answer)[0], "blue db");
    assert_eq!(speaker.requests().len(), 2);
}

#[test]
fn a_missing_right_is_named_with_its_rule() {
    let pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let site = Site::allowed(&pods);
    let args = site.annotated("a", &json!({}));
    let both = json!({"pools": ["blue", "red"], "poolFrom": ["pod", "namespace"]});
    let (code, text) = site.add(&args, &site.network(&both)).failure();
    let rule = r#"{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]"#;
    assert!(code == 103 && text.contains("(403)") && text.contains(rule), "{text}");
    let stranger = site.kube.user();
    Kubeconfig::of(site.kube, &stranger).write(&site.world.path("kubeconfig"));
    let (code, text) = site.add(&args, &site.network(&sticky())).failure();
    let rule = r#"with the rule {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}"#;
    assert!(code == 103 && text.contains("(403)") && text.contains(rule), "{text}");
    let unknown = site.world.path("unknown");
    Kubeconfig::of(site.kube, &site.login).write(&unknown);
    let token = site.login.token().unwrap();
    let text = std::fs::read_to_string(&unknown).unwrap().replace(token, "unknown");
    std::fs::write(&unknown, text).unwrap();
    let network = with(&site.network(&sticky()), "kubeconfig", unknown.display().to_string());
    let (code, text) = site.add(&args, &network).failure();
    assert!(code == 103 && text.contains("(401)"), "{text}");
}

#[test]
fn status_tries_the_rights_and_remarks_what_has_no_effect() {
    let site = Site::new();
    let status = |pod: &Value| {
        let mut network = site.network(pod);
        network["cniVersion"] = json!("1.1.0");
        site.run(site.command("STATUS", ""), &network)
    };
    let own = json!({"pools": ["blue", "red"], "poolFrom": ["pod", "namespace"], "keep": "1h"});
    let answer = status(&own).success();
    // Verbs for people show all pools, and a pod gets one of them.
    assert_eq!(lines(&answer), ["blue", "red", "blue6", ""]);
    let remark = r#"ipam.pod.keep has no effect without "sticky": "name" or "statefulset""#;
    assert_eq!(answer["remarks"], json!([remark]));
    // A server that has just started may not have made the namespace.
    let requests = site.requests().into_iter();
    let asked: Vec<String> =
        requests.map(|request| request.rsplit_once(' ').unwrap().0.to_owned()).collect();
    let namespace = "get /api/v1/namespaces/default";
    assert_eq!(asked, [&format!("{namespace}/pods/ipam-delegated"), namespace]);
    // The allocator learns that pods may have names.
    let named = status(&json!({"sticky": "statefulset", "keep": "1h"})).success();
    assert_eq!(lines(&named)[0], "blue NAMESPACE/NAME 1h");
    let stranger = site.kube.user();
    Kubeconfig::of(site.kube, &stranger).write(&site.world.path("kubeconfig"));
    let answer = status(&sticky()).success();
    let remark = answer["remarks"][0].as_str().unwrap();
    assert!(remark.starts_with("ADD may lack a right") && remark.contains("(403)"), "{remark}");
    for (pod, part) in [
        (json!({"sticky": "yes"}), "ipam.pod.sticky"),
        (json!({"stiky": "name"}), "ipam.pod.stiky: unknown key (did you mean sticky?)"),
        (json!({"sticky": "name", "kubeconfig": "/nowhere"}), "ipam.pod.kubeconfig"),
    ] {
        let (code, text) = status(&pod).failure();
        assert!([7, 50].contains(&code) && text.contains(part), "{code}: {text}");
    }
}
