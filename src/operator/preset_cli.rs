//! A call without `CNI_COMMAND` under the name of a preset whose delegate answers it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use crate::chain::program::{path_folders, search};
use crate::chain::{Chain, Preset};
use ipam_kit::cni::{Environment, Version};
use ipam_kit::delegate::Reply;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The argument by which a delegate prints the configuration that the chain's last program gets. A
/// call without arguments runs this program with it.
const COMPOSE: &str = "ipam";

/// A person's call of a preset.
pub(crate) struct PresetCli<'a> {
    pub chain: &'a Chain,
    pub preset: &'static Preset,
    /// The delegate that answers.
    pub delegate: &'static str,
    pub environment: &'a Environment,
    /// argv\[0\]: a path, or a name.
    pub called_as: &'a Path,
}

impl PresetCli<'_> {
    /// Runs the delegate with our stdin, stdout and stderr, and ends as it does.
    pub(crate) fn run(&self, arguments: &[OsString]) -> ExitCode {
        self.run_delegate(arguments).unwrap_or_else(|error| {
            print(Reply::error(Version::NEWEST, &error).stdout.as_bytes());
            print(b"\n");
            ExitCode::FAILURE
        })
    }

    fn run_delegate(&self, arguments: &[OsString]) -> Result<ExitCode> {
        let delegate = self.find(self.delegate)?;
        if !arguments.is_empty() && arguments != [COMPOSE] {
            return run_program(&delegate, arguments);
        }
        let (exit_code, composed) = capture_output(&delegate, COMPOSE)?;
        if exit_code == ExitCode::SUCCESS
            && let Some(program) = self.last_program()?
        {
            return feed_program(&program, &composed);
        }
        print(&composed);
        Ok(exit_code)
    }

    /// The program of the host's file; `None` for a preset or an allocator `ipam-da-*`, which would
    /// only print what it is.
    fn last_program(&self) -> Result<Option<PathBuf>> {
        let Some(host) = &self.preset.host_program else { return Ok(None) };
        host.find_standalone(
            self.chain.names.presets,
            self.chain.own_executable(),
            self.environment,
        )
    }

    /// Finds a program beside argv\[0\], beside the file that this is a link to, or in `PATH`.
    fn find(&self, name: &str) -> Result<PathBuf> {
        let mut folders = path_folders(self.environment);
        let called_file = if self.called_as.components().count() == 1 {
            search(&folders, self.called_as)
        } else {
            Some(self.called_as.to_owned())
        };
        for file in [std::env::current_exe().ok(), called_file].into_iter().flatten() {
            folders.splice(0..0, file.parent().map(Path::to_owned));
        }
        search(&folders, name.as_ref()).ok_or_else(|| {
            let called_as = self.called_as.to_string_lossy();
            Error::new(ErrorCode::IO, format!("{name} is neither beside {called_as} nor in PATH"))
                .advise("install both from one build")
        })
    }
}

/// Runs a program with our stdin and stdout.
fn run_program(program: &Path, arguments: &[OsString]) -> Result<ExitCode> {
    let status = Command::new(program).args(arguments).status();
    status.map(exit_code).map_err(|error| cannot_run(program, error))
}

/// Runs a program with our stdin, and takes its stdout.
fn capture_output(program: &Path, argument: &str) -> Result<(ExitCode, Vec<u8>)> {
    let mut command = Command::new(program);
    command.arg(argument).stdout(Stdio::piped());
    let mut output = Vec::new();
    let status = command.spawn().and_then(|mut child| {
        if let Some(pipe) = child.stdout.take() {
            File::from(OwnedFd::from(pipe)).read_to_end(&mut output)?;
        }
        child.wait()
    });
    let status = status.map_err(|error| cannot_run(program, error))?;
    Ok((exit_code(status), output))
}

/// Runs a program with this stdin and our stdout.
fn feed_program(program: &Path, stdin: &[u8]) -> Result<ExitCode> {
    let spawned = Command::new(program).stdin(Stdio::piped()).spawn();
    let status = spawned.and_then(|mut child| {
        if let Some(pipe) = child.stdin.take() {
            // It may end without reading.
            let _ = File::from(OwnedFd::from(pipe)).write_all(stdin);
        }
        child.wait()
    });
    status.map(exit_code).map_err(|error| cannot_run(program, error))
}

/// The exit status, or that of a shell for a program that was killed.
fn exit_code(status: ExitStatus) -> ExitCode {
    let killed = status.signal().map_or(1, |signal| signal + 128);
    ExitCode::from(u8::try_from(status.code().unwrap_or(killed)).unwrap_or(1))
}

fn cannot_run(program: &Path, error: io::Error) -> Error {
    Error::io(format!("cannot run {}", program.display()), error)
}

fn print(bytes: &[u8]) {
    // A reader that has seen enough closes the pipe.
    let _ = io::stdout().write_all(bytes);
}
