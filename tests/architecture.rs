//! What may use what, as ARCHITECTURE.md draws it, where the compiler does not hold it: which
//! package depends on which, the rooms inside `ipam-kit`, and who touches the process, files and
//! backends.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Each room of `ipam-kit` with the rooms it may import.
const ROOMS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("text", &[]),
    ("presence", &["error"]),
    ("keys", &["error"]),
    ("cni", &["keys", "error"]),
    ("contract", &["cni", "error"]),
    ("pool", &["cni", "keys", "error"]),
    ("host", &["cni", "error"]),
    ("log", &["host", "text"]),
    ("delegate", &["contract", "log", "text", "host", "pool", "cni", "keys", "presence", "error"]),
    ("ipam_section", &["contract", "delegate", "host", "pool", "cni", "keys", "presence", "error"]),
    (
        "select",
        &[
            "contract",
            "ipam_section",
            "delegate",
            "host",
            "pool",
            "cni",
            "keys",
            "presence",
            "error",
        ],
    ),
    (
        "allocate",
        &[
            "contract",
            "ipam_section",
            "delegate",
            "host",
            "pool",
            "cni",
            "keys",
            "presence",
            "error",
        ],
    ),
];

/// All that the meta-plugin takes of the room `pool`: what becomes of the pools that are there, and whether
/// an answer is what its pools ask for. `lint` asks which of their keys are misspelt.
const OF_POOLS: [&str; 4] = [
    "src/chain/entry.rs: pub(crate) use ipam_kit::pool::Placement;",
    "src/chain/served.rs: use ipam_kit::pool::compare_answer;",
    "src/operator/lint/misspelt.rs: use ipam_kit::ipam_section;",
    "src/operator/lint/misspelt.rs: use ipam_kit::pool::Pool;",
];

/// What touches the process, and the files that may.
const EDGES: &[(&str, &[&str])] = &[
    (
        "env::var",
        &[
            "crates/kit/src/delegate/edge.rs",
            "crates/suites/src/bin/ipam-conformance.rs",
            "src/lib.rs",
        ],
    ),
    (
        "env::args",
        &[
            "crates/kit/src/delegate/edge.rs",
            "src/lib.rs",
            "crates/suites/src/bin/ipam-conformance.rs",
        ],
    ),
    ("stdin()", &["crates/kit/src/delegate/edge.rs"]),
    // An operator's verb and the suite's program print what they found.
    (
        "stdout()",
        &[
            "crates/kit/src/delegate/edge.rs",
            "src/operator/mod.rs",
            "src/operator/preset_cli.rs",
            "crates/suites/src/bin/ipam-conformance.rs",
        ],
    ),
    // All that a runtime's call writes to stderr goes without waiting for a reader.
    ("stderr()", &["crates/kit/src/log.rs"]),
    ("process::exit", &["crates/kit/src/delegate/edge.rs"]),
    (
        "Command::new",
        &["src/chain/process.rs", "src/operator/preset_cli.rs", "crates/suites/src/subject.rs"],
    ),
];

/// The folders of sources outside tests.
const SOURCES: &[&str] = &[
    "src",
    "crates/cli/src",
    "crates/kit/src",
    "crates/kube/src",
    "crates/records/src",
    "crates/servers/src",
    "crates/suites/src",
];

/// A source file, without comments and unit tests.
struct File {
    /// Below the workspace's folder.
    path: String,
    lines: Vec<String>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every source file of some folders.
fn files(sources: &[&str]) -> Vec<File> {
    let files: Vec<File> =
        sources.iter().flat_map(|folder| files_of(&root().join(folder))).collect();
    assert!(files.len() > 9, "{} files in {sources:?}", files.len());
    files
}

fn files_of(folder: &Path) -> Vec<File> {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") && !name.ends_with("/tests.rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
                let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                files.push(File { path: name, lines: lines.map(str::to_owned).collect() });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// The rooms that a line names as `CRATE::room` or `CRATE::{room, …}`.
fn imports(line: &str, from: &str) -> Vec<String> {
    let word = |text: &str| {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    };
    let mut found = Vec::new();
    for rest in line.split(&format!("{from}::")).skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => found.extend(list.split(',').map(|item| word(item.trim()))),
            None => found.push(word(rest)),
        }
    }
    found.retain(|room| !room.is_empty());
    found
}

/// The packages of the workspace, as cargo tells them.
fn packages() -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).current_dir(root());
    let metadata: Value = serde_json::from_slice(&cargo.output().unwrap().stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// The folder of a package, below the workspace's.
fn folder_of(package: &Value) -> &str {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    let folder = manifest.parent().unwrap().strip_prefix(root()).unwrap();
    folder.to_str().filter(|folder| !folder.is_empty()).unwrap_or(".")
}

/// The packages of the workspace that a package needs to run.
fn needed_by(package: &Value) -> Vec<&str> {
    let needed = package["dependencies"].as_array().unwrap().iter();
    let needed = needed.filter(|needed| needed["kind"].is_null() && !needed["path"].is_null());
    let mut needed: Vec<&str> = needed.map(|needed| needed["name"].as_str().unwrap()).collect();
    needed.sort_unstable();
    needed
}

/// What a cell of a table has between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn packages_depend_on_what_the_table_says() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, table) = page.split_once("\n| package | folder | holds | depends on |\n").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let is_meant = |told: &str| match told.strip_suffix('…') {
            Some(start) => name.starts_with(start),
            None => name == told,
        };
        let row = rows.iter().find(|row| quoted(row[0]).into_iter().any(is_meant));
        let row = row.unwrap_or_else(|| panic!("{name} is not in the table of ARCHITECTURE.md"));
        let folder = quoted(row[1])[0].replace("NAME", name);
        assert_eq!(folder, folder_of(&package), "{name}");
        let (needed, told) = (needed_by(&package), quoted(row[3]));
        match row[3].starts_with("any") {
            true if told.is_empty() => {}
            true => {
                assert!(needed.iter().all(|needed| told.contains(needed)), "{name}: {needed:?}")
            }
            false => assert_eq!(needed, told, "{name}"),
        }
    }
}

#[test]
fn imports_of_the_kit_point_down() {
    let mut wrong = Vec::new();
    for File { path, lines } in files(&["crates/kit/src"]) {
        let room = path.split('/').nth(3).unwrap().trim_end_matches(".rs");
        if room == "lib" {
            continue;
        }
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            wrong.push(format!("{path}: the room {room} is not in tests/architecture.rs"));
            continue;
        };
        for line in lines {
            for import in imports(&line, "crate") {
                if import != room && !allowed.contains(&import.as_str()) {
                    wrong.push(format!("{path} imports {import}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_meta_plugin_knows_processes_and_one_function_of_the_pools() {
    let mut taken = Vec::new();
    for File { path, lines } in files(&["src"]) {
        let addresses = |line: &&String| {
            let rooms = imports(line, "ipam_kit");
            rooms
                .iter()
                .any(|room| ["pool", "ipam_section", "select", "allocate"].contains(&room.as_str()))
        };
        taken.extend(lines.iter().filter(addresses).map(|line| format!("{path}: {line}")));
    }
    assert_eq!(taken, OF_POOLS);
}

#[test]
fn the_chain_does_not_know_who_asks() {
    for File { path, lines } in files(&["src/chain"]) {
        let asks = lines.iter().find(|line| {
            line.contains("ipam_cli") || imports(line, "crate").iter().any(|room| room != "chain")
        });
        assert_eq!(asks, None, "{path}");
    }
}

#[test]
fn only_the_edge_touches_the_process() {
    let mut wrong = Vec::new();
    for File { path, lines } in files(SOURCES) {
        for line in lines {
            for (what, may) in EDGES {
                if line.contains(what) && !may.contains(&path.as_str()) {
                    wrong.push(format!("{path} uses {what}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What opens or makes files, or takes a piece of a name for an extension.
const OPENS: [&str; 10] = [
    "File::open(",
    "File::create(",
    "OpenOptions",
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "create_dir",
    "DirBuilder",
    "Mode::",
    "with_extension(",
];

/// The files of the room that does, and those that read what is in no class: files of the kernel, and
/// programs that are compared.
const OPENERS: [&str; 8] = [
    "crates/kit/src/host/own.rs",
    "crates/kit/src/host/file.rs",
    "crates/kit/src/host/boot.rs",
    "crates/kit/src/host/persistence.rs",
    "crates/kit/src/host/node.rs",
    "src/chain/process.rs",
    "src/chain/program.rs",
    // Files without a name, and the folder of leases.
    "delegates/ipam-da-local/src/",
];

#[test]
fn files_are_opened_by_one_function_a_class() {
    let mut sources: Vec<String> = SOURCES.iter().map(|folder| (*folder).to_owned()).collect();
    sources.retain(|folder| folder != "crates/suites/src");
    for entry in fs::read_dir(root().join("delegates")).unwrap() {
        let folder = entry.unwrap().path().join("src");
        let name = folder.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        sources.extend(Some(name).filter(|_| folder.is_dir()));
    }
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let mut wrong = Vec::new();
    for File { path, lines } in files(&sources) {
        let may = |opens: &&&str| {
            OPENERS
                .iter()
                .any(|opener| path == *opener || (path.starts_with(opener) && **opens == "Mode::"))
        };
        for line in lines {
            let line = line.replace("RecordFile::", "");
            let opens = OPENS.iter().filter(|opens| line.contains(**opens));
            wrong.extend(
                opens.filter(|opens| !may(opens)).map(|_| format!("{path}: {}", line.trim())),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the files of our own layout name nothing of: what is for a replaced plugin alone.
const OF_REPLACED_PLUGINS: [&str; 7] =
    ["compat", "cursors", "hints", "layout", "lock", "plugin", "ticket"];

#[test]
fn our_own_layout_in_etcd_knows_no_replaced_plugin() {
    let native = files_of(&root().join("delegates/ipam-da-etcd/src/native"));
    assert!(native.len() > 1, "{}", native.len());
    for File { path, lines } in native {
        for line in lines {
            let found = OF_REPLACED_PLUGINS.iter().find(|word| line.contains(**word));
            assert!(found.is_none(), "{path}: {line}");
        }
    }
}

/// The stores of a cluster.
const STORES: [&str; 3] =
    ["delegates/ipam-da-consul/src", "delegates/ipam-da-etcd/src", "delegates/ipam-da-kube/src"];

/// Packages whose files import in one direction.
const LAYERED: [&str; 7] = [
    STORES[0],
    STORES[1],
    STORES[2],
    "crates/servers/src",
    "crates/kube/src",
    "src/chain",
    "src/operator",
];

#[test]
fn files_of_a_package_import_in_one_direction() {
    for package in LAYERED {
        let files = files(&[package]);
        let modules: Vec<String> =
            files.iter().map(|file| module_of(&file.path, package)).collect();
        let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (File { lines, .. }, module) in files.iter().zip(&modules) {
            let imported = lines.iter().filter_map(|line| imported(line, module, &modules));
            // A file may use what the one has that declares it.
            imports.insert(module, imported.filter(|other| !is_within(module, other)).collect());
        }
        // What imports nothing that is left goes, until there is nothing left, or a circle.
        while let Some(lowest) = imports.iter().find(|(_, of)| of.is_empty()) {
            let lowest = *lowest.0;
            imports.remove(lowest);
            for of in imports.values_mut() {
                of.remove(lowest);
            }
        }
        assert!(imports.is_empty(), "{package}: on a circle, or above one: {imports:#?}");
    }
}

#[test]
fn each_type_has_a_name_of_its_own() {
    let mut folders = vec![root().join("src")];
    for parent in ["crates", "delegates"] {
        let packages = fs::read_dir(root().join(parent)).unwrap();
        folders.extend(packages.map(|package| package.unwrap().path().join("src")));
    }
    folders.retain(|folder| folder.is_dir() && !folder.ends_with("testkit/src"));
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for File { path, lines } in folders.iter().flat_map(|folder| files_of(folder)) {
        // Support of unit tests.
        if path.ends_with("/fake.rs") || path.ends_with("/testing.rs") {
            continue;
        }
        for name in lines.iter().filter_map(|line| declared_type(line)) {
            declared.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    assert!(declared.len() > 300, "{}", declared.len());
    declared.retain(|_, paths| paths.len() > 1);
    assert!(declared.is_empty(), "grep for one of these finds several types: {declared:#?}");
}

/// The type that a line declares. An indented `type` is of a trait.
fn declared_type(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().peekable();
    if words.peek().is_some_and(|word| *word == "pub" || word.starts_with("pub(")) {
        // `pub(in some::room)` is two words.
        if words.next()? == "pub(in" {
            words.next();
        }
    }
    let (keyword, name) = (words.next()?, words.next()?);
    let is_declared = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    Some(&name[..end]).filter(|name| is_declared && name.starts_with(char::is_uppercase))
}

/// Whether a path of modules is this one, or goes on from it.
fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The module of a file, as `native::view`.
fn module_of(path: &str, package: &str) -> String {
    // The folder of a crate, or a room of one.
    let (of_crate, _) = package.split_once("src").unwrap();
    let file = path.strip_prefix(of_crate).unwrap().trim_start_matches("src/");
    file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::")
}

/// The module of the same package that a line of this one imports.
fn imported<'a>(line: &str, module: &str, modules: &'a [String]) -> Option<&'a str> {
    let (_, path) = line.trim().split_once("use ")?;
    let path = match path.split_once("::")? {
        ("crate", path) => path.to_owned(),
        ("self", path) => format!("{module}::{path}"),
        ("super", path) => {
            let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
            format!("{parent}::{path}")
        }
        _ => return None,
    };
    let path = path.trim_start_matches("::").trim_end_matches(';');
    let found = modules.iter().filter(|module| is_within(path, module));
    found.map(String::as_str).max_by_key(|module| module.len())
}

#[test]
fn a_call_of_a_store_is_one_value() {
    for folder in STORES.into_iter().chain(["delegates/ipam-da-local/src", "crates/servers/src"]) {
        for File { path, lines } in files(&[folder]) {
            let shared = |line: &&String| {
                ["Cell<", "Cell::", "Rc<", "Rc::", "Mutex"].iter().any(|cell| line.contains(*cell))
            };
            // The clock of tests.
            let of_tests = path.ends_with("/fake.rs");
            assert!(of_tests || !lines.iter().any(|line| shared(&line)), "{path}");
        }
    }
}

#[test]
fn no_shared_source_names_a_backend() {
    for File { path, lines } in files(SOURCES) {
        if path == "src/presets.rs" {
            continue;
        }
        for line in lines {
            let words = ["etcd", "consul", "nomad", "whereabouts", "phpipam", "openwisp"];
            // Range rules are named after the system whose reading they are.
            let rules = path.starts_with("crates/kit/src/pool/")
                || path == "crates/kit/src/ipam_section/config.rs";
            // A runtime's variables are in one file.
            let rules = rules || path == "src/chain/record/workload.rs";
            let found = words.iter().find(|word| line.to_lowercase().contains(**word));
            assert!(rules || found.is_none(), "{path}: {line}");
        }
    }
}

/// The libraries of HTTP and TLS, which one folder alone uses.
const OF_HTTP: [&str; 2] = ["ureq", "rustls"];

#[test]
fn one_folder_alone_speaks_http() {
    for File { path, lines } in files(&["crates/servers/src"]) {
        let named = |line: &&String| OF_HTTP.iter().any(|name| line.contains(&format!("{name}::")));
        let found = lines.iter().find(named);
        assert!(
            path.starts_with("crates/servers/src/http/") || found.is_none(),
            "{path}: {found:?}"
        );
    }
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let needed = package["dependencies"].as_array().unwrap().iter();
        for needed in needed.filter(|needed| needed["kind"].is_null()) {
            let of_http = OF_HTTP.contains(&needed["name"].as_str().unwrap());
            let may = ["ipam-servers", "ipam-testkit"].contains(&name);
            assert!(!of_http || may, "{name}: {needed}");
            // What speaks gRPC takes the failover alone.
            let servers = name == "ipam-da-etcd" && needed["name"] == "ipam-servers";
            assert!(!servers || needed["features"].as_array().unwrap().is_empty(), "{needed}");
        }
    }
}

#[test]
fn the_scan_sees_what_it_looks_for() {
    assert_eq!(imports("use crate::cni::{Network, Verb};", "crate"), ["cni"]);
    assert_eq!(imports("use crate::{cni, error::Error};", "crate"), ["cni", "error"]);
    let deep = "    text.and_then(ipam_kit::host::parse_duration)";
    assert_eq!(imports(deep, "ipam_kit"), ["host"]);
    assert!(imports("use super::record::Record;", "crate").is_empty());
    let modules = ["native", "native::view", "keys"].map(str::to_owned);
    let of = |line: &str, module: &str| imported(line, module, &modules).map(str::to_owned);
    assert_eq!(of("use super::view::{cursor, held};", "native::change"), Some(modules[1].clone()));
    assert_eq!(of("pub(crate) use self::view::cursor;", "native"), Some(modules[1].clone()));
    assert_eq!(of("use crate::keys::{self, Keys};", "native::view"), Some(modules[2].clone()));
    assert_eq!(of("use std::fs::File;", "keys"), None);
    assert_eq!(declared_type("pub(in crate::a) struct Key<'a> {"), Some("Key"));
    assert_eq!(declared_type("    pub(super) enum Key { Value }"), Some("Key"));
    assert_eq!(declared_type("pub type Key = String;"), Some("Key"));
    assert_eq!(declared_type("    type Answer = Key;"), None);
    assert_eq!(declared_type("    struct_like(Key)"), None);
}
