//! The daemons that tests start: stopped, killed, started again. Nothing is left of one that is
//! dropped.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use super::process;

/// How long a daemon may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// What servers say of a port that another program has, in lower case.
const IN_USE: &str = "address already in use";

/// What one kind of server has of its own.
pub trait Server: Sized + Sync {
    fn program() -> PathBuf;

    /// Adds to the command of its program what it needs.
    fn configure(daemon: &Daemon<Self>, command: &mut Command);

    fn serves_tls(&self) -> bool;

    /// Whether this very server, and no other on its port, can be asked anything.
    fn ready(daemon: &Daemon<Self>) -> Result<(), String>;
}

/// Where a daemon runs.
pub struct Place {
    /// Its name, which no other daemon has.
    pub name: String,
    pub namespace: Option<PathBuf>,
    /// Where clients reach it.
    pub client: SocketAddr,
}

impl Place {
    /// Outside of all namespaces.
    pub fn at(client: SocketAddr) -> Self {
        Self { name: process::unique(), namespace: None, client }
    }
}

/// A server that runs, with a folder of its own. It is killed and the folder is removed when this
/// is dropped.
pub struct Daemon<S> {
    place: Place,
    child: Mutex<Option<Child>>,
    server: S,
    folder: TempDir,
}

impl<S: Server> Daemon<S> {
    /// A daemon that is not started yet.
    pub(crate) fn new(place: Place, server: S) -> Self {
        Self { place, child: Mutex::default(), server, folder: process::folder() }
    }

    /// The first that has got its ports, as soon as it answers.
    #[track_caller]
    pub(crate) fn first_ready(launch: impl Fn() -> Self) -> Self {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let daemon = launch();
            match daemon.wait() {
                Ok(()) => return daemon,
                // Another program took a port between our looking and the daemon's listening.
                Err(reason) if is_in_use(&reason) && attempts < 10 => {}
                Err(reason) => panic!("{reason}"),
            }
        }
    }

    /// The endpoint with `http://`, or with `https://` where it serves TLS.
    pub fn url(&self) -> String {
        let scheme = if self.server.serves_tls() { "https" } else { "http" };
        format!("{scheme}://{}", self.place.client)
    }

    /// Kills it, starts it again with the same ports and data, and waits until it answers. A member
    /// of a cluster answers when most members do.
    #[track_caller]
    pub fn restart(&self) {
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.launch_again();
            match self.wait() {
                Ok(()) => return,
                // A connection of another program may have the port for a while.
                Err(reason) if is_in_use(&reason) && Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(reason) => panic!("{reason}"),
            }
        }
    }

    /// As [`Daemon::restart`], without waiting: for a member while most others are away.
    #[track_caller]
    pub fn launch_again(&self) {
        self.kill();
        let mut command = process::tied(&S::program(), self.place.namespace.as_deref());
        S::configure(self, &mut command);
        let log = File::create(self.path("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(Stdio::from(log));
        *self.child() = Some(process::spawn(command).unwrap());
    }

    /// Waits until it answers.
    #[track_caller]
    pub fn until_ready(&self) {
        self.wait().unwrap_or_else(|reason| panic!("{reason}"));
    }

    /// Waits until it answers, or says why it does not.
    fn wait(&self) -> Result<(), String> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let ended = match &mut *self.child() {
                None => return Err("it was not started".to_owned()),
                Some(child) => child.try_wait().unwrap(),
            };
            if let Some(status) = ended {
                return Err(format!("the server ended at once: {status}\n{}", self.end_of_log()));
            }
            match S::ready(self) {
                Ok(()) => return Ok(()),
                Err(reason) if Instant::now() > give_up => {
                    let log = self.end_of_log();
                    return Err(format!("the server is not ready: {reason}\n{log}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl<S> Daemon<S> {
    /// `ADDRESS:PORT` for clients.
    pub fn endpoint(&self) -> String {
        self.place.client.to_string()
    }

    pub fn address(&self) -> SocketAddr {
        self.place.client
    }

    /// The name it gave itself.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its process id; none while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// Stops its process, which keeps its connections and answers nothing until [`Daemon::cont`].
    #[track_caller]
    pub fn stop(&self) {
        let pid = self.signal(Signal::STOP);
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(pid), stopped).unwrap();
        assert!(status.is_some_and(|status| status.stopped()), "it did not stop");
    }

    /// Lets a stopped process go on.
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

    /// What it has logged since it was last started.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("log")).unwrap_or_default()).into_owned()
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

fn is_in_use(reason: &str) -> bool {
    reason.to_lowercase().contains(IN_USE)
}

impl<S> Deref for Daemon<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.server
    }
}

impl<S> Drop for Daemon<S> {
    fn drop(&mut self) {
        self.kill();
    }
}
