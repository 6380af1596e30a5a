use std::io::{self, Read};

/// Calls `take` with the bytes of each element of a long JSON array of objects or strings, and returns
/// the rest of the answer, with an empty array. The whole is never in memory.
///
/// The array is the answer itself, or the member `name` of an object. `take` parses the elements.
///
/// # Errors
/// Reading fails; the array is missing; an element or the rest is longer than `longest`, in bytes, has
/// more than 100,000 values, or a string of more than 1 MiB.
pub fn each_element<E>(
    source: &mut dyn Read,
    name: Option<&str>,
    longest: usize,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> io::Result<Result<Vec<u8>, E>> {
    let mut piece = [0; 16 * 1024];
    let mut scanner = Scanner::new(name, longest);
    loop {
        let read = match source.read(&mut piece) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            return match scanner.is_whole() {
                true => Ok(Ok(scanner.rest)),
                false => Err(malformed("unexpected end of JSON")),
            };
        }
        for byte in &piece[..read] {
            if scanner.step(*byte)? {
                if let Err(error) = take(&scanner.element) {
                    return Ok(Err(error));
                }
                scanner.element.clear();
            }
        }
    }
}

/// The cost of JSON for its reader: a value may take thirty times its bytes, and an error may quote a
/// string in six times its bytes.
#[derive(Default)]
pub(super) struct Weight {
    values: usize,
    string_length: usize,
    in_string: bool,
    escaped: bool,
    /// An array or object has begun, and nothing of it was seen yet.
    opened: bool,
}

/// How many values JSON in memory may have, and how many bytes one of its strings.
const VALUES: usize = 100_000;
const STRING: usize = 1024 * 1024;

impl Weight {
    /// Takes a byte.
    fn step(&mut self, byte: u8) -> io::Result<()> {
        self.string_length += 1;
        // An empty array or object is one value; another one is followed by its first.
        if self.opened && !byte.is_ascii_whitespace() {
            self.opened = false;
            self.values += usize::from(!matches!(byte, b']' | b'}'));
        }
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => {
                self.in_string = !self.in_string;
                self.string_length = 0;
            }
            b',' if !self.in_string => self.values += 1,
            b'[' | b'{' if !self.in_string => self.opened = true,
            _ => {}
        }
        match self {
            Self { values, .. } if *values > VALUES => {
                Err(malformed(&format!("more than {VALUES} values")))
            }
            Self { string_length, in_string: true, .. } if *string_length > STRING => {
                Err(malformed(&format!("a string has more than {STRING} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// Checks a whole body.
    ///
    /// # Errors
    /// It has too many values, or a string that is too long.
    pub(super) fn check(body: &[u8]) -> io::Result<()> {
        let mut weight = Self::default();
        body.iter().try_for_each(|byte| weight.step(*byte))
    }
}

struct Scanner<'a> {
    /// The member with the array; `None` if the array is the whole answer.
    name: Option<&'a str>,
    longest: usize,
    rest: Vec<u8>,
    element: Vec<u8>,
    /// The weight of the present element.
    weight: Weight,
    of_rest: Weight,
    state: ScanState,
    /// Open brackets and braces around the array, and in an element.
    around: u32,
    inside: u32,
    /// The start of the latest string in the rest.
    string_start: usize,
    seen: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ScanState {
    /// Before or after the array.
    Around,
    /// Behind the name of the member with the array.
    BeforeArray,
    Between,
    Inside,
}

impl<'a> Scanner<'a> {
    fn new(name: Option<&'a str>, longest: usize) -> Self {
        Self {
            name,
            longest,
            rest: Vec::new(),
            element: Vec::new(),
            weight: Weight::default(),
            of_rest: Weight::default(),
            state: if name.is_some() { ScanState::Around } else { ScanState::BeforeArray },
            around: 0,
            inside: 0,
            string_start: 0,
            seen: false,
        }
    }

    /// Whether the answer may end here. The caller parses the rest.
    fn is_whole(&self) -> bool {
        self.state == ScanState::Around && (self.seen || self.name.is_some())
    }

    /// Takes a byte; whether an element ends with it.
    fn step(&mut self, byte: u8) -> io::Result<bool> {
        match self.state {
            ScanState::Around => self.around(byte).map(|()| false),
            ScanState::BeforeArray => self.before_array(byte).map(|()| false),
            ScanState::Between => self.between(byte).map(|()| false),
            ScanState::Inside => self.inside(byte),
        }
    }

    fn around(&mut self, byte: u8) -> io::Result<()> {
        let space = matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        if self.name.is_none() {
            return if space { Ok(()) } else { Err(malformed("unexpected data after the array")) };
        }
        let was_string = self.of_rest.in_string;
        self.keep(byte)?;
        match byte {
            b'"' if self.of_rest.in_string && !was_string => self.string_start = self.rest.len(),
            b'{' | b'[' if !was_string => self.around += 1,
            b'}' | b']' if !was_string => self.around = self.around.saturating_sub(1),
            b':' if !was_string && self.around == 1 => {
                let name = self
                    .rest
                    .get(self.string_start..)
                    .and_then(|it| it.split(|b| *b == b'"').next());
                if name == self.name.map(str::as_bytes) {
                    self.state = ScanState::BeforeArray;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn before_array(&mut self, byte: u8) -> io::Result<()> {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => Ok(()),
            b'[' => {
                self.state = ScanState::Between;
                self.keep(byte)
            }
            _ if self.name.is_none() => Err(malformed("expected an array of objects or strings")),
            _ => {
                self.state = ScanState::Around;
                self.around(byte)
            }
        }
    }

    fn between(&mut self, byte: u8) -> io::Result<()> {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' | b',' => Ok(()),
            b']' => {
                self.state = ScanState::Around;
                self.seen = true;
                self.keep(byte)
            }
            b'{' | b'"' => {
                self.state = ScanState::Inside;
                self.weight = Weight::default();
                self.inside = 0;
                self.inside(byte).map(drop)
            }
            _ => Err(malformed("expected an array of objects or strings")),
        }
    }

    fn inside(&mut self, byte: u8) -> io::Result<bool> {
        self.element.push(byte);
        if self.element.len() > self.longest {
            return Err(malformed(&format!("an element has more than {} bytes", self.longest)));
        }
        let was_string = self.weight.in_string;
        self.weight.step(byte)?;
        match byte {
            b'{' | b'[' if !was_string => self.inside += 1,
            b'}' | b']' if !was_string => self.inside -= 1,
            _ => {}
        }
        let ended = self.inside == 0 && !self.weight.in_string;
        if ended {
            self.state = ScanState::Between;
        }
        Ok(ended)
    }

    fn keep(&mut self, byte: u8) -> io::Result<()> {
        self.rest.push(byte);
        if self.rest.len() > self.longest {
            return Err(malformed(&format!("more than {} bytes outside the array", self.longest)));
        }
        self.of_rest.step(byte)
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads byte by byte.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let one = self.0.len().min(1);
            self.0.read(&mut buffer[..one])
        }
    }

    fn elements_of(text: &str, name: Option<&str>) -> io::Result<(Vec<String>, String)> {
        let mut found = Vec::new();
        let taken = each_element(&mut Slow(text.as_bytes()), name, 1000, |element| {
            found.push(String::from_utf8_lossy(element).into_owned());
            Ok::<(), ()>(())
        });
        taken.map(|rest| (found, String::from_utf8(rest.unwrap()).unwrap()))
    }

    fn elements(text: &str) -> io::Result<Vec<String>> {
        elements_of(text, None).map(|(elements, _)| elements)
    }

    #[test]
    fn elements_are_told_apart() {
        assert_eq!(elements("[]").unwrap(), [""; 0]);
        assert_eq!(
            elements(r#" ["a","b\"],c" ,"\\"] "#).unwrap(),
            [r#""a""#, r#""b\"],c""#, r#""\\""#]
        );
        let objects = r#"[{"a":[1,{"b":"}"}]},{}]"#;
        assert_eq!(elements(objects).unwrap(), [r#"{"a":[1,{"b":"}"}]}"#, "{}"]);
    }

    #[test]
    fn the_array_may_be_a_member_and_leaves_the_rest() {
        for (text, found, rest) in [
            (
                r#"{"a":{"items":[1]},"items" : [{},"x"],"b":2}"#,
                &["{}", "\"x\""][..],
                r#"{"a":{"items":[1]},"items" :[],"b":2}"#,
            ),
            (r#"{"x":"items","items":null}"#, &[], r#"{"x":"items","items":null}"#),
            (r#"{"items\"":[1],"y":":[{"}"#, &[], r#"{"items\"":[1],"y":":[{"}"#),
            ("<html>", &[], "<html>"),
            (r#"{"items":[{}]"#, &["{}"], r#"{"items":[]"#),
            ("", &[], ""),
        ] {
            let (elements, left) = elements_of(text, Some("items")).unwrap();
            assert_eq!(
                (&elements[..], &*left),
                (&found.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()[..], rest),
                "{text}"
            );
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        for text in ["", "{}", "[1]", "[\"a\"", "[{}", "x", "[]]", "null", "[]x"] {
            assert!(elements(text).is_err(), "{text}");
        }
        assert!(elements_of(r#"{"items":[1]}"#, Some("items")).is_err());
    }

    #[test]
    fn what_would_cost_too_much_is_an_error() {
        let long = "x".repeat(1001);
        for text in [format!(r#"["{long}"]"#), format!(r#"[{{"a":{long}}}]"#)] {
            assert!(elements(&text).is_err());
        }
        assert!(elements_of(&format!(r#"{{"a":"{long}","items":[]}}"#), Some("items")).is_err());
        let many = |of: &str, n: usize| ["[", &of.repeat(n), "0]"].concat();
        for (of, values) in [("[0],", 2), (r#"{"a":0},"#, 2), ("[], ", 1), ("{ },", 1), ("0,", 1)] {
            assert!(Weight::check(many(of, VALUES / values - 1).as_bytes()).is_ok(), "{of}");
            assert!(Weight::check(many(of, VALUES / values).as_bytes()).is_err(), "{of}");
        }
        let text = |n: usize| format!(r#"["{}", "{0}"]"#, ",".repeat(n));
        assert!(Weight::check(text(STRING).as_bytes()).is_ok());
        assert!(Weight::check(text(STRING + 1).as_bytes()).is_err());
    }

    #[test]
    fn whoever_takes_may_end_it() {
        let mut seen = 0;
        let taken = each_element(&mut &b"[{},{},{}]"[..], None, 9, |_| {
            seen += 1;
            if seen < 2 { Ok(()) } else { Err("enough") }
        });
        assert_eq!((taken.unwrap(), seen), (Err("enough"), 2));
    }
}
