//! The voice of CONTRIBUTING.md, where a program can hear it: forbidden forms in pages, errors, help
//! and rustdoc, and the width and length of pages.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use regex::Regex;

use crate::{documents, read, root};

/// Forms that nobody should have to read twice, each with a text that has it and one that has not.
const FORBIDDEN: [(&str, &str, &str); 25] = [
    (r"\b(is|are|was|were) no ([A-Za-km-z]|l[^o])", "the name is no UUID", "it is no longer held"),
    (r"\b(is|are|was|were) none\b", "its uuid is none", "none of the servers answers"),
    (r"\b([Nn]o|[Ss]ome|[Ee]very)body\b", "nobody holds it", "no container holds it"),
    (r"\b([Ss]tands?|stood)\b", "its namespace stands", "a standard plugin"),
    (r"\bbe (it|they)\b", "leases, be they in its ranges", "may be its own"),
    (r"\b[Ww]hoever\b", "whoever asks", "a caller who asks"),
    (r"\bfor ever\b", "it is gone for ever", "it never comes back"),
    (r"\baffair\b", "that is not its affair", "it ignores that"),
    (r"\bpass(es|ed|ing)? over\b", "they are passed over", "they are passed on"),
    (r"\bof (no|any) use\b", "a text of no use", "an unusable text"),
    (r"\b(go|goes|going|went) by\b", "it goes by the record", "it uses the record"),
    (r"\bow(e|es|ed)\b", "a DEL is owed", "a DEL is due"),
    (r"\bby (now|then)\b", "broken by now", "by name"),
    (r"\bbears?\b", "it bears the mark", "it has the mark"),
    (r"\b(is|are|was|were|be) told\b", "its name is told", "it reports its name"),
    (r"\bin vain\b", "it waits in vain", "it waits, then fails"),
    (r"\ball the same\b", "it runs all the same", "all of them are the same"),
    (r"\bof (now|today)\b|\btoday's\b", "the configuration of now", "the present configuration"),
    (r"(^|[.:;] )(What|Who|Whose)( [^ .?]+)+\.", "What fails is kept.", "What does it cost?"),
    (r"\bthe place of\b", "it takes the place of host-local", "it replaces host-local"),
    (r"\b(is|are|was|were) away\b", "the server is away", "the server is unreachable"),
    (r"\bbut for\b", "all but for one", "all except one"),
    (r"\bone's own\b", "a preset of one's own", "a preset of your own"),
    (r"\bis that of\b|\bare those of\b", "its key is that of the owner", "it has the owner's key"),
    (r"\b(is|are) to be\b", "the file is to be removed", "remove the file"),
];

/// Scripts and manifests whose lines people read.
const SCRIPTS: [&str; 23] = [
    "delegates/ipam-da-kube/deploy/crds.yaml",
    "delegates/ipam-da-kube/deploy/daemonset.yaml",
    "delegates/ipam-da-kube/deploy/keep-whereabouts-off.yaml",
    "delegates/ipam-da-kube/deploy/rbac.yaml",
    "delegates/ipam-da-kube/deploy/sticky.yaml",
    "delegates/ipam-da-openwisp/deploy/daemonset.yaml",
    "delegates/ipam-da-openwisp/deploy/network-attachment-definition.yaml",
    "delegates/ipam-da-openwisp/deploy/secret.yaml",
    "delegates/ipam-da-phpipam/deploy/daemonset.yaml",
    "delegates/ipam-da-phpipam/deploy/network-attachment-definition.yaml",
    "delegates/ipam-da-phpipam/deploy/secret.yaml",
    "delegates/ipam-ds-kube-node/deploy/Dockerfile",
    "delegates/ipam-ds-kube-node/deploy/daemonset.yaml",
    "delegates/ipam-ds-kube-node/deploy/keep-login.sh",
    "delegates/ipam-ds-kube-node/deploy/keep-token.sh",
    "delegates/ipam-ds-kube-node/deploy/network-attachment-definitions.yaml",
    "delegates/ipam-ds-kube-node/deploy/rbac.yaml",
    "delegates/ipam-ds-kube-pod/deploy/rbac.yaml",
    "examples/ipam-da-files.py",
    "examples/ipam-ds-rack.py",
    "examples/ipam-ds-rack.sh",
    "examples/quickstart.sh",
    "install.sh",
];

/// Columns of a page's prose.
const WIDTH: usize = 100;

/// Words of a page's longest sentence.
const SENTENCE: usize = 35;

/// The most lines that a page may have.
const LENGTHS: [(&str, usize); 9] = [
    ("README.md", 180),
    ("ARCHITECTURE.md", 250),
    ("docs/guide.md", 350),
    ("docs/operating.md", 360),
    ("docs/configuration.md", 200),
    ("docs/errors.md", 120),
    ("docs/delegates.md", 250),
    ("docs/contract.md", 250),
    ("CHANGELOG.md", 30),
];

/// The most lines of the pages of a folder.
const LENGTHS_IN: [(&str, usize); 3] = [("docs/", 150), ("delegates/", 250), ("crates/", 250)];

/// A text that people read, and where it is.
struct Passage {
    at: String,
    text: String,
}

#[test]
fn each_forbidden_form_has_a_hit_and_a_miss() {
    for (form, hit, miss) in FORBIDDEN {
        let form = Regex::new(form).unwrap();
        assert!(form.is_match(hit), "{form}: {hit}");
        assert!(!form.is_match(miss), "{form}: {miss}");
    }
}

#[test]
fn pages_errors_and_help_have_no_forbidden_form() {
    let mut passages: Vec<Passage> = pages().iter().flat_map(|page| prose(page)).collect();
    passages.extend(SCRIPTS.iter().flat_map(|script| lines_of(script)));
    passages.extend(sources().iter().flat_map(|source| texts_of(source).messages));
    assert_none(passages.into_iter());
}

#[test]
fn rustdoc_has_no_forbidden_form() {
    assert_none(sources().iter().flat_map(|source| texts_of(source).rustdoc));
}

#[test]
fn pages_are_narrow_and_their_sentences_short() {
    let mut found = Vec::new();
    for page in &pages() {
        for passage in prose_lines(page) {
            if passage.text.chars().count() > WIDTH {
                found.push(format!("{}: more than {WIDTH} columns: {}", passage.at, passage.text));
            }
        }
        for passage in prose(page).iter().filter(|passage| !passage.text.starts_with('|')) {
            for sentence in passage.text.split_inclusive(['.', '?', ':', ';']) {
                let words = sentence.split_whitespace().count();
                if words > SENTENCE {
                    found.push(format!("{}: {words} words: {sentence}", passage.at));
                }
            }
        }
    }
    assert!(found.is_empty(), "{} found:\n{}", found.len(), found.join("\n"));
}

#[test]
fn pages_are_not_longer_than_planned() {
    let mut found = Vec::new();
    for page in &pages() {
        let named = LENGTHS.iter().find(|(name, _)| name == page);
        let folder = || LENGTHS_IN.iter().find(|(folder, _)| page.starts_with(folder));
        let lines = read(page).lines().count();
        if let Some((_, most)) = named.or_else(folder)
            && lines > *most
        {
            found.push(format!("{page}: {lines} lines, at most {most}"));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn assert_none(passages: impl Iterator<Item = Passage>) {
    let forms = FORBIDDEN.map(|(form, ..)| Regex::new(form).unwrap());
    let mut found = Vec::new();
    for Passage { at, text } in passages {
        for form in &forms {
            if let Some(hit) = form.find(&text) {
                found.push(format!("{at}: {:?} in: {text}", hit.as_str()));
            }
        }
    }
    assert!(found.is_empty(), "{} found:\n{}", found.len(), found.join("\n"));
}

/// Every page, from the root of the project.
fn pages() -> Vec<String> {
    let relative = |page: PathBuf| page.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    documents().into_iter().map(relative).collect()
}

/// The lines of a page without code, tables and links' targets.
fn prose_lines(page: &str) -> Vec<Passage> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in read(page).lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !line.starts_with(['|', '[']) && !line.starts_with("![") {
            lines.push(Passage { at: format!("{page}:{}", number + 1), text: line.to_owned() });
        }
    }
    lines
}

/// The paragraphs and table rows of a page, with `code` in the place of code.
fn prose(page: &str) -> Vec<Passage> {
    let code = Regex::new("`[^`]+`").unwrap();
    let target = Regex::new(r"\]\([^)]*\)").unwrap();
    let mut is_code = false;
    let mut paragraphs: Vec<Passage> = Vec::new();
    let mut begins = true;
    for (number, line) in read(page).lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            begins = true;
            continue;
        }
        let text = line.trim_start_matches([' ', '#', '-', '>']);
        let is_alone = line.starts_with(['|', '#']) || line.trim_start().starts_with("- ");
        if is_code || text.is_empty() {
            begins = true;
            continue;
        }
        if begins || is_alone || paragraphs.is_empty() {
            paragraphs
                .push(Passage { at: format!("{page}:{}", number + 1), text: text.to_owned() });
        } else {
            let last = paragraphs.last_mut().unwrap();
            last.text = format!("{} {text}", last.text);
        }
        begins = line.starts_with(['|', '#']);
    }
    for paragraph in &mut paragraphs {
        let text = code.replace_all(&paragraph.text, "code");
        paragraph.text = target.replace_all(&text, "]").into_owned();
    }
    paragraphs
}

fn lines_of(script: &str) -> Vec<Passage> {
    let text = read(script);
    let lines = text.lines().enumerate();
    lines
        .map(|(number, line)| Passage {
            at: format!("{script}:{}", number + 1),
            text: line.trim_start_matches([' ', '#']).to_owned(),
        })
        .collect()
}

/// The sources of programs and of what authors depend on.
fn sources() -> Vec<String> {
    let mut folders = vec![root().join("src"), root().join("examples")];
    for parent in ["crates", "delegates"] {
        let packages = fs::read_dir(root().join(parent)).unwrap();
        folders.extend(packages.map(|entry| entry.unwrap().path().join("src")));
    }
    folders.retain(|folder| folder.is_dir() && !folder.ends_with("testkit/src"));
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") && !is_test(&path) {
                let path = path.strip_prefix(root()).unwrap();
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    assert!(found.len() > 100, "{found:?}");
    found.sort();
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
}

/// What a source says to people.
#[derive(Default)]
struct Texts {
    /// Literals with more than one word: errors, advice, help and logs.
    messages: Vec<Passage>,
    /// Paragraphs of rustdoc.
    rustdoc: Vec<Passage>,
}

/// The messages of all sources.
pub(super) fn messages() -> Vec<String> {
    let texts = sources().into_iter().flat_map(|source| texts_of(&source).messages);
    texts.map(|passage| passage.text).collect()
}

fn texts_of(source: &str) -> Texts {
    let tokens = TokenStream::from_str(&read(source)).unwrap_or_else(|e| panic!("{source}: {e}"));
    let mut texts = Texts::default();
    let mut rustdoc = Vec::new();
    collect(source, tokens, &mut texts, &mut rustdoc);
    texts.rustdoc = joined(rustdoc);
    texts
}

/// Collects what the tokens say, without the modules of unit tests.
fn collect(
    source: &str,
    tokens: TokenStream,
    texts: &mut Texts,
    rustdoc: &mut Vec<(usize, Passage)>,
) {
    let mut is_of_tests = false;
    let mut is_rustdoc = false;
    for token in tokens {
        let line = token.span().start().line;
        let at = format!("{source}:{line}");
        match token {
            TokenTree::Group(group) if is_of_tests && group.delimiter() == Delimiter::Brace => {
                is_of_tests = false;
            }
            TokenTree::Group(group) => {
                let text = group.stream().to_string();
                is_of_tests |= text == "cfg (test)" || text == "cfg(test)";
                collect(source, group.stream(), texts, rustdoc);
            }
            TokenTree::Ident(ident) => is_rustdoc = ident == "doc",
            TokenTree::Punct(punct) if punct.as_char() == ';' => is_of_tests = false,
            TokenTree::Punct(_) => {}
            TokenTree::Literal(literal) => {
                let Ok(literal) = syn::parse_str::<syn::LitStr>(&literal.to_string()) else {
                    continue;
                };
                let text = literal.value();
                let passage = Passage { at, text };
                if is_rustdoc {
                    rustdoc.push((line, passage));
                } else if passage.text.trim().contains(' ') {
                    texts.messages.push(passage);
                }
                is_rustdoc = false;
            }
        }
    }
}

/// The lines of rustdoc as paragraphs, without code.
fn joined(lines: Vec<(usize, Passage)>) -> Vec<Passage> {
    let code = Regex::new("`[^`]+`").unwrap();
    let mut is_code = false;
    let mut last = 0;
    let mut paragraphs: Vec<Passage> = Vec::new();
    for (number, line) in lines {
        let text = line.text.trim();
        if text.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !text.is_empty() {
            let is_next = number == last + 1 && !text.starts_with(['-', '|', '#']);
            if let Some(paragraph) = paragraphs.last_mut().filter(|_| is_next) {
                paragraph.text = format!("{} {text}", paragraph.text);
            } else {
                paragraphs.push(Passage { at: line.at.clone(), text: text.to_owned() });
            }
            last = number;
        }
    }
    for paragraph in &mut paragraphs {
        paragraph.text = code.replace_all(&paragraph.text, "code").into_owned();
    }
    paragraphs
}

#[test]
fn texts_of_a_source_are_found() {
    let texts = texts_of("tests/docs/voice.rs");
    let has = |passages: &[Passage], part: &str| passages.iter().any(|p| p.text.contains(part));
    assert!(has(&texts.messages, "nobody holds it"));
    assert!(has(&texts.rustdoc, "Forms that nobody should have to read twice, each with"));
    let kit = texts_of("crates/kit/src/pool/bounds.rs");
    assert!(!kit.messages.is_empty() && !kit.rustdoc.is_empty());
}
