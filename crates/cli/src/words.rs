use std::ffi::OsString;

use lexopt::prelude::*;

use ipam_kit::error::{Error, ErrorCode, Result};

/// What a person typed after the program's name: words in order, and options anywhere.
#[derive(Clone, Debug, Default)]
pub struct Words {
    words: Vec<String>,
    given: Vec<(&'static str, String)>,
}

/// An option that a program understands, written `--name`.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Without the two dashes.
    pub name: &'static str,
    /// What its value is called in the help; `None` for an option that stands alone.
    pub value: Option<&'static str>,
}

impl Words {
    /// Reads the arguments of a program.
    ///
    /// # Errors
    /// An option is not known, lacks its value, or a word is not UTF-8: error 4.
    pub fn parse(arguments: &[OsString], known: &[Known]) -> Result<Self> {
        let mut this = Self::default();
        let mut parser = lexopt::Parser::from_args(arguments);
        let refuse = |error: lexopt::Error| Self::refusal(error.to_string());
        while let Some(argument) = parser.next().map_err(refuse)? {
            let option = match &argument {
                Long(name) => known.iter().find(|known| known.name == *name),
                _ => None,
            };
            match (argument, option) {
                (_, Some(Known { name, value: None })) => this.given.push((name, String::new())),
                (_, Some(Known { name, value: Some(_) })) => {
                    let value = parser.value().and_then(ValueExt::string).map_err(refuse)?;
                    this.given.push((name, value));
                }
                (Value(word), _) => this.words.push(word.string().map_err(refuse)?),
                (Long("help") | Short('h'), _) => this.words.insert(0, "help".to_owned()),
                (Long("version") | Short('V'), _) => this.words.insert(0, "version".to_owned()),
                (other, _) => return Err(refuse(other.unexpected())),
            }
        }
        Ok(this)
    }

    /// The first word: what is to be done.
    pub fn verb(&self) -> Option<&str> {
        self.words.first().map(String::as_str)
    }

    /// The words after the verb.
    pub fn operands(&self) -> Vec<&str> {
        self.words.iter().skip(1).map(String::as_str).collect()
    }

    /// Whether an option was given.
    pub fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(given, _)| *given == name)
    }

    /// The value of an option; the last one counts.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.given.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// Refuses options that the verb has no use for.
    ///
    /// # Errors
    /// Error 4, naming the first such option.
    pub fn only(&self, options: &[&str]) -> Result<()> {
        match self.given.iter().find(|(given, _)| !options.contains(given)) {
            None => Ok(()),
            Some((given, _)) => {
                let verb = self.verb().unwrap_or_default();
                Err(Self::refusal(format!("{verb} has no option --{given}")))
            }
        }
    }

    /// The error for what was typed wrongly.
    pub fn refusal(message: impl Into<String>) -> Error {
        Error::new(ErrorCode::INVALID_ENVIRONMENT, message)
            .advise("the verb help says what is understood")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Known] =
        &[Known { name: "json", value: None }, Known { name: "dir", value: Some("DIR") }];

    fn words(typed: &[&str]) -> Result<Words> {
        Words::parse(&typed.iter().map(OsString::from).collect::<Vec<_>>(), KNOWN)
    }

    #[test]
    fn options_stand_anywhere() {
        let words = words(&["--dir", "a", "list", "--json", "net", "--dir=b"]).unwrap();
        assert_eq!((words.verb(), words.operands()), (Some("list"), vec!["net"]));
        assert!(words.has("json") && !words.has("yes"));
        assert_eq!(words.value("dir"), Some("b"));
        words.only(&["json", "dir"]).unwrap();
        let error = words.only(&["json"]).unwrap_err();
        assert_eq!(error.to_string(), "list has no option --dir");
    }

    #[test]
    fn help_and_version_come_first() {
        assert_eq!(words(&["list", "--help"]).unwrap().verb(), Some("help"));
        assert_eq!(words(&["-V"]).unwrap().verb(), Some("version"));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for typed in [&["--frob"][..], &["-x"], &["--dir"], &["--json=1", "list"]] {
            assert_eq!(words(typed).unwrap_err().code(), ErrorCode::INVALID_ENVIRONMENT);
        }
    }
}
