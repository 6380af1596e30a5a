//! The elements of a long JSON array, one after the other.

use std::io::{self, Read};

/// Gives each element of a JSON array of objects or texts as its bytes, without holding the whole.
///
/// What stands inside an element is not judged: who takes it reads it.
///
/// # Errors
/// Reading fails, it is no such array, or an element is longer than [`LONGEST`].
pub(crate) fn each_element<E>(
    source: &mut dyn Read,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> io::Result<Result<(), E>> {
    let mut piece = [0; 16 * 1024];
    let mut scanner = Scanner::default();
    loop {
        let read = match source.read(&mut piece) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            return if scanner.ended { Ok(Ok(())) } else { Err(malformed("it ends early")) };
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

/// The longest element, in bytes: a value of Consul has 512 KiB at most, a third more as base64.
const LONGEST: usize = 1024 * 1024;

#[derive(Default)]
struct Scanner {
    element: Vec<u8>,
    depth: u32,
    in_text: bool,
    escaped: bool,
    began: bool,
    ended: bool,
}

impl Scanner {
    /// Takes a byte; whether an element ends with it.
    fn step(&mut self, byte: u8) -> io::Result<bool> {
        if self.depth == 0 && !self.in_text {
            return self.outside(byte);
        }
        self.element.push(byte);
        if self.element.len() > LONGEST {
            return Err(malformed("an element is too long"));
        }
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_text => self.escaped = true,
            b'"' => self.in_text = !self.in_text,
            b'{' | b'[' if !self.in_text => self.depth += 1,
            b'}' | b']' if !self.in_text => self.depth -= 1,
            _ => {}
        }
        Ok(self.depth == 0 && !self.in_text)
    }

    /// Takes a byte between elements.
    fn outside(&mut self, byte: u8) -> io::Result<bool> {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => {}
            b'[' if !self.began => self.began = true,
            b',' if self.began && !self.ended => {}
            b']' if self.began && !self.ended => self.ended = true,
            b'{' | b'"' if self.began && !self.ended => {
                self.element.push(byte);
                match byte {
                    b'{' => self.depth = 1,
                    _ => self.in_text = true,
                }
            }
            _ => return Err(malformed("it is no array of objects or texts")),
        }
        Ok(false)
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a listing is malformed: {what}"))
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

    fn elements(text: &str) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        let taken = each_element(&mut Slow(text.as_bytes()), |element| {
            found.push(String::from_utf8_lossy(element).into_owned());
            Ok::<(), ()>(())
        });
        taken.map(|_| found)
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
    fn anything_else_is_an_error() {
        for text in ["", "{}", "[1]", "[\"a\"", "[{}", "x", "[]]", "null"] {
            assert!(elements(text).is_err(), "{text}");
        }
    }

    #[test]
    fn whoever_takes_may_end_it() {
        let mut seen = 0;
        let taken = each_element(&mut &b"[{},{},{}]"[..], |_| {
            seen += 1;
            if seen < 2 { Ok(()) } else { Err("enough") }
        });
        assert_eq!((taken.unwrap(), seen), (Err("enough"), 2));
    }
}
