//! Checks whether a program keeps what an allocator or a selector promises.
//!
//! ```console
//! $ cargo run --release -p ipam-suites --bin ipam-conformance -- /opt/cni/bin/host-local
//! ```

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{self, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::{env, fs};

use ipam_kit::allocate::Reach;
use ipam_kit::log::print_to_stderr;
use ipam_suites::subject::{Binary, Form, Subject};
use ipam_suites::{Report, allocator_suite, selector_suite};
use serde_json::{Map, Value};

const USAGE: &str = "\
usage: ipam-conformance PROGRAM [--delegate] [--cluster] [--config FILE]
                        [--unclaimed CHECK]... [--skip CHECK]... [--only CHECK]...
       ipam-conformance PROGRAM --selector --config FILE [--unclaimed CHECK]...
       ipam-conformance --list | --help | --version
";

const HELP: &str = "
PROGRAM is one of three kinds:

  an allocator     with --delegate: it gets prevResult.pools, as in a chain
  a selector       with --selector, or named ipam-ds-...: --config FILE makes it choose pools
  standard plugin  without either: it gets ipam.ranges, as a CNI IPAM plugin

The suite calls an allocator with networks and addresses of its own, and with a dataDir and a
stateDir that it removes afterwards. It calls a selector with the configuration of FILE.

options:
  --delegate         PROGRAM is an allocator of a chain: also the checks that a standard plugin
                     cannot pass
  --selector         PROGRAM is a selector
  --cluster          other nodes take leases from its store too: also the checks with two nodes
  --config FILE      a network configuration with the keys that PROGRAM needs, as in
                     {\"ipam\": {\"server\": \"http://[fd00::53]:8080\"}}
  --unclaimed CHECK  the program does not promise this: report it as a difference
  --skip CHECK       do not make this check
  --only CHECK       make only the checks that are named by --only
  --list             the name of each check of an allocator, with --selector of a selector
  -h, --help         this
  -V, --version      the version

A line of the report begins with the name of a check. A check with \"-\" was not made: its line says
which option, or which kind of program, it needs.

exit status: 1 when a check fails, 2 when the suite could not be started.
";

const VERSION: &str = concat!("ipam-conformance ", env!("CARGO_PKG_VERSION"), "\n");

const NO_ADD: &str = "\
ipam-conformance: ADD of one address of each pool fails, so that most checks fail. Its line says why.
A key of `ipam` that PROGRAM needs comes from --config FILE, as in {\"ipam\": {\"KEY\": \"VALUE\"}}.
";

const NO_POOLS: &str = "\
ipam-conformance: ADD answers no pools that are valid, so that most checks fail. Its line says why.
--config FILE needs the keys of `ipam` by which PROGRAM chooses a pool on this machine.
";

/// The kind of program under test.
#[derive(Clone, Copy, PartialEq)]
enum SuiteKind {
    Selector,
    Allocator,
}

impl SuiteKind {
    fn names(self) -> Vec<&'static str> {
        match self {
            Self::Selector => selector_suite::names(),
            Self::Allocator => allocator_suite::names(),
        }
    }

    fn run(self, subject: &Arc<dyn Subject>, unclaimed: &[&str], skipped: &[&str]) -> Report {
        match self {
            Self::Selector => selector_suite::run(subject, unclaimed, skipped),
            Self::Allocator => allocator_suite::run(subject, unclaimed, skipped),
        }
    }

    /// The check without which the others say little, and what to do about it.
    fn first(self) -> (&'static str, &'static str) {
        match self {
            Self::Selector => ("pools_are_valid", NO_POOLS),
            Self::Allocator => ("an_add_gives_one_address_of_each_pool", NO_ADD),
        }
    }
}

struct Options {
    program: PathBuf,
    role: SuiteKind,
    form: Form,
    reach: Reach,
    config: Map<String, Value>,
    unclaimed: Vec<String>,
    skipped: Vec<String>,
    only: Vec<String>,
}

fn main() -> ExitCode {
    let words = ["--list", "--help", "-h", "--version", "-V"];
    match env::args_os().skip(1).find_map(|word| words.into_iter().find(|known| word == *known)) {
        Some("--list") => {
            let is_selector = env::args_os().any(|word| word == "--selector");
            let role = if is_selector { SuiteKind::Selector } else { SuiteKind::Allocator };
            ended(print(&(role.names().join("\n") + "\n")).map(|()| true))
        }
        Some("--help" | "-h") => ended(print(&format!("{USAGE}{HELP}")).map(|()| true)),
        Some("--version" | "-V") => ended(print(VERSION).map(|()| true)),
        _ => ended(Options::parse().and_then(Options::check)),
    }
}

fn ended(well: Result<bool, String>) -> ExitCode {
    match well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            print_to_stderr(&format!("ipam-conformance: {message}\n{USAGE}Try --help.\n"));
            ExitCode::from(2)
        }
    }
}

impl Options {
    fn parse() -> Result<Self, String> {
        use lexopt::prelude::*;
        let mut parser = lexopt::Parser::from_env();
        let mut program = None;
        let (mut role, mut form) = (SuiteKind::Allocator, Form::Standard);
        let (mut reach, mut config) = (Reach::Node, None);
        let [mut unclaimed, mut skipped, mut only] = [const { Vec::new() }; 3];
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            match argument {
                Long("delegate") => form = Form::Delegate,
                Long("selector") => role = SuiteKind::Selector,
                Long("cluster") => reach = Reach::Cluster,
                Long("config") => config = Some(read(&text(&mut parser)?)?),
                Long("unclaimed") => unclaimed.push(text(&mut parser)?),
                Long("skip") => skipped.push(text(&mut parser)?),
                Long("only") => only.push(text(&mut parser)?),
                Value(path) if program.is_none() => program = Some(PathBuf::from(path)),
                other => return Err(other.unexpected().to_string()),
            }
        }
        let program = program.ok_or("PROGRAM is missing")?;
        let program = executable(&program)?;
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("ipam-ds-") {
            role = SuiteKind::Selector;
        }
        if role == SuiteKind::Selector && (form == Form::Delegate || reach == Reach::Cluster) {
            return Err(format!(
                "{name} is a selector: --delegate and --cluster are for allocators"
            ));
        }
        if role == SuiteKind::Selector && config.is_none() {
            return Err(format!("{name} is a selector: name a configuration by --config FILE"));
        }
        let known = role.names();
        let named = [&unclaimed, &skipped, &only].into_iter().flatten();
        if let Some(name) = named.into_iter().find(|name| !known.contains(&name.as_str())) {
            let list = if role == SuiteKind::Selector { "--list --selector" } else { "--list" };
            return Err(format!("unknown check {name}; {list} shows the names"));
        }
        let config = config.unwrap_or_default();
        Ok(Self { program, role, form, reach, config, unclaimed, skipped, only })
    }

    fn check(self) -> Result<bool, String> {
        let folder = env::temp_dir().join(format!("ipam-conformance-{}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let ends = self.check_in(&folder);
        // What is left of it harms nobody.
        let _ = fs::remove_dir_all(&folder);
        ends
    }

    fn check_in(self, folder: &Path) -> Result<bool, String> {
        let others = |name: &&str| !self.only.is_empty() && !self.only.iter().any(|o| o == name);
        let skipped: Vec<&str> = self
            .role
            .names()
            .into_iter()
            .filter(|name| others(name) || self.skipped.iter().any(|skip| skip == name))
            .collect();
        let unclaimed: Vec<&str> = self.unclaimed.iter().map(String::as_str).collect();
        let mut binary = Binary::new(&self.program, self.form, folder)
            .reaching(self.reach)
            .configured(self.config);
        if let Some(path) = env::var_os("PATH") {
            binary = binary.finding(path);
        }
        let subject: Arc<dyn Subject> = Arc::new(binary);
        let report = self.role.run(&subject, &unclaimed, &skipped);
        print(&report.to_string())?;
        if !skipped.is_empty() {
            print(&format!("{} left out by --skip and --only\n", skipped.len()))?;
        }
        let (first, advice) = self.role.first();
        if report.failed().contains(&first) {
            print_to_stderr(advice);
        }
        Ok(report.failed().is_empty())
    }
}

/// A reader that has seen enough closes the pipe, which is not a failure.
fn print(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot print: {error}"))
        }
        _ => Ok(()),
    }
}

/// The absolute path of a program that can be started; a link keeps its name, as a preset must.
fn executable(program: &Path) -> Result<PathBuf, String> {
    let failed = |error| format!("{}: {error}", program.display());
    let path = path::absolute(program).map_err(failed)?;
    let metadata = fs::metadata(&path).map_err(failed)?;
    if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
        return Ok(path);
    }
    Err(format!("{}: not an executable file", program.display()))
}

fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    let value = parser.value().map_err(|error| error.to_string())?;
    value.into_string().map_err(|value| format!("not UTF-8: {}", value.display()))
}

fn read(path: &str) -> Result<Map<String, Value>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{path}: {error}"))
}
