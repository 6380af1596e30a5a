use std::ffi::OsString;
use std::fmt::Display;

use lexopt::prelude::*;

use super::OptionSpec;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The words that a person typed after the program's name: a verb, its operands, and options
/// anywhere.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// The verb and its operands.
    words: Vec<String>,
    /// The names of options, with their values.
    options: Vec<(&'static str, String)>,
}

impl Arguments {
    /// Reads the arguments of a program. `--help` and `--version` become the first word.
    ///
    /// # Errors
    /// Error 4: an option is unknown or lacks its value, or a word is not UTF-8.
    pub(crate) fn parse(typed: &[OsString], known: &[OptionSpec]) -> Result<Self> {
        let mut arguments = Self::default();
        let mut parser = lexopt::Parser::from_args(typed);
        while let Some(argument) = parser.next().map_err(misread)? {
            match argument {
                Value(word) => arguments.words.push(word.string().map_err(misread)?),
                Long("help") | Short('h') => arguments.words.insert(0, "help".to_owned()),
                Long("version") | Short('V') => arguments.words.insert(0, "version".to_owned()),
                Long(name) => {
                    let Some(spec) = known.iter().find(|spec| spec.name == name) else {
                        return Err(misread(argument.unexpected()));
                    };
                    let value = match spec.value {
                        Some(_) => parser.value().and_then(ValueExt::string).map_err(misread)?,
                        None => String::new(),
                    };
                    arguments.options.push((spec.name, value));
                }
                Short(_) => return Err(misread(argument.unexpected())),
            }
        }
        Ok(arguments)
    }

    /// The first word.
    pub fn verb(&self) -> Option<&str> {
        self.words.first().map(String::as_str)
    }

    /// The words after the verb.
    pub fn operands(&self) -> Vec<&str> {
        self.words.iter().skip(1).map(String::as_str).collect()
    }

    /// The word at a position after the verb, counted from 0.
    pub fn operand(&self, index: usize) -> Option<&str> {
        self.words.get(index + 1).map(String::as_str)
    }

    /// Whether an option was given.
    pub fn has(&self, option: &OptionSpec) -> bool {
        self.given().any(|name| name == option.name)
    }

    /// The value of an option; the last one if it was given twice.
    pub fn value(&self, option: &OptionSpec) -> Option<&str> {
        let given = self.options.iter().rev().find(|(name, _)| *name == option.name);
        given.map(|(_, value)| value.as_str())
    }

    /// The names of the options that were given.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        self.options.iter().map(|(name, _)| *name)
    }
}

/// Error 4 for a mistyped call.
pub fn usage_error(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_ENVIRONMENT, message)
        .advise("the verb help lists verbs and options")
}

/// Error 4 for an operand that should be an address.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn not_an_address(error: impl Display) -> Error {
    Error::new(ErrorCode::INVALID_ENVIRONMENT, error.to_string())
        .advise("name an address such as 10.1.2.3")
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn misread(error: lexopt::Error) -> Error {
    usage_error(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: OptionSpec = OptionSpec::flag("json", "");
    const DIR: OptionSpec = OptionSpec::with_value("dir", "DIR", "");
    const YES: OptionSpec = OptionSpec::flag("yes", "");

    fn parse(typed: &[&str]) -> Result<Arguments> {
        let typed: Vec<OsString> = typed.iter().map(OsString::from).collect();
        Arguments::parse(&typed, &[JSON, DIR])
    }

    #[test]
    fn options_may_be_anywhere() {
        let arguments = parse(&["--dir", "a", "list", "--json", "net", "--dir=b"]).unwrap();
        assert_eq!((arguments.verb(), arguments.operands()), (Some("list"), vec!["net"]));
        assert!(arguments.has(&JSON) && !arguments.has(&YES));
        assert_eq!(arguments.value(&DIR), Some("b"));
        assert_eq!((arguments.operand(0), arguments.operand(1)), (Some("net"), None));
    }

    #[test]
    fn help_and_version_come_first() {
        assert_eq!(parse(&["list", "--help"]).unwrap().verb(), Some("help"));
        assert_eq!(parse(&["-V"]).unwrap().verb(), Some("version"));
    }

    #[test]
    fn unknown_options_are_refused() {
        for typed in [&["--frob"][..], &["-x"], &["--dir"], &["--json=1", "list"]] {
            assert_eq!(parse(typed).unwrap_err().code(), ErrorCode::INVALID_ENVIRONMENT);
        }
    }
}
