use super::*;
use crate::cni::Environment;
use serde_json::json;

#[test]
fn a_release_covers_what_was_taken_between_its_ends() {
    const HOUR: u64 = 3_600_000;
    let release = |fence: Value| {
        let config = json!({
            "cniVersion": "1.1.0", "name": "n", "ipam": {}, "prevResult": {"fence": fence},
        });
        let variables = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")];
        let (environment, stdin) = (Environment::new(variables), config.to_string());
        let settings = Settings::default();
        let request = Request::parse(Verb::Del, environment, stdin.as_bytes(), settings);
        super::partial_release(&request.unwrap())
    };
    let covers = |fence: Value| {
        let release = release(fence).unwrap().unwrap();
        let taken = |hour: u64| Lease {
            taken: UNIX_EPOCH.checked_add(Duration::from_millis(hour * HOUR)),
            ..Lease::bare("10.0.0.2/32".parse().unwrap(), Value::Null)
        };
        // Without a time nothing says that it is younger.
        let unknown = Lease { taken: None, ..taken(0) };
        assert!(!release.covers(&unknown));
        [1, 2, 3, 4, 5].map(|hour| release.covers(&taken(hour)))
    };
    let closed = json!({"after": 2 * HOUR, "before": 4 * HOUR});
    assert_eq!(covers(closed), [false, true, true, true, false]);
    // An open one ends by now.
    assert_eq!(covers(json!({"after": 4 * HOUR})), [false, false, false, true, true]);
    let now = u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let open = release(json!({"after": 0})).unwrap().unwrap();
    let later = UNIX_EPOCH.checked_add(Duration::from_millis(now + HOUR));
    let bare = Lease::bare("10.0.0.2/32".parse().unwrap(), Value::Null);
    assert!(!open.covers(&Lease { taken: later, ..bare }));
}
