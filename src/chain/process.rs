//! A process that is fed, read, and ended in its time.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use log::debug;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

use ipam_kit::cni::Environment;
use ipam_kit::delegate::{Mark, Reply};
use ipam_kit::error::Error;
use ipam_kit::log::to_stderr;
use ipam_kit::text::visible_lines;

/// How much of its stderr an error quotes.
const STDERR_TAIL: usize = 512;

/// A delegate while it runs.
pub(crate) struct Process<'a> {
    child: Child,
    pid: Pid,
    pidfd: Option<OwnedFd>,
    /// Children that were there before: daemons of delegates that have ended well.
    spared: Vec<i32>,
    /// The mark of this call in the environment of its processes.
    mark: Mark,
    began: Instant,
    time: Duration,
    stdout_limit: usize,
    stdin: StdinFeed<'a>,
    stdout: Option<PipeReader>,
    stderr: Option<PipeReader>,
}

/// The program and the input of a process.
pub(crate) struct ProcessSpec<'a> {
    pub program: &'a Path,
    pub arguments: &'a [&'a str],
    pub environment: &'a Environment,
    pub stdin: &'a str,
    /// It is killed when this is over.
    pub time: Duration,
    /// It is killed when it prints more bytes on stdout.
    pub stdout_limit: usize,
}

impl<'a> Process<'a> {
    /// Starts a program in a process group of its own. A delegate of `ipam_kit` dies with the
    /// thread that calls this.
    pub(super) fn start(spec: &ProcessSpec<'a>) -> io::Result<Self> {
        let ProcessSpec { program, arguments, environment, stdin: stdin_text, time, stdout_limit } =
            *spec;
        let began = Instant::now();
        let spared = children_now();
        let (stdin_reader, stdin) = io::pipe()?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        for end in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        // The pipe holds most configurations whole: the delegate never waits for its stdin.
        let mut feed = StdinFeed { pipe: Some(stdin), unsent: stdin_text.as_bytes() };
        feed.feed();
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(environment.iter());
        let mark = Mark::next();
        command.env(Mark::VARIABLE, mark.as_str());
        command.stdin(stdin_reader).stdout(stdout_writer).stderr(stderr_writer).process_group(0);
        let child = spawn(&mut command, time)?;
        let pid = Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        let (stdout, stderr) = (Some(stdout), Some(stderr));
        Ok(Self {
            child,
            pid,
            pidfd,
            spared,
            mark,
            began,
            time,
            stdout_limit,
            stdin: feed,
            stdout,
            stderr,
        })
    }

    /// Waits for its end, and reads its output. If `read` fails, kills the processes that it left
    /// running: they may still take a lease.
    pub(super) fn answer<T, E>(
        &mut self,
        read: impl FnOnce(Result<ProcessOutput, KillReason>) -> Result<T, E>,
    ) -> Result<T, E> {
        let answer = read(self.run_to_end());
        if answer.is_err() {
            kill_children(&self.spared, &self.mark);
        }
        answer
    }

    /// Feeds and reads the process until it ends. Kills it when its time is over or its answer too long.
    fn run_to_end(&mut self) -> Result<ProcessOutput, KillReason> {
        let mut stdout = Vec::new();
        let mut stderr_tail = Vec::new();
        let mut incomplete = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let left = self.time.saturating_sub(self.began.elapsed());
            if left.is_zero() {
                self.kill();
                return Err(KillReason::TimedOut);
            }
            let exited = self.wait(left);
            self.stdin.feed();
            read_available(&mut self.stdout, &mut buffer, |piece| stdout.extend_from_slice(piece));
            read_available(&mut self.stderr, &mut buffer, |piece| {
                pass_on(piece, &mut incomplete);
                stderr_tail.extend_from_slice(piece);
                let excess = stderr_tail.len().saturating_sub(STDERR_TAIL);
                stderr_tail.drain(..excess);
            });
            if stdout.len() > self.stdout_limit {
                self.kill();
                return Err(KillReason::TooLong);
            }
            if exited && let Ok(Some(status)) = self.child.try_wait() {
                if self.pidfd.is_none() {
                    // It may have answered and ended since it was read from.
                    let stdout_pipe = &mut self.stdout;
                    read_available(stdout_pipe, &mut buffer, |piece| {
                        stdout.extend_from_slice(piece)
                    });
                }
                // What a descendant still prints is not the delegate's answer.
                return Ok(ProcessOutput { status, stdout, stderr_tail });
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

    fn kill(&mut self) {
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A delegate's stdin, with the bytes still to send.
struct StdinFeed<'a> {
    /// Closed once all is sent.
    pipe: Option<PipeWriter>,
    unsent: &'a [u8],
}

impl StdinFeed<'_> {
    /// Writes as much as the pipe takes. If the delegate has closed its stdin, drops the rest.
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

/// Why a process was killed.
pub(crate) enum KillReason {
    /// Its time was over.
    TimedOut,
    /// It printed more than an answer may have.
    TooLong,
}

/// The exit status and the output of an ended process.
pub(crate) struct ProcessOutput {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    /// The last bytes of its stderr.
    pub stderr_tail: Vec<u8>,
}

impl ProcessOutput {
    /// The output of a process that gives this answer.
    pub(super) fn of(reply: Reply, stdout_limit: usize) -> Result<Self, KillReason> {
        let stdout = reply.stdout.into_bytes();
        if stdout.len() > stdout_limit {
            return Err(KillReason::TooLong);
        }
        let status = ExitStatus::from_raw(i32::from(reply.exit) << 8);
        Ok(Self { status, stdout, stderr_tail: Vec::new() })
    }

    /// How the process ended: `exit status 3` or `signal 9 (SIGKILL)`.
    pub(super) fn ending(&self) -> String {
        self.status.to_string().replacen(": ", " ", 1)
    }

    /// Adds the end of its stderr to the causes of an error that has no advice yet.
    pub(super) fn with_stderr(&self, error: Error) -> Error {
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

/// Starts a program, which an installer may be writing at this moment.
fn spawn(command: &mut Command, time: Duration) -> io::Result<Child> {
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

/// Makes orphans of delegates children of this process, so that none outlives its time.
pub(crate) fn adopt_orphans() {
    if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        debug!("no child subreaper: {error}");
    }
}

/// Kills and reaps every child but the spared ones and those of other calls, and their children as
/// they become ours.
fn kill_children(spared: &[i32], mark: &Mark) {
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

/// Whether a process has the mark of another call: it is the daemon of an earlier delegate.
fn is_of_another_call(pid: i32, mark: &Mark) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let marked = environ
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(Mark::VARIABLE.as_bytes())?.strip_prefix(b"="));
    marked.is_some_and(|other| other != mark.as_str().as_bytes())
}

/// This process' children, by process id.
fn children_now() -> Vec<i32> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // One call instead of a walk through /proc in the common case.
    if matches!(rustix::process::waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD)) {
        return Vec::new();
    }
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// Passes a piece of a delegate's stderr on, with control characters escaped. The bytes of a character
/// that ends in the next piece wait in `incomplete`.
fn pass_on(piece: &[u8], incomplete: &mut Vec<u8>) {
    incomplete.extend_from_slice(piece);
    let whole = match std::str::from_utf8(incomplete) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => incomplete.len(),
    };
    let complete: Vec<u8> = incomplete.drain(..whole).collect();
    to_stderr(visible_lines(&String::from_utf8_lossy(&complete)).as_bytes());
}

/// Reads the available bytes, and closes the pipe at its end.
fn read_available(pipe: &mut Option<PipeReader>, buffer: &mut [u8], mut take: impl FnMut(&[u8])) {
    // Bounded, so that a flood does not keep the loop from looking at the clock.
    for _ in 0..64 {
        let Some(reader) = pipe else { return };
        match reader.read(buffer) {
            Ok(0) => *pipe = None,
            Ok(n) => take(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => *pipe = None,
        }
    }
}
