//! The documents say what the code does, where that can be compared.

#![allow(clippy::unwrap_used, reason = "a test")]

mod errors;
mod voice;

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use ipam_delegated::chain::Preset;

/// The folders of which every source file is drawn, each with the page that draws them.
const DRAWN: [(&str, &str); 13] = [
    ("crates/cli/src", "crates/cli/src/lib.rs"),
    ("crates/kit/src", "crates/kit/DESIGN.md"),
    ("crates/kit/src/allocate", "crates/kit/DESIGN.md"),
    ("crates/kube/src", "crates/kube/DESIGN.md"),
    ("crates/records/src", "crates/records/DESIGN.md"),
    ("crates/servers/src", "crates/servers/DESIGN.md"),
    ("crates/suites/src", "crates/suites/src/lib.rs"),
    ("delegates/ipam-da-kube/src", "delegates/ipam-da-kube/DESIGN.md"),
    ("delegates/ipam-da-openwisp/src", "delegates/ipam-da-openwisp/DESIGN.md"),
    ("delegates/ipam-da-phpipam/src", "delegates/ipam-da-phpipam/DESIGN.md"),
    ("src", "ARCHITECTURE.md"),
    ("src/chain", "src/chain/DESIGN.md"),
    ("src/chain/record", "src/chain/record/DESIGN.md"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The cells of the table rows below a heading.
fn table(document: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, section) = document.split_once(&format!("\n{heading}\n")).expect(heading);
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

#[test]
fn the_page_of_the_configuration_has_the_host_wide_settings() {
    let source = read("crates/kit/src/host/settings.rs");
    let (_, file) = source.split_once("struct SettingsFile {").unwrap();
    let (file, _) = file.split_once('}').unwrap();
    let fields = file.lines().filter_map(|line| line.trim().split_once(": Option"));
    let keys: Vec<String> = fields.map(|(field, _)| format!("`{}`", camel_case(field))).collect();
    let rows = table(&read("docs/configuration.md"), "## Host-wide settings");
    let documented: Vec<String> = rows[2..].iter().map(|row| row[0].clone()).collect();
    assert_eq!(documented, keys);
}

/// A field's name as serde renames it.
fn camel_case(field: &str) -> String {
    let mut words = field.split('_');
    let mut key = words.next().unwrap().to_owned();
    for word in words {
        key.push_str(&word[..1].to_uppercase());
        key.push_str(&word[1..]);
    }
    key
}

#[test]
fn pages_show_the_examples_as_they_are() {
    let shown = [
        ("docs/guide.md", "10-ipam-delegated-local.conflist"),
        ("docs/delegates.md", "ipam-ds-rack.py"),
        ("docs/delegates.md", "ipam-ds-rack.rs"),
    ];
    for (page, name) in shown {
        let example = read(&format!("examples/{name}"));
        assert!(read(page).contains(&format!("\n{example}```\n")), "{name} differs");
    }
    // Of a long one, a part.
    let create = "\n    def create(self, address, lease):\n";
    let example = read("examples/ipam-da-files.py");
    let page = read("docs/delegates.md");
    let part =
        |text: &str, end: &str| text.split(create).nth(1)?.split(end).next().map(str::to_owned);
    assert_eq!(part(&page, "```\n").unwrap(), part(&example, "\n    def ").unwrap());
}

#[test]
fn the_guide_shows_parts_of_the_examples() {
    let plain = |text: &str| text.split_whitespace().collect::<String>();
    let files = fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let conflists = files.filter(|path| path.extension().is_some_and(|end| end == "conflist"));
    let examples: Vec<String> =
        conflists.map(|path| plain(&fs::read_to_string(path).unwrap())).collect();
    let guide = read("docs/guide.md");
    let parts: Vec<&str> =
        guide.split("\n```json\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(parts.len() > 3, "{parts:?}");
    for part in parts {
        assert!(examples.iter().any(|example| example.contains(&plain(part))), "{part}");
    }
}

#[test]
fn every_delegate_is_in_the_table() {
    for entry in fs::read_dir(root().join("delegates")).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let name = format!("`{}`", path.file_name().unwrap().to_str().unwrap());
        let text = format!("\n{}", read("delegates/README.md"));
        let is_named = table(&text, "# Delegates").iter().any(|row| row[0].contains(&name));
        assert!(is_named, "{name} is missing in delegates/README.md");
    }
}

#[test]
fn every_preset_is_in_the_table() {
    let rows = table(&read("docs/configuration.md"), "## Presets");
    let documented: Vec<String> = rows[2..].iter().map(|row| row[0].clone()).collect();
    let named = |preset: &Preset| format!("`{}`", preset.name);
    assert_eq!(documented, ipam_delegated::presets::PRESETS.iter().map(named).collect::<Vec<_>>());
}

#[test]
fn every_source_file_is_in_its_drawing() {
    for (folder, page) in DRAWN {
        let document = read(page);
        let (_, rooms) = document.split_once("# Rooms\n").unwrap_or_else(|| panic!("{page}"));
        let rooms = rooms.split("\n## ").next().unwrap();
        let words: Vec<&str> = rooms.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let room = path.file_stem().unwrap().to_str().unwrap();
            let is_drawn =
                words.contains(&room) || matches!(room, "bin" | "lib" | "mod" | "tests" | "DESIGN");
            let path = path.display();
            assert!(is_drawn, "{page}: {room} ({path}) is missing below \"Rooms\"");
        }
    }
}

/// Every Markdown file of the project.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_leads_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", document.display());
            if !fragment.is_empty() {
                let text = fs::read_to_string(&target).unwrap();
                let headings = text.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(
                    headings.into_iter().any(|heading| heading == fragment),
                    "{}: {link}",
                    document.display()
                );
            }
        }
    }
}

/// Pages about work on the sources, which the archive has not.
const OF_SOURCES: [&str; 6] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benches/README.md",
    "delegates/README.md",
    "docs/delegates.md",
];

#[test]
fn the_release_archive_has_what_its_pages_name() {
    let list = Command::new(root().join(".ci/release")).arg("--list").output().unwrap();
    assert!(list.status.success(), "{list:?}");
    let packed = String::from_utf8(list.stdout).unwrap();
    let packed: Vec<&Path> = packed.lines().map(Path::new).collect();
    assert!(packed.contains(&Path::new("README.md")), "{packed:?}");
    let is_page = |file: &&&Path| {
        let is_of_sources = OF_SOURCES.iter().any(|other| Path::new(other) == **file)
            || file.ends_with("DESIGN.md");
        !is_of_sources && file.extension().is_some_and(|end| end == "md")
    };
    for page in packed.iter().filter(is_page) {
        let text = read(page.to_str().unwrap());
        let links = text.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap());
        let typed = text.split("\n$ ").skip(1).map(|rest| rest.split_whitespace().next().unwrap());
        let code = text.split('`').skip(1).step_by(2);
        let beside = page.parent().unwrap();
        for name in links.chain(typed).chain(code).filter(|name| !name.starts_with('/')) {
            for folder in [beside, Path::new("")] {
                let path = normal(&folder.join(name.trim_start_matches("./")));
                let is_file = root().join(&path).is_file() && !path.starts_with(".ci");
                let is_of_a_source_tree = path == Path::new("tests/run.sh");
                assert!(
                    is_of_a_source_tree || !is_file || packed.contains(&&*path),
                    "{}: {name}",
                    page.display()
                );
            }
        }
    }
}

/// A relative path without the steps upwards.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, part| {
        if part == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(part);
        }
        normal
    })
}

/// podman owns 10.88.0.0/16, and gives its further networks subnets from 10.89.0.0/24 upwards.
#[test]
fn no_page_shows_a_subnet_that_podman_may_have() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for rest in text.split("subnet\"").skip(1) {
            let subnet = rest.trim_start_matches([':', ' ', '"']).split('"').next().unwrap();
            let mut numbers = subnet.split('.').map(str::parse::<u8>);
            if let (Some(Ok(10)), Some(Ok(second))) = (numbers.next(), numbers.next()) {
                assert!((210..240).contains(&second), "{}: {subnet}", document.display());
            }
        }
    }
}

#[test]
fn every_test_that_the_page_on_security_names_exists() {
    let page = read("SECURITY.md");
    let named: Vec<(&str, &str)> =
        page.split('`').skip(1).step_by(2).filter_map(|code| code.split_once(".rs::")).collect();
    assert!(named.len() > 40, "{named:?}");
    for (file, test) in named {
        let source = read(&format!("{file}.rs"));
        let before = source.split_once(&format!("fn {test}()")).map(|(before, _)| before);
        let is_test = before.is_some_and(|before| before.trim_end().ends_with("#[test]"));
        assert!(is_test, "{file}.rs::{test}");
    }
    // Each row says what holds it.
    for row in &table(&page, "## Threat model")[2..] {
        assert!(row.len() == 4 && !row[2].is_empty() && row[3].contains(".rs::"), "{row:?}");
    }
}

/// The folders at the root whose files pages name by their whole path.
const FOLDERS: [&str; 6] = [".ci/", "benches/", "crates/", "delegates/", "examples/", "src/"];

#[test]
fn every_path_that_a_page_names_exists() {
    for document in documents() {
        // What was is told there, too.
        if document.ends_with("CHANGELOG.md") {
            continue;
        }
        let text = fs::read_to_string(&document).unwrap();
        for code in text.split('`').skip(1).step_by(2) {
            let is_path = FOLDERS.iter().any(|folder| code.starts_with(folder))
                && code.chars().all(|c| c.is_alphanumeric() || "./_-".contains(c));
            let exists = || {
                let beside = document.parent().unwrap();
                code.contains("NAME") || [root(), beside].iter().any(|at| at.join(code).exists())
            };
            assert!(!is_path || exists(), "{}: {code}", document.display());
        }
    }
}

/// Every file of Rust below a folder, by its path from the root.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn every_test_that_is_shorter_every_day_is_in_the_table() {
    let mut cut = Vec::new();
    for folder in ["crates", "delegates", "tests"] {
        sources(&root().join(folder), &mut cut);
    }
    // The file that defines it; this one.
    let own = ["crates/testkit/src/world/mod.rs", "tests/docs/main.rs"];
    cut.retain(|file| !own.contains(&&**file) && read(file).contains("full_size()"));
    cut.sort();
    let rows = table(&read("CONTRIBUTING.md"), "### Tests in full");
    let files = rows[2..].iter().flat_map(|row| row[0].split('`').skip(1).step_by(2));
    let mut named: Vec<&str> = files.collect();
    named.sort();
    assert_eq!(named, cut);
}
