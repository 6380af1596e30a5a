//! The page of error codes is made from the table in the source, and its examples are messages of the
//! programs.

use std::fs;

use ipam_kit::ErrorCode;
use regex::Regex;

use super::voice::messages;
use super::{read, root};

const PAGE: &str = "docs/errors.md";

const HEAD: &str = "\
| code | name | meaning | what to do | example |
|---|---|---|---|---|
";

#[test]
fn the_page_of_errors_has_the_table() {
    let page = read(PAGE);
    let rows = ErrorCode::TABLE.iter().map(|it| {
        let meaning = it.meaning.trim_end_matches('.');
        let example = if it.example.is_empty() { "–" } else { &format!("`{}`", it.example) };
        format!("| {} | `{}` | {meaning} | {} | {example} |\n", it.code, it.name, it.advice)
    });
    let (before, after) = page.split_once(HEAD).expect("the table's head");
    let after: Vec<&str> =
        after.split_inclusive('\n').skip_while(|line| line.starts_with('|')).collect();
    let expected = format!("{before}{HEAD}{}{}", rows.collect::<String>(), after.concat());
    if std::env::var_os("WRITE_PAGES").is_some() {
        fs::write(root().join(PAGE), &expected).unwrap();
        return;
    }
    assert_eq!(page, expected, "WRITE_PAGES=1 cargo test --test docs writes the page");
}

#[test]
fn examples_of_errors_are_messages_of_the_programs() {
    let placeholder = Regex::new(r"\\\{[^}]*\\\}").unwrap();
    let messages: Vec<Regex> = messages()
        .iter()
        .filter(|text| placeholder.replace_all(&regex::escape(text), "").len() > 10)
        .map(|text| {
            let text = placeholder.replace_all(&regex::escape(text), ".+").into_owned();
            Regex::new(&format!("^(.+: )?{text}([:;] .+)?$")).unwrap()
        })
        .collect();
    for row in ErrorCode::TABLE.iter().filter(|row| !row.example.is_empty()) {
        let is_message = messages.iter().any(|message| message.is_match(row.example));
        assert!(is_message, "crates/kit/src/error.rs: no program says {:?}", row.example);
    }
}
