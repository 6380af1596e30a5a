//! What a person types under the name of a preset whose delegate answers it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use serde_json::Map;

use super::plan::is_program;
use super::{Chain, Preset};
use crate::cni::{Environment, Version};
use crate::delegate::Reply;
use crate::error::{Error, ErrorCode, Result};

/// The word by which a delegate prints the configuration that the chain's last program gets; no word
/// at all means that this program is run with it.
const COMPOSE: &str = "ipam";

/// A call without `CNI_COMMAND`.
pub(super) struct Typed<'a> {
    pub chain: &'a Chain,
    pub preset: &'static Preset,
    /// What answers it.
    pub delegate: &'static str,
    pub environment: &'a Environment,
    /// The name this program was called by, a path or not.
    pub called: &'a Path,
}

impl Typed<'_> {
    /// Has the delegate answer, with our stdin, stdout and stderr; ends as it does.
    pub fn answer(&self, words: &[OsString]) -> ExitCode {
        self.run(words).unwrap_or_else(|error| {
            print(Reply::error(Version::NEWEST, &error).stdout.as_bytes());
            ExitCode::FAILURE
        })
    }

    fn run(&self, words: &[OsString]) -> Result<ExitCode> {
        let delegate = self.find(self.delegate)?;
        let mut command = Command::new(&delegate);
        if !matches!(words, []) && words != [COMPOSE] {
            return Err(cannot_start(&delegate, command.args(words).exec()));
        }
        let composing = command.arg(COMPOSE).stdout(Stdio::piped()).spawn();
        let composed = composing.and_then(std::process::Child::wait_with_output);
        let composed = composed.map_err(|error| cannot_start(&delegate, error))?;
        if !composed.status.success() {
            print(&composed.stdout);
            return Ok(ended(composed.status));
        }
        let last = self.last()?;
        let failed = |error| cannot_start(&last, error);
        let mut child = Command::new(&last).stdin(Stdio::piped()).spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // It may end without reading.
            let _ = stdin.write_all(&composed.stdout);
        }
        child.wait().map(ended).map_err(failed)
    }

    /// The chain's last program.
    fn last(&self) -> Result<PathBuf> {
        if let Some(next) = &self.preset.next
            && let Some((name, program)) = next.find(self.environment)?
        {
            if self.chain.own().is(&program) {
                next.preset(self.chain.presets, &name, &program, self.environment)?;
            }
            return Ok(program);
        }
        let chain = self.preset.chain(&Map::new());
        self.find(chain.and_then(|chain| chain.delegates.last()).copied().unwrap_or_default())
    }

    /// Finds a program beside the name we were called by, beside the file that this leads to, or in
    /// `PATH`.
    fn find(&self, name: &str) -> Result<PathBuf> {
        let path = self.environment.text("PATH").unwrap_or_default();
        let path: Vec<PathBuf> = std::env::split_paths(path).collect();
        let called = if self.called.components().count() > 1 {
            Some(self.called.to_owned())
        } else {
            path.iter().map(|folder| folder.join(self.called)).find(|file| is_program(file))
        };
        let beside = [called, std::env::current_exe().ok()].into_iter().flatten();
        let folders = beside.filter_map(|file| file.parent().map(Path::to_owned));
        let found =
            folders.chain(path).map(|folder| folder.join(name)).find(|file| is_program(file));
        found.ok_or_else(|| {
            let called = self.called.display();
            let message = format!("{name} is neither beside {called} nor in PATH");
            Error::new(ErrorCode::IO, message).advise(format!("install {name} there"))
        })
    }
}

fn cannot_start(program: &Path, error: io::Error) -> Error {
    Error::io(format!("cannot start {}", program.display()), error)
}

/// A process' exit status as ours; that of a shell for one that was killed.
fn ended(status: ExitStatus) -> ExitCode {
    let killed = || status.signal().map_or(1, |signal| signal + 128);
    ExitCode::from(u8::try_from(status.code().unwrap_or_else(killed)).unwrap_or(1))
}

fn print(bytes: &[u8]) {
    // A reader that has seen enough closes the pipe.
    let _ = io::stdout().write_all(bytes);
}
