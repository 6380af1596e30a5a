//! The CSV of a subnet: a few lines about the subnet, then `ip_address,description` and the rows.

use std::io::{self, ErrorKind, Read};

/// The longest row, in bytes: a description has 100 characters.
const LONGEST: usize = 4096;

/// The heading of the rows.
const HEADING: [&str; 2] = ["ip_address", "description"];

/// Calls `take` with address and description of each row, until its first error.
///
/// # Errors
/// Reading fails; it is not such a CSV; it ends inside a row.
pub(crate) fn each_row<E>(
    source: &mut dyn Read,
    take: &mut dyn FnMut(&str, &str) -> Result<(), E>,
) -> io::Result<Result<(), E>> {
    let mut rows = Rows::default();
    let mut piece = [0; 16 * 1024];
    let mut is_begun = false;
    loop {
        let read = match source.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        let end: &[u8] = if read == 0 && rows.has_begun() { b"\n" } else { b"" };
        for byte in piece[..read].iter().chain(end) {
            let Some(row) = rows.step(*byte)? else { continue };
            match &row[..] {
                [address, description] if is_begun => {
                    if let Err(error) = take(address, description) {
                        return Ok(Err(error));
                    }
                }
                row if *row == HEADING => is_begun = true,
                row if is_begun && row.iter().any(|field| !field.is_empty()) => {
                    return Err(malformed(
                        "a row has other fields than ip_address and description",
                    ));
                }
                _ => {}
            }
        }
        if read == 0 {
            return if is_begun && !rows.has_begun() {
                Ok(Ok(()))
            } else {
                Err(malformed("unexpected end, or no row ip_address,description"))
            };
        }
    }
}

/// A reader of rows, byte by byte.
#[derive(Default)]
struct Rows {
    fields: Vec<String>,
    field: Vec<u8>,
    length: usize,
    in_quotes: bool,
    /// The last byte was a quote inside of quotes: their end, or the first of two.
    after_quote: bool,
}

impl Rows {
    fn has_begun(&self) -> bool {
        self.length > 0
    }

    /// Takes a byte, and returns the row that ends with it.
    fn step(&mut self, byte: u8) -> io::Result<Option<Vec<String>>> {
        self.length += 1;
        if self.length > LONGEST {
            return Err(malformed("a row has more than 4096 bytes"));
        }
        if self.in_quotes {
            match (byte, self.after_quote) {
                (b'"', false) => {
                    self.after_quote = true;
                    return Ok(None);
                }
                (byte, true) if byte != b'"' => {
                    self.in_quotes = false;
                    self.after_quote = false;
                }
                (byte, _) => {
                    self.after_quote = false;
                    self.field.push(byte);
                    return Ok(None);
                }
            }
        }
        match byte {
            b'"' if self.field.is_empty() => self.in_quotes = true,
            b',' => self.end_field()?,
            b'\r' => {}
            b'\n' => {
                self.end_field()?;
                self.length = 0;
                return Ok(Some(std::mem::take(&mut self.fields)));
            }
            byte => self.field.push(byte),
        }
        Ok(None)
    }

    fn end_field(&mut self) -> io::Result<()> {
        let field = String::from_utf8(std::mem::take(&mut self.field));
        self.fields.push(field.map_err(|_| malformed("a field is not UTF-8"))?);
        Ok(())
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> io::Result<Vec<(String, String)>> {
        let mut rows = Vec::new();
        let read = each_row::<()>(&mut text.as_bytes(), &mut |address, text| {
            rows.push((address.to_owned(), text.to_owned()));
            Ok(())
        })?;
        read.unwrap();
        Ok(rows)
    }

    #[test]
    fn rows_follow_their_heading() {
        let head = "\"blue, \"\"x\"\"\"\r\n10.9.0.0/28\r\norg1\r\n\r\nip_address,description\r\n";
        let text = format!("{head}10.9.0.5,\"=a,b \"\"q\"\"\r\nzwei\"\r\n10.9.0.6,\r\n10.9.0.7,c");
        let expected = [("10.9.0.5", "=a,b \"q\"\r\nzwei"), ("10.9.0.6", ""), ("10.9.0.7", "c")];
        let expected = expected.map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(rows(&text).unwrap(), expected);
        assert_eq!(rows(head).unwrap(), []);
    }

    #[test]
    fn anything_else_is_an_error() {
        for text in [
            "",
            "<html>",
            "ip_address,description\n10.9.0.5",
            "ip_address,description\n10.9.0.5,\"a",
            "ip_address,description\n10.9.0.5,a,b\n",
            &format!("ip_address,description\n10.9.0.5,{}", "x".repeat(LONGEST)),
        ] {
            assert!(rows(text).is_err(), "{text}");
        }
    }
}
