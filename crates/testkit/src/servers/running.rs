//! The process of a server: started with a log of its own, stopped, killed, started again.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::process;

/// How long a server may take until it answers.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What servers written in Go say of a port that another program has.
pub const IN_USE: &str = "address already in use";

/// A process that is killed when this is dropped.
pub struct Running {
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Running {
    /// Nothing yet; what it will print goes to this file.
    pub fn new(log: PathBuf) -> Self {
        Self { log, child: Mutex::default() }
    }

    /// Starts a command that is [`process::tied`], in place of the process before.
    #[track_caller]
    pub fn start(&self, mut command: Command) {
        self.kill();
        let log = File::create(&self.log).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(Stdio::from(log));
        *self.child() = Some(process::spawn(command).unwrap());
    }

    /// Its process id; none while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Stops it: it keeps its connections and answers nothing until [`Running::cont`].
    #[track_caller]
    pub fn stop(&self) {
        let pid = self.signal(Signal::STOP);
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(pid), stopped).unwrap();
        assert!(status.is_some_and(|status| status.stopped()), "it did not stop");
    }

    /// Lets it go on.
    #[track_caller]
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it with SIGKILL and waits until it has gone; nothing where it has gone before.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// What it has printed since it was last started.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until it is ready, or says why it is not.
    pub fn wait(&self, ready: impl Fn() -> Result<(), String>) -> Result<(), String> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let ended = match &mut *self.child() {
                None => return Err("it was not started".to_owned()),
                Some(child) => child.try_wait().unwrap(),
            };
            if let Some(status) = ended {
                return Err(format!("the server ended at once: {status}\n{}", self.end_of_log()));
            }
            match ready() {
                Ok(()) => return Ok(()),
                Err(reason) if Instant::now() > give_up => {
                    let log = self.end_of_log();
                    return Err(format!("the server is not ready: {reason}\n{log}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Starts it again until its ports are free, and waits until it is ready.
    #[track_caller]
    pub fn restart(&self, start: impl Fn(), ready: impl Fn() -> Result<(), String>) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            start();
            match self.wait(&ready) {
                Ok(()) => return,
                // A connection of another program may have the port for a while.
                Err(reason) if reason.contains(IN_USE) && Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(reason) => panic!("{reason}"),
            }
        }
    }

    #[track_caller]
    fn signal(&self, signal: Signal) -> Pid {
        let child = self.child();
        let pid = Pid::from_child(child.as_ref().expect("a server that runs"));
        kill_process(pid, signal).unwrap();
        pid
    }

    fn end_of_log(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
