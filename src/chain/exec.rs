//! One delegate as a process, which ends in its time whatever it does.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use log::debug;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use serde_json::{Map, Value};

use crate::cni::{Environment, Verb, parse_object};
use crate::delegate::Deadline;
use crate::error::{Error, ErrorCode};
use crate::log::to_stderr;

/// A delegate that prints more than this on stdout is killed.
const STDOUT_LIMIT: usize = 1024 * 1024;

/// How much of its stderr an error quotes.
const STDERR_TAIL: usize = 512;

/// The variable that tells the processes of one call from those of another.
const MARK: &str = "IPAM_DELEGATED_CALL";
/// What to do about a delegate that does not say what is wrong.
const RUN_IT: &str = "run it by hand with the same input: it must print one JSON object on stdout, and logs on stderr";

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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, unsure: false }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
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
                )
                .advise("reinstall it, for this machine's architecture"),
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

    fn spawn(&self) -> io::Result<Process<'_>> {
        let spared = children_now();
        let (stdin_reader, stdin) = io::pipe()?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        for end in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        // The pipe holds most configurations whole: the delegate never waits for its stdin.
        let mut stdin = Feed { pipe: Some(stdin), unsent: self.stdin.as_bytes() };
        stdin.feed();
        let mut command = Command::new(self.program);
        command.env_clear().envs(self.environment.iter());
        // A little less than is really left, so that a delegate of ours can still say why.
        let told = self.time.saturating_sub(self.time / 20);
        command.env(Deadline::VARIABLE, told.as_millis().to_string());
        let mark = next_mark();
        command.env(MARK, &mark);
        command.stdin(stdin_reader).stdout(stdout_writer).stderr(stderr_writer).process_group(0);
        let child = start(&mut command, self.time)?;
        let pid = Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        let (stdout, stderr) = (Some(stdout), Some(stderr));
        Ok(Process { child, pid, pidfd, spared, mark, stdin, stdout, stderr })
    }

    /// What the ended process amounts to.
    fn read(&self, ended: &Ended) -> Result<Option<Map<String, Value>>, Failure> {
        let fail = |error: Error, unsure| Err(Failure { error: error.within(self.name), unsure });
        let quiet = ended.stdout.iter().all(u8::is_ascii_whitespace);
        let object = match parse_object(&ended.stdout, "its answer") {
            _ if quiet => None,
            Ok(object) => Some(object),
            Err(mut error) => {
                if !ended.status.success() {
                    error = error.within(format_args!("it ended with {}", ended.status));
                }
                let error = ended.explain(error.with_code(ErrorCode::DELEGATE));
                return fail(error.advise(RUN_IT), true);
            }
        };
        if ended.status.success() {
            match &object {
                None if self.verb == Verb::Add => {
                    let error = Error::new(ErrorCode::DELEGATE, "it succeeded without an answer");
                    return fail(ended.explain(error).advise("ADD must print a result"), true);
                }
                // Whether it holds something is anybody's guess.
                Some(object) if object.contains_key("code") && object.contains_key("msg") => {
                    let (error, _) = error_of(object);
                    let advice =
                        format!("it ended with {}: an error must end with 1", ended.status);
                    return fail(error.advise(advice), true);
                }
                _ => return Ok(object),
            }
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
                fail(ended.explain(error).advise(RUN_IT), true)
            }
        }
    }
}

/// Starts a program, which an installer may be writing at this moment.
fn start(command: &mut Command, time: Duration) -> io::Result<Child> {
    let give_up = Instant::now() + time.min(Duration::from_secs(1));
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < give_up =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
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
    /// Adds the end of its stderr to the causes of an error that has no advice yet.
    fn explain(&self, error: Error) -> Error {
        let tail = String::from_utf8_lossy(&self.stderr_tail);
        if tail.trim().is_empty() {
            return error;
        }
        let stderr = format!("stderr: {}", tail.trim());
        let details = error.details();
        let causes = if details.is_empty() { stderr } else { format!("{details}; {stderr}") };
        error.caused_by(causes)
    }
}

struct Process<'a> {
    child: Child,
    pid: Pid,
    pidfd: Option<OwnedFd>,
    /// Children that were there before: daemons of delegates that have ended well.
    spared: BTreeSet<i32>,
    /// What the processes of this call carry in their environment.
    mark: String,
    stdin: Feed<'a>,
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
}

impl Process<'_> {
    /// Feeds and reads the process until it ends; kills it with all its descendants when its time
    /// is over or its answer too long.
    fn attend(mut self, call: &Call<'_>, began: Instant) -> Result<Ended, Failure> {
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
            let exited = self.wait(left);
            self.stdin.feed();
            read_available(&mut self.stdout, |piece| stdout.extend_from_slice(piece));
            read_available(&mut self.stderr, |piece| {
                to_stderr(piece);
                stderr_tail.extend_from_slice(piece);
                let excess = stderr_tail.len().saturating_sub(STDERR_TAIL);
                stderr_tail.drain(..excess);
            });
            if stdout.len() > STDOUT_LIMIT {
                let error = Error::new(
                    ErrorCode::DELEGATE,
                    format!("{}: it printed more than 1 MiB, killed", call.name),
                )
                .advise("an answer is one JSON object; logs belong on stderr");
                return Err(self.kill(error));
            }
            if exited && let Ok(Some(status)) = self.child.try_wait() {
                // What a descendant still prints is not the delegate's answer.
                return Ok(Ended { status, stdout, stderr_tail });
            }
        }
    }

    /// Waits until there is something to do; tells whether the process may have ended.
    fn wait(&self, left: Duration) -> bool {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(2);
        fds.extend(self.stdin.pipe.iter().map(|fd| PollFd::new(fd, PollFlags::OUT)));
        fds.extend(self.pidfd.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // An answer that fits the pipe waits there: waking up for each piece of it would cost more
        // than all the rest. Kernels before 5.3 have no pidfd: there the end is looked for often.
        let tick = if self.pidfd.is_some() { 20 } else { 2 };
        let timeout = Timespec::try_from(left.min(Duration::from_millis(tick))).ok();
        let ready = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
        match &self.pidfd {
            Some(_) => ready > 0 && fds.last().is_some_and(|fd| !fd.revents().is_empty()),
            None => true,
        }
    }

    fn kill(mut self, error: Error) -> Failure {
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
        kill_children(&self.spared, &self.mark);
        Failure { error, unsure: true }
    }
}

/// A delegate's stdin and what it has not got yet.
struct Feed<'a> {
    /// Closed once all is sent.
    pipe: Option<PipeWriter>,
    unsent: &'a [u8],
}

impl Feed<'_> {
    /// Writes what the pipe takes. A delegate may close its stdin: then the rest is dropped.
    fn feed(&mut self) {
        while let Some(pipe) = &mut self.pipe {
            if self.unsent.is_empty() {
                self.pipe = None;
                return;
            }
            match pipe.write(self.unsent) {
                Ok(n) => self.unsent = &self.unsent[n..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}

/// Makes orphans of delegates children of this process, so that none outlives its time.
pub(super) fn adopt_orphans() {
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        debug!("no child subreaper: {error}");
    }
}

/// Kills and reaps every child but the spared ones and those of other calls, and their children as
/// they become ours.
fn kill_children(spared: &BTreeSet<i32>, mark: &str) {
    let give_up = Instant::now() + Duration::from_secs(2);
    loop {
        let children: Vec<Pid> = children_now()
            .into_iter()
            .filter(|pid| !spared.contains(pid) && !is_of_another_call(*pid, mark))
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

/// Whether a process carries the mark of another call: a daemon of an earlier delegate, which may
/// have made it only after it had ended itself.
fn is_of_another_call(pid: i32, mark: &str) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let marked = environ
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="));
    marked.is_some_and(|other| other != mark.as_bytes())
}

/// A mark no other call of this process has.
fn next_mark() -> String {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    format!("{}.{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed))
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
