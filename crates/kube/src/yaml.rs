use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, Span};

/// A value of YAML, or of JSON, which is YAML. Every scalar except null is a string, so a number as a
/// name stays as it is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum YamlNode {
    Null,
    String(String),
    List(Vec<Rc<Self>>),
    Map(BTreeMap<String, Rc<Self>>),
}

/// Why a text is not one value of YAML. It quotes no part of the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct YamlError {
    line: usize,
    column: usize,
    what: String,
}

/// The depth of nested lists and mappings: more than any kubeconfig has, and safe for the stack.
const DEEPEST: usize = 64;

const SECOND: &str = "a second document: expected one";

/// Reads the one document of a text; [`YamlNode::Null`] for an empty text.
///
/// The value of an anchor is shared and not copied, so that a text that multiplies itself stays small.
pub(super) fn parse(text: &str) -> Result<Rc<YamlNode>, YamlError> {
    let mut builder = Builder::default();
    for next in Parser::new_from_str(text) {
        let (event, span) = next.map_err(|error| YamlError {
            line: error.marker().line(),
            column: error.marker().col() + 1,
            what: error.info(),
        })?;
        builder.take(event).map_err(|what| at(&span, what))?;
    }
    Ok(builder.document.map_or_else(|| Rc::new(YamlNode::Null), |(node, _)| node))
}

impl YamlNode {
    /// Its kind, for an error.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::String(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

fn at(span: &Span, what: &str) -> YamlError {
    YamlError { line: span.start.line(), column: span.start.col() + 1, what: what.to_owned() }
}

/// A node with its depth.
type BuiltNode = (Rc<YamlNode>, usize);

#[derive(Default)]
struct Builder {
    open: Vec<OpenNode>,
    /// The nodes of anchors, by number.
    named: BTreeMap<usize, BuiltNode>,
    document: Option<BuiltNode>,
}

/// A list or mapping before its end.
struct OpenNode {
    anchor: usize,
    /// The depth of the deepest member.
    depth: usize,
    members: OpenMembers,
}

enum OpenMembers {
    List(Vec<Rc<YamlNode>>),
    /// With the key of the next value.
    Map(BTreeMap<String, Rc<YamlNode>>, Option<String>),
}

impl Builder {
    fn take(&mut self, event: Event<'_>) -> Result<(), &'static str> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let plain = style == ScalarStyle::Plain;
                if plain && text == "<<" && self.awaits_key() {
                    return Err("a merge key (<<) is not supported: write the members out");
                }
                let null = plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let node = if null && !self.awaits_key() {
                    YamlNode::Null
                } else {
                    YamlNode::String(text.into_owned())
                };
                self.close((Rc::new(node), 0), anchor)
            }
            Event::Alias(anchor) => match self.named.get(&anchor) {
                Some(built) => self.put(built.clone()),
                None => Err("an alias inside its own anchor"),
            },
            Event::SequenceStart(_, anchor, _) => self.open(anchor, OpenMembers::List(Vec::new())),
            Event::MappingStart(_, anchor, _) => {
                self.open(anchor, OpenMembers::Map(BTreeMap::new(), None))
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(OpenNode { anchor, depth, members }) = self.open.pop() else {
                    return Ok(());
                };
                let node = match members {
                    OpenMembers::List(items) => YamlNode::List(items),
                    OpenMembers::Map(entries, _) => YamlNode::Map(entries),
                };
                self.close((Rc::new(node), depth + 1), anchor)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, anchor: usize, members: OpenMembers) -> Result<(), &'static str> {
        if self.awaits_key() {
            return Err("a key must be a string");
        }
        if self.open.is_empty() && self.document.is_some() {
            return Err(SECOND);
        }
        self.open.push(OpenNode { anchor, depth: 0, members });
        Ok(())
    }

    fn awaits_key(&self) -> bool {
        matches!(self.open.last(), Some(OpenNode { members: OpenMembers::Map(_, None), .. }))
    }

    fn close(&mut self, built: BuiltNode, anchor: usize) -> Result<(), &'static str> {
        if anchor > 0 {
            self.named.insert(anchor, built.clone());
        }
        self.put(built)
    }

    fn put(&mut self, (node, depth): BuiltNode) -> Result<(), &'static str> {
        if self.open.len() + depth > DEEPEST {
            return Err("lists and mappings nested too deeply");
        }
        let Some(open) = self.open.last_mut() else {
            if matches!(*node, YamlNode::Null) {
                return Ok(());
            }
            if self.document.is_some() {
                return Err(SECOND);
            }
            self.document = Some((node, depth));
            return Ok(());
        };
        open.depth = open.depth.max(depth);
        match &mut open.members {
            OpenMembers::List(items) => items.push(node),
            OpenMembers::Map(entries, key) => match key.take() {
                None => match &*node {
                    YamlNode::String(text) => *key = Some(text.clone()),
                    _ => return Err("a key must be a string"),
                },
                Some(key) => match entries.entry(key) {
                    Entry::Vacant(entry) => _ = entry.insert(node),
                    Entry::Occupied(_) => return Err("duplicate key"),
                },
            },
        }
        Ok(())
    }
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As JSON, with every text in quotes.
    fn shown(node: &YamlNode) -> String {
        let list = |texts: Vec<String>| texts.join(",");
        match node {
            YamlNode::Null => "null".to_owned(),
            YamlNode::String(text) => format!("{text:?}"),
            YamlNode::List(items) => {
                format!("[{}]", list(items.iter().map(|item| shown(item)).collect()))
            }
            YamlNode::Map(entries) => {
                let entry =
                    |(key, node): (&String, &Rc<YamlNode>)| format!("{key}:{}", shown(node));
                format!("{{{}}}", list(entries.iter().map(entry).collect()))
            }
        }
    }

    #[test]
    fn what_looks_like_a_number_is_the_text_that_stands_there() {
        for (text, expected) in [
            (
                "a: 0123\nb: 1e3\nc: true\nd: no\ne: 2024-01-01",
                r#"{a:"0123",b:"1e3",c:"true",d:"no",e:"2024-01-01"}"#,
            ),
            ("a:\nb: ~\nc: null\nd: \"null\"\ne: ''", r#"{a:null,b:null,c:null,d:"null",e:""}"#),
            ("1: x\ntrue: y\nnull: z", r#"{1:"x",null:"z",true:"y"}"#),
            ("a: |\n  x\n  y\nb: >-\n  x\n  y\n", r#"{a:"x\ny\n",b:"x y"}"#),
            ("a: !!binary eA==\nb: !own x", r#"{a:"eA==",b:"x"}"#),
            ("\u{feff}a: x # y\n", r#"{a:"x"}"#),
            ("a: x\r\nb: y\r\n", r#"{a:"x",b:"y"}"#),
        ] {
            assert_eq!(shown(&parse(text).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn json_is_read_as_it_is() {
        let long = "x".repeat(5000);
        for (text, expected) in [
            (
                "{\"a\": [1, true, null, \"\\u00e9\\/\\ud83d\\ude00\"]}",
                "{a:[\"1\",\"true\",null,\"é/😀\"]}",
            ),
            ("{\n\t\"a\":\t{\"b\":\"c\"},\n\t\"d\": []\n}\n", "{a:{b:\"c\"},d:[]}"),
            (
                &*format!("{{\"a\":\"{long}\",\"b\":\"{long}\"}}"),
                &*format!("{{a:{long:?},b:{long:?}}}"),
            ),
        ] {
            assert_eq!(shown(&parse(text).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn anchors_are_followed_and_nothing_is_multiplied() {
        let shared = parse("a: &x {b: c}\nd: *x\ne: &y z\nf: *y").unwrap();
        assert_eq!(shown(&shared), r#"{a:{b:"c"},d:{b:"c"},e:"z",f:"z"}"#);
        let mut laughs = "a0: &a0 lol\n".to_owned();
        for i in 1..50 {
            let before = format!("*a{}", i - 1);
            laughs += &format!("a{i}: &a{i} [{}]\n", [&*before; 9].join(", "));
        }
        let YamlNode::Map(entries) = &*parse(&laughs).unwrap() else { panic!() };
        assert_eq!(entries.len(), 50);
    }

    #[test]
    fn nothing_is_no_value() {
        for text in ["", "\n", "# a\n", "---\n", "---\n...\n", "~", "---\n---\n"] {
            assert_eq!(*parse(text).unwrap(), YamlNode::Null, "{text:?}");
        }
        assert_eq!(shown(&parse("---\na: b\n---\n").unwrap()), r#"{a:"b"}"#);
    }

    #[test]
    fn what_is_wrong_is_told_by_its_place_and_not_quoted() {
        let deep = |open: &str, close: &str, n: usize| open.repeat(n) + &close.repeat(n);
        let chain: String = (1..200).map(|i| format!("- &a{i} [*a{}]\n", i - 1)).collect();
        for (text, message) in [
            ("a: b\n---\na: c\n", "line 3, column 1: a second document: expected one"),
            ("a: b\nc: d\na: e\n", "line 3, column 4: duplicate key"),
            ("a: {b: c, b: s3cret}\n", "line 1, column 14: duplicate key"),
            ("a: &x [*x]", "line 1, column 8: an alias inside its own anchor"),
            (
                "a: &x {b: c}\nd:\n  <<: *x\n",
                "line 3, column 3: a merge key (<<) is not supported: write the members out",
            ),
            ("[a]: b", "line 1, column 1: a key must be a string"),
            ("a: *s3cret", "line 1, column 4: "),
            ("a: \"s3cret", "line 1, column "),
            ("a: [s3cret", "line 1, column "),
            ("a: b\n s3cret: d\n", "line 2, column "),
            ("a:\n\ts3cret: d\n", "line 2, column "),
            ("a: b: s3cret", "line 1, column "),
            ("\0", "line 1, column 1"),
            (&*deep("[", "]", 100), "line 1, column "),
            (&*deep("{a: ", "}", 65), "line 1, column "),
            (&*deep("[", "]", 100_000), "line 1, column "),
            (&*"- ".repeat(100_000), "line 1, column "),
            (
                &*format!("- &a0 x\n{chain}"),
                "line 65, column 9: lists and mappings nested too deeply",
            ),
        ] {
            let wrong = parse(text).unwrap_err().to_string();
            assert!(wrong.starts_with(message), "{text:.99}: {wrong}");
            assert!(!wrong.contains("s3cret"), "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_text_is_a_value_or_wrong(text in "[ \\n\\t:?{}\\[\\],&*#!|>'\"%@`~ab1.<=\\-]{0,80}") {
            let _ = parse(&text);
        }
    }
}
