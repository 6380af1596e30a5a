//! Checks whether a program keeps what an allocator promises.
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
use ipam_suites::allocator_suite::{names, run};
use ipam_suites::subject::{Binary, Form, Subject};
use serde_json::{Map, Value};

const USAGE: &str = "\
usage: ipam-conformance PROGRAM [--delegate] [--cluster] [--config FILE]
                        [--unclaimed CHECK]... [--skip CHECK]... [--only CHECK]...
       ipam-conformance --list | --help | --version
";

const HELP: &str = "
PROGRAM is a standard CNI IPAM plugin (ipam.ranges) or, with --delegate, a delegate of a chain
(prevResult.pools). The suite calls it with networks and addresses of its own, and with a dataDir
and a stateDir that are removed afterwards.

options:
  --delegate         PROGRAM is a delegate: also the checks that a standard plugin cannot pass
  --cluster          other nodes take leases from its store too: also the checks with two nodes
  --config FILE      a network configuration with the further keys that it needs, as in
                     {\"ipam\": {\"server\": \"http://[fd00::53]:8080\"}}
  --unclaimed CHECK  the program does not promise this: report it as a difference
  --skip CHECK       do not make this check
  --only CHECK       make only the checks that are named by --only
  --list             the name of each check
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

struct Options {
    program: PathBuf,
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
        Some("--list") => ended(print(&(names().join("\n") + "\n")).map(|()| true)),
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
            eprintln!("ipam-conformance: {message}\n{USAGE}Try --help.");
            ExitCode::from(2)
        }
    }
}

impl Options {
    fn parse() -> Result<Self, String> {
        use lexopt::prelude::*;
        let mut parser = lexopt::Parser::from_env();
        let mut program = None;
        let (mut form, mut reach, mut config) = (Form::Standard, Reach::Node, Map::new());
        let [mut unclaimed, mut skipped, mut only] = [const { Vec::new() }; 3];
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            match argument {
                Long("delegate") => form = Form::Delegate,
                Long("cluster") => reach = Reach::Cluster,
                Long("config") => config = read(&text(&mut parser)?)?,
                Long("unclaimed") => unclaimed.push(check(&mut parser)?),
                Long("skip") => skipped.push(check(&mut parser)?),
                Long("only") => only.push(check(&mut parser)?),
                Value(path) if program.is_none() => program = Some(PathBuf::from(path)),
                other => return Err(other.unexpected().to_string()),
            }
        }
        let program = program.ok_or("PROGRAM is missing")?;
        let program = executable(&program)?;
        Ok(Self { program, form, reach, config, unclaimed, skipped, only })
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
        let skipped: Vec<&str> = names()
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
        let report = run(&subject, &unclaimed, &skipped);
        print(&report.to_string())?;
        if !skipped.is_empty() {
            print(&format!("{} left out by --skip and --only\n", skipped.len()))?;
        }
        if report.failed().contains(&"an_add_gives_one_address_of_each_pool") {
            eprint!("{NO_ADD}");
        }
        Ok(report.failed().is_empty())
    }
}

/// A reader that has seen enough closes the pipe: that is no failure.
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

/// The name of a check.
fn check(parser: &mut lexopt::Parser) -> Result<String, String> {
    let name = text(parser)?;
    if names().contains(&name.as_str()) {
        return Ok(name);
    }
    Err(format!("unknown check {name}; --list shows the names"))
}

fn read(path: &str) -> Result<Map<String, Value>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{path}: {error}"))
}
