use super::*;
use serde_json::json;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

/// Planning makes no delegate.
const BUILT_IN: &[BuiltIn] = &[BuiltIn { name: "built-in", delegate: || unreachable!() }];

const PRESETS: &[Preset] = &[Preset {
    name: "old",
    chains: &[PresetChain {
        when: crate::chain::ChainCondition::Always,
        delegates: &["sel", "alloc"],
        settings: &[("layout", "\"old\""), ("store", "{\"kind\":\"old\"}")],
        sets: &["store"],
    }],
    has_default_location: true,
    host_program: None,
    cli: None,
    overwritten_by: None,
    differences: &[],
}];

struct Bin(tempfile::TempDir);

impl Bin {
    fn with(names: &[&str]) -> Self {
        let temp = tempfile::TempDir::new().unwrap();
        for name in names {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).mode(0o755).open(temp.path().join(name)).unwrap();
        }
        Self(temp)
    }

    fn plan(&self, ipam: Value, preset: Option<&'static Preset>) -> Result<Plan> {
        let planner = Planner {
            names: Names { presets: PRESETS, built_in: BUILT_IN },
            preset,
            own_executable: &OwnExecutable::find(),
            path: vec![self.0.path().to_owned()],
            environment: &Environment::default(),
            may_be_missing: MissingPrograms::None,
        };
        planner.plan(ipam.as_object().unwrap())
    }

    fn link_own(&self, name: &str) {
        let exe = std::env::current_exe().unwrap();
        std::os::unix::fs::symlink(exe, self.0.path().join(name)).unwrap();
    }
}

#[test]
fn bad_lists_name_their_path() {
    let bin = Bin::with(&["a"]);
    bin.link_own("self");
    for (delegates, start) in [
        (json!(null), "ipam.delegates: expected an array"),
        (json!("a"), "ipam.delegates: expected an array"),
        (json!([]), "ipam.delegates: expected at least one delegate"),
        (json!(["a", 1]), "ipam.delegates[1]: expected a delegate's name"),
        (json!([{"serves": ["x"]}]), "ipam.delegates[0].type: "),
        (json!([{"type": "a", "timeout": 10}]), "ipam.delegates[0].timeout: "),
        (json!([{"type": "a", "serves": "x"}]), "ipam.delegates[0].serves: "),
        (json!([{"type": "a", "answers": "all"}]), "ipam.delegates[0].answers: "),
        (json!(["../a"]), "ipam.delegates[0]: "),
        (json!([""]), "ipam.delegates[0]: "),
        (json!(["a", "b"]), "ipam.delegates: b is not in CNI_PATH"),
        (json!(["self"]), "ipam.delegates[0]: "),
    ] {
        let error = bin.plan(json!({ "delegates": delegates }), None).unwrap_err();
        assert_eq!(error.code(), ErrorCode::INVALID_CONFIG, "{error}");
        assert!(error.to_string().starts_with(start), "{error}");
    }
    assert!(bin.plan(json!({}), None).unwrap_err().to_string().contains("missing"));
}

#[test]
fn object_form_carries_overrides() {
    let bin = Bin::with(&["a"]);
    let plan = bin
        .plan(json!({"timeout": "5s", "delegates": [{"type": "a", "timeout": "1s", "serves": ["blue"], "prefix": "/x"}]}), None)
        .unwrap();
    let step = &plan.steps[0];
    assert_eq!(plan.timeout, Duration::from_secs(5));
    assert_eq!(
        (step.timeout, step.serves.as_deref()),
        (Some(Duration::from_secs(1)), Some(&["blue".to_owned()][..]))
    );
    assert_eq!(Value::from(step.overrides.clone()), json!({"prefix": "/x"}));
}

#[test]
fn a_timeout_beyond_the_longest_deadline_leaves_time_for_the_delegates() {
    let plan =
        Bin::with(&["a"]).plan(json!({"timeout": "99999999h", "delegates": ["a"]}), None).unwrap();
    let left = Deadline::after(plan.timeout).left();
    assert!(left > plan.timeout / 2, "{left:?} of {:?}", plan.timeout);
}

#[test]
fn a_preset_is_replaced_by_the_delegates_of_its_chain() {
    let bin = Bin::with(&["sel", "alloc", "a"]);
    bin.link_own("old");
    let names = |plan: &Plan| plan.steps.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
    let started_as = bin.plan(json!({"delegates": ["ignored"]}), Some(&PRESETS[0])).unwrap();
    assert_eq!(names(&started_as), ["sel", "alloc"]);
    let named = bin.plan(json!({"delegates": ["a", {"type": "old", "k": 1}]}), None).unwrap();
    assert_eq!(named.steps[1].sets, ["store"], "what the preset's table opens");
    assert_eq!(names(&named), ["a", "sel", "alloc"]);
    assert_eq!(
        Value::from(named.steps[2].overrides.clone()),
        json!({"k": 1, "layout": "old", "store": {"kind": "old"}})
    );
}

#[test]
fn configured_members_join_a_presets_section_and_must_not_contradict_it() {
    let bin = Bin::with(&["sel", "alloc"]);
    let plan = |store: Value| bin.plan(json!({"store": store}), Some(&PRESETS[0]));
    let joined = plan(json!({"timeout": "1s", "kind": "old"})).unwrap();
    assert_eq!(joined.steps[1].overrides["store"], json!({"timeout": "1s", "kind": "old"}));
    let error = plan(json!({"kind": "new"})).unwrap_err();
    assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
    assert_eq!(error.to_string(), "ipam.store.kind: the preset old sets it to \"old\"");
}

#[test]
fn another_program_under_a_presets_name_runs_as_itself() {
    let bin = Bin::with(&["old"]);
    let plan = bin.plan(json!({"delegates": ["old"]}), None).unwrap();
    assert_eq!(plan.steps[0].name, "old");
    assert!(plan.steps[0].overrides.is_empty());
}

#[test]
fn a_built_in_selector_is_one_only_while_its_program_is_this_one() {
    let bin = Bin::with(&["a"]);
    bin.link_own("built-in");
    let plan = bin.plan(json!({"delegates": ["built-in", "a"]}), None).unwrap();
    let built_in = plan.steps.iter().map(|step| step.built_in.map(|built_in| built_in.name));
    assert_eq!(built_in.collect::<Vec<_>>(), [Some("built-in"), None]);
    let bin = Bin::with(&["built-in"]);
    let plan = bin.plan(json!({"delegates": ["built-in"]}), None).unwrap();
    assert!(plan.steps[0].built_in.is_none());
}
