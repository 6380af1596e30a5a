//! One delegate as a process, which ends in its time whatever it does.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use log::debug;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use serde_json::{Map, Value};

use crate::cni::{Environment, Verb, parse_object};
use crate::delegate::Deadline;
use crate::error::{Error, ErrorCode};

/// A delegate that prints more than this on stdout is killed.
const STDOUT_LIMIT: usize = 1024 * 1024;

/// How much of its stderr an error quotes.
const STDERR_TAIL: usize = 512;

/// One call of a delegate.
pub(super) struct Call<'a> {
    pub name: &'a str,
    pub program: &'a Path,
    pub verb: Verb,
    pub environment: &'a Environment,
    pub stdin: String,
    pub time: Duration,
}

/// A delegate that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: Error,
    /// It did not say what it did, so a claim of it may still commit.
    pub unsure: bool,
}

impl Call<'_> {
    /// Runs the delegate. Its answer is an object, or nothing on the verbs that allow that.
    pub fn run(self) -> Result<Option<Map<String, Value>>, Failure> {
        let began = Instant::now();
        let answer = match self.spawn() {
            Ok(process) => process.attend(&self, began).and_then(|ended| self.read(&ended)),
            Err(error) => Err(Failure {
                error: Error::io(
                    format!("{}: cannot start {}", self.name, self.program.display()),
                    error,
                ),
                unsure: false,
            }),
        };
        let outcome = match &answer {
            Ok(_) => "done".to_owned(),
            Err(failure) => format!("error {}: {}", failure.error.code(), failure.error.in_full()),
        };
        debug!("{} {} in {:?}: {outcome}", self.name, self.verb, began.elapsed());
        answer
    }

    fn spawn(&self) -> io::Result<Process> {
        let spared = children_now();
        let (stdin_reader, stdin) = io::pipe()?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        for end in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        let mut command = Command::new(self.program);
        command.env_clear().envs(self.environment.iter());
        // A little less than is really left, so that a delegate of ours can still say why.
        let told = self.time.saturating_sub(self.time / 20);
        command.env(Deadline::VARIABLE, told.as_millis().to_string());
        command.stdin(stdin_reader).stdout(stdout_writer).stderr(stderr_writer).process_group(0);
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        Ok(Process {
            child,
            pid,
            pidfd,
            spared,
            stdin: Some(stdin),
            stdout: Some(stdout),
            stderr: Some(stderr),
        })
    }

    /// What the ended process amounts to.
    fn read(&self, ended: &Ended) -> Result<Option<Map<String, Value>>, Failure> {
        let fail = |error: Error, unsure| Err(Failure { error: error.within(self.name), unsure });
        let quiet = ended.stdout.iter().all(u8::is_ascii_whitespace);
        let object = match parse_object(&ended.stdout, "its answer") {
            _ if quiet => None,
            Ok(object) => Some(object),
            Err(error) => return fail(ended.explain(error.with_code(ErrorCode::DELEGATE)), true),
        };
        if ended.status.success() {
            if object.is_none() && self.verb == Verb::Add {
                let error = Error::new(ErrorCode::DELEGATE, "it succeeded without an answer");
                return fail(ended.explain(error.advise("ADD must print a result")), true);
            }
            return Ok(object);
        }
        match object {
            Some(object) if object.contains_key("code") => {
                let (error, unsure) = error_of(&object);
                fail(error, unsure)
            }
            _ => {
                let error = Error::new(
                    ErrorCode::DELEGATE,
                    format!("it ended with {} and no error object", ended.status),
                );
                fail(ended.explain(error), true)
            }
        }
    }
}

/// A process that has ended, with what it printed.
struct Ended {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr_tail: Vec<u8>,
}

impl Ended {
    /// Adds how it ended and the end of its stderr.
    fn explain(&self, error: Error) -> Error {
        let mut cause = Vec::new();
        if error.details().is_empty() && self.status.signal().is_some() {
            cause.push(self.status.to_string());
        } else if !error.details().is_empty() {
            cause.push(error.details());
        }
        let tail = String::from_utf8_lossy(&self.stderr_tail);
        if !tail.trim().is_empty() {
            cause.push(format!("stderr: {}", tail.trim()));
        }
        if cause.is_empty() { error } else { error.caused_by(cause.join("; ")) }
    }
}

struct Process {
    child: Child,
    pid: Pid,
    pidfd: Option<OwnedFd>,
    /// Children that were there before: daemons of delegates that have ended well.
    spared: BTreeSet<i32>,
    stdin: Option<PipeWriter>,
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
}

impl Process {
    /// Feeds and reads the process until it ends; kills it with all its descendants when its time
    /// is over or its answer too long.
    fn attend(mut self, call: &Call<'_>, began: Instant) -> Result<Ended, Failure> {
        let mut unsent = call.stdin.as_bytes();
        let mut stdout = Vec::new();
        let mut stderr_tail = Vec::new();
        loop {
            let left = call.time.saturating_sub(began.elapsed());
            if left.is_zero() {
                let error = Error::new(
                    ErrorCode::TIMED_OUT,
                    format!("{}: not done after {:?}, killed", call.name, call.time),
                )
                .advise("look at what it waits for, or raise ipam.timeout or its own timeout");
                return Err(self.kill(error));
            }
            let exited = self.wait(left, !unsent.is_empty());
            unsent = self.feed(unsent);
            read_available(&mut self.stdout, |piece| stdout.extend_from_slice(piece));
            read_available(&mut self.stderr, |piece| {
                relay(piece);
                stderr_tail.extend_from_slice(piece);
                let excess = stderr_tail.len().saturating_sub(STDERR_TAIL);
                stderr_tail.drain(..excess);
            });
            if stdout.len() > STDOUT_LIMIT {
                let error = Error::new(
                    ErrorCode::DELEGATE,
                    format!("{}: it printed more than 1 MiB, killed", call.name),
                );
                return Err(self.kill(error));
            }
            if exited && let Ok(Some(status)) = self.child.try_wait() {
                // What a descendant still prints is not the delegate's answer.
                return Ok(Ended { status, stdout, stderr_tail });
            }
        }
    }

    /// Waits until there is something to do; tells whether the process may have ended.
    fn wait(&self, left: Duration, sending: bool) -> bool {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(4);
        fds.extend(self.stdout.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.stderr.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        if sending {
            fds.extend(self.stdin.iter().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        }
        // Kernels before 5.3 have no pidfd: then the end is looked for often.
        let time = match &self.pidfd {
            Some(pidfd) => {
                fds.push(PollFd::new(pidfd, PollFlags::IN));
                left
            }
            None => left.min(Duration::from_millis(5)),
        };
        let timeout = Timespec::try_from(time).ok();
        let ready = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
        match &self.pidfd {
            Some(_) => ready > 0 && fds.last().is_some_and(|fd| !fd.revents().is_empty()),
            None => true,
        }
    }

    /// Writes what the pipe takes; the rest comes back. A delegate may close its stdin.
    fn feed<'a>(&mut self, mut unsent: &'a [u8]) -> &'a [u8] {
        while let Some(stdin) = &mut self.stdin {
            if unsent.is_empty() {
                self.stdin = None;
                break;
            }
            match stdin.write(unsent) {
                Ok(n) => unsent = &unsent[n..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.stdin = None;
                    unsent = &[];
                }
            }
        }
        unsent
    }

    fn kill(mut self, error: Error) -> Failure {
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
        kill_children(&self.spared);
        Failure { error, unsure: true }
    }
}

/// Makes orphans of delegates children of this process, so that none outlives its time.
pub(super) fn adopt_orphans() {
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        debug!("no child subreaper: {error}");
    }
}

/// Kills and reaps every child but the spared ones, and their children as they become ours.
fn kill_children(spared: &BTreeSet<i32>) {
    let give_up = Instant::now() + Duration::from_secs(2);
    loop {
        let children: Vec<Pid> = children_now()
            .into_iter()
            .filter(|pid| !spared.contains(pid))
            .filter_map(Pid::from_raw)
            .collect();
        if children.is_empty() || Instant::now() > give_up {
            return;
        }
        for pid in &children {
            let _ = rustix::process::kill_process(*pid, Signal::KILL);
        }
        for pid in &children {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let _ = rustix::process::waitid(WaitId::Pid(*pid), options);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// This process' children, by process id.
fn children_now() -> BTreeSet<i32> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // One call instead of a walk through /proc in the common case.
    if matches!(rustix::process::waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD)) {
        return BTreeSet::new();
    }
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return BTreeSet::new();
    };
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// Reads what is there now; the pipe is given up at its end.
fn read_available(pipe: &mut Option<PipeReader>, mut take: impl FnMut(&[u8])) {
    let mut piece = [0; 4096];
    // Bounded, so that a flood does not keep the loop from looking at the clock.
    for _ in 0..64 {
        let Some(reader) = pipe else { return };
        match reader.read(&mut piece) {
            Ok(0) => *pipe = None,
            Ok(n) => take(&piece[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => *pipe = None,
        }
    }
}

/// Passes a piece of a delegate's stderr on, unless that would block.
fn relay(piece: &[u8]) {
    let stderr = io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if matches!(poll(&mut fds, Some(&now)), Ok(1)) && fds[0].revents().contains(PollFlags::OUT) {
        let _ = io::stderr().write_all(piece);
    }
}

/// The delegate's own error, and whether it leaves open what it did.
fn error_of(object: &Map<String, Value>) -> (Error, bool) {
    let code = object.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
    // Zero would tell the runtime that there is no error.
    let code = code.filter(|code| *code > 0);
    let code = code.map_or(ErrorCode::DELEGATE, ErrorCode::new);
    let text = |key| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let message = if text("msg").is_empty() { "an error without a message" } else { text("msg") };
    let mut error = Error::new(code, message);
    if !text("details").is_empty() {
        error = error.caused_by(text("details").to_owned());
    }
    (error, code == ErrorCode::TRY_AGAIN || code == ErrorCode::TIMED_OUT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_never_has_a_code_that_means_success() {
        for code in [json!(0), json!(-1), json!("100"), json!(1_u64 << 32), json!(null)] {
            let object = json!({"code": code, "msg": "m"});
            let (error, unsure) = error_of(object.as_object().unwrap());
            assert_eq!((error.code(), unsure), (ErrorCode::DELEGATE, false), "{object}");
        }
    }
}
