//! The verbs of a program as a table, which checks typed calls and prints the help.

use std::ffi::OsString;
use std::fmt::Write as _;

use super::{Arguments, OptionSpec, usage_error};
use ipam_kit::error::{Error, ErrorCode, Result};

/// The calls that a program takes from people. `R` runs a verb.
#[derive(Clone, Debug)]
pub struct Cli<R: 'static> {
    /// The program's name.
    pub program: &'static str,
    /// The version that it prints.
    pub version: &'static str,
    /// The beginning of the help, after the program's name.
    pub about: &'static str,
    /// The verbs, beside `help` and `version`.
    pub verbs: Vec<&'static CliVerb<R>>,
    /// The options that every verb takes.
    pub options: &'static [OptionSpec],
    /// The meaning of the operands, at the end of each help.
    pub notes: &'static str,
    /// The end of the program's help.
    pub ending: String,
}

/// A verb that a person types.
#[derive(Clone, Copy, Debug)]
pub struct CliVerb<R> {
    /// The word to type.
    pub name: &'static str,
    /// Its operands: `[X]` may be left out, and `X…` repeated.
    pub operands: &'static [&'static str],
    /// Its description in the help.
    pub about: &'static str,
    /// Its options.
    pub options: &'static [OptionSpec],
    /// The function that runs it.
    pub run: R,
}

/// A person's request.
#[derive(Clone, Debug)]
pub enum CliRequest<R> {
    /// This text: the help, or the version.
    Text(String),
    /// A verb.
    Verb(R, Arguments),
}

impl<R: Copy> Cli<R> {
    /// Parses the words after the program's name.
    ///
    /// # Errors
    /// Error 4: the verb is unknown, an option does not belong to it, or operands are missing or left
    /// over.
    pub fn parse(&self, typed: &[OsString]) -> Result<CliRequest<R>> {
        // The verb of another program is refused before its options.
        if let Some(first) = typed.first().and_then(|word| word.to_str())
            && !first.starts_with('-')
        {
            self.refuse_unknown(first)?;
        }
        let known: Vec<OptionSpec> = self.all_options().map(|(option, _)| option).collect();
        let arguments = Arguments::parse(typed, &known)?;
        // With `--help`, the words after the verb are those of a call.
        let by_option = typed.iter().any(|word| OF_NO_VERB.iter().any(|option| word == option));
        match arguments.verb() {
            None => Ok(CliRequest::Text(self.help())),
            Some("help") => {
                if let Some(extra) = arguments.operand(1).filter(|_| !by_option) {
                    return Err(self.misuse("help [VERB]", &unexpected(extra)));
                }
                match arguments.operand(0) {
                    None | Some("help" | "version") => Ok(CliRequest::Text(self.help())),
                    Some(verb) => Ok(CliRequest::Text(self.help_of(self.find(verb)?))),
                }
            }
            Some("version") => {
                if let Some(extra) = arguments.operand(0).filter(|_| !by_option) {
                    return Err(self.misuse("version", &unexpected(extra)));
                }
                Ok(CliRequest::Text(format!("{} {}\n", self.program, self.version)))
            }
            Some(verb) => {
                let verb = self.find(verb)?;
                self.refuse_misuse(verb, &arguments)?;
                Ok(CliRequest::Verb(verb.run, arguments))
            }
        }
    }

    fn refuse_unknown(&self, verb: &str) -> Result<()> {
        match verb {
            "help" | "version" => Ok(()),
            _ => self.find(verb).map(drop),
        }
    }

    fn find(&self, name: &str) -> Result<&'static CliVerb<R>> {
        let verb = self.verbs.iter().copied().find(|verb| verb.name == name);
        verb.ok_or_else(|| usage_error(format!("unknown verb {name:?}")))
    }

    fn refuse_misuse(&self, verb: &CliVerb<R>, arguments: &Arguments) -> Result<()> {
        let refused = |message: &str| Err(self.misuse(&self.synopsis(verb), message));
        for given in arguments.given() {
            if !self.options_of(verb).any(|option| option.name == given) {
                return refused(&format!("{} does not take --{given}", verb.name));
            }
        }
        let typed = arguments.operands();
        let mut required = verb.operands.iter().filter(|operand| !operand.starts_with('['));
        if let Some(missing) = required.nth(typed.len()) {
            return refused(&format!("{} needs {missing}", verb.name));
        }
        let is_repeated = verb.operands.iter().any(|operand| operand.contains('…'));
        if let Some(extra) = typed.get(verb.operands.len()).filter(|_| !is_repeated) {
            return refused(&unexpected(extra));
        }
        match self.options_of(verb).find(|option| option.required && !arguments.has(option)) {
            None => Ok(()),
            Some(option) => refused(&format!("{} needs {}", verb.name, option.usage())),
        }
    }

    /// Error 4 for a mistyped call, with how to type it.
    fn misuse(&self, synopsis: &str, message: &str) -> Error {
        let advice = format!("usage: {} {synopsis}", self.program);
        Error::new(ErrorCode::INVALID_ENVIRONMENT, message).advise(advice)
    }

    fn options_of(&self, verb: &CliVerb<R>) -> impl Iterator<Item = &'static OptionSpec> {
        verb.options.iter().chain(self.options)
    }

    /// Every option once, with the verbs that have it.
    fn all_options(&self) -> impl Iterator<Item = (OptionSpec, Vec<&'static str>)> {
        let mut all: Vec<(OptionSpec, Vec<&'static str>)> = Vec::new();
        for verb in &self.verbs {
            for option in verb.options {
                match all.iter_mut().find(|(known, _)| known.name == option.name) {
                    Some((_, verbs)) => verbs.push(verb.name),
                    None => all.push((*option, vec![verb.name])),
                }
            }
        }
        let of_every_verb = self.verbs.iter().map(|verb| verb.name);
        all.extend(self.options.iter().map(|option| (*option, of_every_verb.clone().collect())));
        all.into_iter()
    }

    /// Every verb and every option, a line each.
    fn help(&self) -> String {
        let Self { program, about, notes, ending, .. } = self;
        let mut verbs: Vec<[String; 2]> = Vec::new();
        for verb in &self.verbs {
            verbs.push([self.usage_of(verb), verb.about.to_owned()]);
        }
        verbs.push([
            "help [VERB]".to_owned(),
            "shows this text, or the help of one verb".to_owned(),
        ]);
        verbs.push(["version".to_owned(), "shows the version of this program".to_owned()]);
        let mut options: Vec<[String; 2]> = Vec::new();
        for (option, verbs) in self.all_options() {
            let mut about = option.about.to_owned();
            if verbs.len() < self.verbs.len() / 2 {
                let _ = write!(about, " ({})", verbs.join(", "));
            }
            options.push([option.usage(), about]);
        }
        format!(
            "{program} {about}\n\nusage: {program} VERB [OPERAND…] [OPTION…]\n\nverbs:\n{}\n\
             options:\n{}{notes}{ending}",
            in_two_columns(&verbs),
            in_two_columns(&options),
        )
    }

    /// The help of one verb.
    fn help_of(&self, verb: &CliVerb<R>) -> String {
        let Self { program, notes, .. } = self;
        let usage = self.usage_of(verb);
        let mut options: Vec<[String; 2]> = Vec::new();
        for option in self.options_of(verb) {
            options.push([option.usage(), option.about.to_owned()]);
        }
        let options = in_two_columns(&options);
        let about = verb.about;
        format!("{about}\n\nusage: {program} {usage} [OPTION…]\n\noptions:\n{options}{notes}")
    }

    /// The words of a verb and its own options.
    fn synopsis(&self, verb: &CliVerb<R>) -> String {
        let mut synopsis = self.usage_of(verb);
        for option in verb.options.iter().filter(|option| !option.required) {
            let _ = write!(synopsis, " [{}]", option.usage());
        }
        synopsis
    }

    /// The words of a verb: its name, its operands and its required options.
    fn usage_of(&self, verb: &CliVerb<R>) -> String {
        let mut usage = verb.name.to_owned();
        for operand in verb.operands {
            let _ = write!(usage, " {operand}");
        }
        for option in self.options_of(verb).filter(|option| option.required) {
            let _ = write!(usage, " {}", option.usage());
        }
        usage
    }
}

/// The options that need no verb.
const OF_NO_VERB: [&str; 4] = ["--help", "-h", "--version", "-V"];

fn unexpected(word: &str) -> String {
    format!("unexpected word {word:?}")
}

/// Lines of two cells, the second ones below each other.
fn in_two_columns(lines: &[[String; 2]]) -> String {
    let width = lines.iter().map(|[left, _]| left.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for [left, right] in lines {
        let _ = writeln!(text, "  {left:width$}  {right}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: OptionSpec = OptionSpec::with_value("dir", "DIR", "where it is");

    fn cli() -> Cli<u8> {
        const VERBS: &[CliVerb<u8>] = &[
            CliVerb {
                name: "list",
                operands: &["NETWORK"],
                about: "lists",
                options: &[OptionSpec::JSON],
                run: 1,
            },
            CliVerb {
                name: "release",
                operands: &["NETWORK", "[ADDRESS…]"],
                about: "releases",
                options: &[OptionSpec::JSON, OptionSpec::YES, OptionSpec::NODE],
                run: 2,
            },
            CliVerb {
                name: "lint",
                operands: &[],
                about: "lints",
                options: &[OptionSpec::with_value("config", "FILE", "reads FILE").required()],
                run: 3,
            },
        ];
        Cli {
            program: "prog",
            version: "1.2",
            about: "does it.",
            verbs: VERBS.iter().collect(),
            options: &[DIR],
            notes: "\nNETWORK is a name.\n",
            ending: "\nend\n".to_owned(),
        }
    }

    fn parse(typed: &[&str]) -> Result<CliRequest<u8>> {
        cli().parse(&typed.iter().map(OsString::from).collect::<Vec<_>>())
    }

    fn text(typed: &[&str]) -> String {
        let CliRequest::Text(text) = parse(typed).unwrap() else { panic!("{typed:?}") };
        text
    }

    #[test]
    fn verbs_are_found_with_their_operands_and_options() {
        for (typed, run) in [
            (&["list", "net"][..], 1),
            (&["--dir", "d", "list", "net", "--json"], 1),
            (&["release", "net", "--node=n"], 2),
            (&["release", "net", "a", "b", "--yes"], 2),
            (&["lint", "--config", "-"], 3),
        ] {
            let CliRequest::Verb(found, arguments) = parse(typed).unwrap() else {
                panic!("{typed:?}")
            };
            assert_eq!(found, run, "{typed:?} {arguments:?}");
        }
    }

    #[test]
    fn a_mistyped_call_is_refused_with_how_to_type_it() {
        const UNKNOWN: &str = r#"unknown verb "frob""#;
        const HELP: &str = "the verb help lists verbs and options";
        const LIST: &str = "usage: prog list NETWORK [--json]";
        const LINT: &str = "usage: prog lint --config FILE";
        for (typed, message) in [
            (&["frob", "--frob"][..], format!("{UNKNOWN}: {HELP}")),
            (&["--dir", "d", "frob"], format!("{UNKNOWN}: {HELP}")),
            (&["help", "frob"], format!("{UNKNOWN}: {HELP}")),
            (&["--frob"], format!("invalid option '--frob': {HELP}")),
            (&["list", "net", "--yes"], format!("list does not take --yes: {LIST}")),
            (&["list"], format!("list needs NETWORK: {LIST}")),
            (&["list", "a", "b"], format!("unexpected word \"b\": {LIST}")),
            (
                &["release"],
                "release needs NETWORK: usage: prog release NETWORK [ADDRESS…] [--json] [--yes] \
                 [--node NODE]"
                    .to_owned(),
            ),
            (&["lint", "net", "--config", "-"], format!("unexpected word \"net\": {LINT}")),
            (&["lint"], format!("lint needs --config FILE: {LINT}")),
            (
                &["help", "lint", "net"],
                "unexpected word \"net\": usage: prog help [VERB]".to_owned(),
            ),
            (&["version", "net"], "unexpected word \"net\": usage: prog version".to_owned()),
        ] {
            let error = parse(typed).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_ENVIRONMENT);
            assert_eq!(error.in_full(), message, "{typed:?}");
        }
    }

    #[test]
    fn the_help_has_every_verb_and_option() {
        let help = "\
prog does it.

usage: prog VERB [OPERAND…] [OPTION…]

verbs:
  list NETWORK                lists
  release NETWORK [ADDRESS…]  releases
  lint --config FILE          lints
  help [VERB]                 shows this text, or the help of one verb
  version                     shows the version of this program

options:
  --json         print JSON, for programs
  --yes          do it; without --yes the verb only shows what it would do
  --node NODE    instead of ADDRESS: all of a node
  --config FILE  reads FILE
  --dir DIR      where it is

NETWORK is a name.

end
";
        for typed in [
            &[][..],
            &["help"],
            &["--help"],
            &["-h", "--json"],
            &["help", "--help"],
            &["help", "help"],
            &["version", "-h"],
        ] {
            assert_eq!(text(typed), help, "{typed:?}");
        }
        assert_eq!(text(&["version"]), "prog 1.2\n");
    }

    #[test]
    fn the_help_of_a_verb_has_its_options_alone() {
        let help = "\
lints

usage: prog lint --config FILE [OPTION…]

options:
  --config FILE  reads FILE
  --dir DIR      where it is

NETWORK is a name.
";
        for typed in [&["lint", "--help"][..], &["help", "lint"], &["-h", "lint", "net"]] {
            assert_eq!(text(typed), help, "{typed:?}");
        }
    }
}
