//! What a person types under the name of a preset whose delegate answers it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::chain::next::LastDelegate;
use crate::chain::program::{is_allocator, path_folders, search};
use crate::chain::{Chain, Preset};
use ipam_kit::cni::{Environment, Version};
use ipam_kit::delegate::Reply;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The word by which a delegate prints the configuration that the chain's last program gets; no word
/// at all means that this program is run with it.
const COMPOSE: &str = "ipam";

/// A call without `CNI_COMMAND`.
pub(crate) struct PresetCli<'a> {
    pub chain: &'a Chain,
    pub preset: &'static Preset,
    /// What answers it.
    pub delegate: &'static str,
    pub environment: &'a Environment,
    /// The name this program was called by, a path or not.
    pub called: &'a Path,
}

impl PresetCli<'_> {
    /// Has the delegate answer, with our stdin, stdout and stderr; ends as it does.
    pub(crate) fn answer(&self, words: &[OsString]) -> ExitCode {
        self.run(words).unwrap_or_else(|error| {
            print(Reply::error(Version::NEWEST, &error).stdout.as_bytes());
            print(b"\n");
            ExitCode::FAILURE
        })
    }

    fn run(&self, words: &[OsString]) -> Result<ExitCode> {
        let delegate = self.find(self.delegate)?;
        if !words.is_empty() && words != [COMPOSE] {
            return run_to_end(&delegate, words, None, None);
        }
        let mut composed = Vec::new();
        let ended = run_to_end(&delegate, &[COMPOSE.into()], None, Some(&mut composed))?;
        if ended != ExitCode::SUCCESS {
            print(&composed);
            return Ok(ended);
        }
        match self.last_program()? {
            Some(program) => run_to_end(&program, &[], Some(&composed), None),
            None => {
                print(&composed);
                Ok(ended)
            }
        }
    }

    /// The program of the host's file; `None` for a preset or an allocator of ours, which would only say
    /// what it is.
    fn last_program(&self) -> Result<Option<PathBuf>> {
        let Some(host) = &self.preset.host_program else { return Ok(None) };
        match host.find(self.chain.presets, self.chain.own(), self.environment)? {
            Some(LastDelegate::Program { name, path }) if !is_allocator(&name) => Ok(Some(path)),
            _ => Ok(None),
        }
    }

    /// Finds a program beside the name we were called by, beside the file that this leads to, or in
    /// `PATH`.
    fn find(&self, name: &str) -> Result<PathBuf> {
        let mut path = path_folders(self.environment);
        let mut called = Some(self.called.to_owned());
        if self.called.components().count() == 1 {
            called = search(&path, self.called);
        }
        for file in [std::env::current_exe().ok(), called].into_iter().flatten() {
            path.splice(0..0, file.parent().map(Path::to_owned));
        }
        search(&path, name.as_ref()).ok_or_else(|| {
            let called = self.called.to_string_lossy();
            let message = [name, " is neither beside ", &called, " nor in PATH"].concat();
            Error::new(ErrorCode::IO, message).advise("install both from one build")
        })
    }
}

/// Runs a program to its end with these words; `given` is its stdin, else it has ours, and `taken` gets
/// its stdout, else that is ours. Gives its exit status, that of a shell for one that was killed.
fn run_to_end(
    program: &Path,
    words: &[OsString],
    given: Option<&[u8]>,
    taken: Option<&mut Vec<u8>>,
) -> Result<ExitCode> {
    let mut command = Command::new(program);
    command.args(words);
    if given.is_some() {
        command.stdin(Stdio::piped());
    }
    if taken.is_some() {
        command.stdout(Stdio::piped());
    }
    let run = || {
        let mut child = command.spawn()?;
        if let (Some(given), Some(pipe)) = (given, child.stdin.take()) {
            // It may end without reading.
            let _ = File::from(OwnedFd::from(pipe)).write_all(given);
        }
        if let (Some(taken), Some(pipe)) = (taken, child.stdout.take()) {
            File::from(OwnedFd::from(pipe)).read_to_end(taken)?;
        }
        child.wait()
    };
    let status = run();
    let status = status
        .map_err(|error| Error::io(["cannot run ", &program.to_string_lossy()].concat(), error))?;
    let killed = status.signal().map_or(1, |signal| signal + 128);
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(killed)).unwrap_or(1)))
}

fn print(bytes: &[u8]) {
    // A reader that has seen enough closes the pipe.
    let _ = io::stdout().write_all(bytes);
}
