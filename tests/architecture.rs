//! The rooms of `src/` and what may import what, as ARCHITECTURE.md draws it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Each room with the rooms it may import.
const ROOMS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("presence", &["error"]),
    ("cni", &["error"]),
    ("pool", &["cni", "presence", "error"]),
    ("host", &["pool", "cni", "presence", "error"]),
    ("log", &["host"]),
    ("operate", &["host", "pool", "cni", "presence", "error"]),
    ("delegate", &["log", "host", "pool", "cni", "presence", "error"]),
    ("client", &["delegate", "host", "cni", "presence", "error"]),
    ("offer", &["delegate", "host", "pool", "cni", "presence", "error"]),
    ("select", &["offer", "delegate", "host", "pool", "cni", "presence", "error"]),
    ("allocate", &["offer", "delegate", "operate", "host", "pool", "cni", "presence", "error"]),
    ("testing", &["allocate", "delegate", "host", "pool", "cni", "presence", "error"]),
    // The chain knows processes, not addresses: of the pools it takes one function, see below.
    ("chain", &["delegate", "operate", "log", "host", "pool", "cni", "presence", "error"]),
];

/// All that `chain` takes of `pool`: whether an answer is what its pools ask for.
const COMPARISON: &str = "use crate::pool::compare_answer;";

/// What touches the process, and the files that may.
const EDGES: &[(&str, &[&str])] = &[
    ("env::var", &["delegate/edge.rs", "chain/mod.rs"]),
    ("env::args", &["delegate/edge.rs", "chain/mod.rs"]),
    ("stdin()", &["delegate/edge.rs"]),
    // An operator's verb prints what it found.
    ("stdout()", &["delegate/edge.rs", "chain/operator/mod.rs", "chain/typed.rs"]),
    // All that goes to stderr goes without waiting for a reader.
    ("stderr()", &["log.rs"]),
    ("eprintln!", &["delegate/edge.rs", "chain/operator/mod.rs"]),
    ("println!(", &["delegate/edge.rs", "chain/operator/mod.rs"]),
    ("process::exit", &["delegate/edge.rs"]),
    ("Command::new", &["chain/process.rs", "chain/typed.rs", "testing/subject.rs"]),
];

/// The library's root, and the binary: the table of presets may name the systems they replace.
const OUTSIDE: [&str; 3] = ["lib.rs", "main.rs", "presets.rs"];

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file of the library but its root: its path below `src`, and its lines without
/// comments and unit tests.
fn files() -> Vec<(String, Vec<String>)> {
    let files = files_of(&src());
    assert!(files.len() > 20, "{files:?}");
    files
}

/// The same of another folder of sources.
fn files_of(root: &Path) -> Vec<(String, Vec<String>)> {
    let mut folders = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs")
                && !OUTSIDE.contains(&name.as_str())
                && !name.ends_with("/tests.rs")
            {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
                let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                files.push((name, lines.map(str::to_owned).collect()));
            }
        }
    }
    files.sort();
    files
}

fn room_of(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

/// The rooms that a line names as `crate::room` or `crate::{room, …}`.
fn imports(line: &str) -> Vec<String> {
    let word = |text: &str| {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    };
    let mut found = Vec::new();
    for rest in line.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => found.extend(list.split(',').map(|item| word(item.trim()))),
            None => found.push(word(rest)),
        }
    }
    found.retain(|room| !room.is_empty());
    found
}

#[test]
fn imports_point_down() {
    let mut wrong = Vec::new();
    for (file, lines) in files() {
        let room = room_of(&file);
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            wrong.push(format!("src/{file}: the room {room} is not in tests/architecture.rs"));
            continue;
        };
        for line in lines {
            for import in imports(&line) {
                if import != room && !allowed.contains(&import.as_str()) {
                    wrong.push(format!("src/{file} imports {import}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_chain_takes_one_function_of_the_pools() {
    let mut taken = Vec::new();
    for (file, lines) in files() {
        let of_pool = |line: &&String| imports(line).iter().any(|room| room == "pool");
        let lines = lines.iter().filter(of_pool).filter(|_| room_of(&file) == "chain");
        taken.extend(lines.map(|line| format!("src/{file}: {line}")));
    }
    assert_eq!(taken, [format!("src/chain/served.rs: {COMPARISON}")]);
}

#[test]
fn only_the_edge_touches_the_process() {
    let mut wrong = Vec::new();
    for (file, lines) in files() {
        for line in lines {
            for (what, may) in EDGES {
                if line.contains(what) && !may.contains(&file.as_str()) {
                    wrong.push(format!("src/{file} uses {what}: {}", line.trim()));
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
const OPENERS: [&str; 9] = [
    "src/host/own.rs",
    "src/host/file.rs",
    "src/host/boot.rs",
    "src/host/lasting.rs",
    "src/host/node.rs",
    "src/chain/process.rs",
    "src/chain/preset.rs",
    "src/chain/program.rs",
    // Files without a name, and the folder of leases.
    "delegates/ipam-da-local/src/",
];

#[test]
fn files_are_opened_by_one_function_a_class() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![src()];
    for entry in fs::read_dir(root.join("delegates")).unwrap() {
        folders.extend(Some(entry.unwrap().path().join("src")).filter(|path| path.is_dir()));
    }
    let mut wrong = Vec::new();
    for folder in folders {
        let place = folder.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        for (file, lines) in files_of(&folder) {
            let file = format!("{place}/{file}");
            let may = |opens: &&&str| {
                OPENERS.iter().any(|opener| {
                    file == *opener || (file.starts_with(opener) && **opens == "Mode::")
                })
            };
            if file.starts_with("src/testing/") {
                continue;
            }
            for line in lines {
                let line = line.replace("RecordFile::", "");
                let opens = OPENS.iter().filter(|opens| line.contains(**opens));
                wrong.extend(
                    opens.filter(|opens| !may(opens)).map(|_| format!("{file}: {}", line.trim())),
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_source_names_a_backend() {
    for (file, lines) in files() {
        for line in lines {
            let words = ["etcd", "consul", "nomad", "whereabouts", "phpipam", "openwisp"];
            // Range rules are named after the system whose reading they are.
            let rules = file.starts_with("pool/") || file == "offer/config.rs";
            let found = words.iter().find(|word| line.to_lowercase().contains(**word));
            assert!(rules || found.is_none(), "src/{file}: {line}");
        }
    }
}

#[test]
fn the_scan_sees_what_it_looks_for() {
    assert_eq!(imports("use crate::cni::{Network, Verb};"), ["cni"]);
    assert_eq!(imports("use crate::{cni, error::Error};"), ["cni", "error"]);
    assert_eq!(imports("    text.and_then(crate::host::parse_duration)"), ["host"]);
    assert!(imports("use super::record::Record;").is_empty());
}
