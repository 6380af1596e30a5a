//! The subject of the allocator suite: an allocator in this process, or any program.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value, json};

use super::between::CallBetween;
use super::memory::MemoryStore;
use ipam_kit::allocate::Reach;
use ipam_kit::cni::Environment;
use ipam_kit::delegate::{Deadline, Delegate, answer};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::Settings;

/// A subject that answers the verbs of CNI as an allocator.
pub trait Subject: Send + Sync {
    /// The form in which it gets its pools.
    fn form(&self) -> Form;

    /// The nodes that take leases from its store.
    fn reach(&self) -> Reach;

    /// The network configuration that every call is made of; the suite sets `cniVersion`, `name`,
    /// `prevResult` and what says which addresses to give.
    fn config(&self) -> Map<String, Value>;

    /// One call.
    ///
    /// # Errors
    /// It could not be made.
    fn answer(&self, environment: Environment, stdin: &[u8]) -> Result<CallOutput>;

    /// Calls `between` inside the next call, after it has looked and before it changes anything.
    /// False where that cannot be done.
    fn interleave(&self, between: CallBetween) -> bool {
        drop(between);
        false
    }

    /// Makes every lease look older. False where that cannot be done.
    fn age(&self, _by: Duration) -> bool {
        false
    }

    /// Whether it keeps an address for a sticky name: then the suite makes the checks of names.
    fn keeps_names(&self) -> bool {
        false
    }

    /// Whether it knows when addresses were freed: then the suite makes the checks of cooldowns.
    fn rests_freed(&self) -> bool {
        false
    }

    /// The name of a pool that the store itself knows, for this network alone: 10.1.2.0/28 with the
    /// gateway 10.1.2.1. `None` if the store chooses no addresses; else the suite makes the checks
    /// of choices.
    fn store_pool(&self, _network: &str) -> Option<String> {
        None
    }

    /// Makes a call and kills it that long after its start. False where that cannot be done.
    fn kill_during(&self, _environment: Environment, _stdin: &[u8], _after: Duration) -> bool {
        false
    }
}

/// The form in which an allocator gets its pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By `prevResult.pools`: a delegate of a chain.
    Delegate,
    /// By `ipam.ranges`: a standard IPAM plugin, read as host-local reads it.
    Standard,
}

/// The answer of a call.
#[derive(Clone, Debug)]
pub struct CallOutput {
    /// Whether the exit status is 0.
    pub success: bool,
    /// One JSON object, or nothing.
    pub stdout: String,
    /// The output of a program for people.
    pub stderr: String,
}

/// A delegate in this process.
pub struct InProcess<D> {
    delegate: D,
    ipam: Value,
    reach: Reach,
    store: Option<MemoryStore>,
    between: Option<fn(CallBetween) -> bool>,
    aging: Option<Aging>,
    keeps_names: bool,
    rests_freed: bool,
    store_pool: Option<fn(&str) -> String>,
    settings: Settings,
}

/// Makes the leases of a store look older.
type Aging = Box<dyn Fn(Duration) + Send + Sync>;

impl<D: Delegate + Send + Sync> InProcess<D> {
    /// A delegate, with the keys of `ipam` that it reads.
    pub fn new(delegate: D, reach: Reach, ipam: Value) -> Self {
        let settings = Settings::default();
        Self {
            delegate,
            ipam,
            reach,
            store: None,
            between: None,
            aging: None,
            keeps_names: false,
            rests_freed: false,
            store_pool: None,
            settings,
        }
    }

    /// Lets the suite come between by this function, such as
    /// [`next_commit`](super::between::next_commit).
    #[must_use]
    pub fn interleaved(mut self, between: fn(CallBetween) -> bool) -> Self {
        self.between = Some(between);
        self
    }

    /// Lets the suite age the leases by this function.
    #[must_use]
    pub fn aging(mut self, age: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        self.aging = Some(Box::new(age));
        self
    }

    /// Lets the suite make the checks of sticky names.
    #[must_use]
    pub fn keeping_names(mut self) -> Self {
        self.keeps_names = true;
        self
    }

    /// Lets the suite make the checks of cooldowns.
    #[must_use]
    pub fn resting(mut self) -> Self {
        self.rests_freed = true;
        self
    }

    /// Lets the suite make the checks of choices, in the pools that this names for networks.
    #[must_use]
    pub fn choosing(mut self, store_pool: fn(&str) -> String) -> Self {
        self.store_pool = Some(store_pool);
        self
    }

    /// Lets the suite come between its scans and its changes, and age its leases.
    #[must_use]
    pub fn on(mut self, store: MemoryStore) -> Self {
        self.store = Some(store);
        self
    }
}

impl<D: Delegate + Send + Sync> Subject for InProcess<D> {
    fn form(&self) -> Form {
        Form::Delegate
    }

    fn reach(&self) -> Reach {
        self.reach
    }

    fn config(&self) -> Map<String, Value> {
        Map::from_iter([("ipam".to_owned(), self.ipam.clone())])
    }

    fn answer(&self, environment: Environment, stdin: &[u8]) -> Result<CallOutput> {
        let reply = answer(&self.delegate, environment, stdin, self.settings.clone());
        Ok(CallOutput { success: reply.exit == 0, stdout: reply.stdout, stderr: String::new() })
    }

    fn interleave(&self, between: CallBetween) -> bool {
        match (&self.store, self.between) {
            (Some(store), _) => store.interleave(between),
            (None, Some(interleave)) => interleave(between),
            (None, None) => false,
        }
    }

    fn age(&self, by: Duration) -> bool {
        match (&self.store, &self.aging) {
            (Some(store), _) => store.age(by),
            (None, Some(age)) => age(by),
            (None, None) => return false,
        }
        true
    }

    fn keeps_names(&self) -> bool {
        self.keeps_names
    }

    fn rests_freed(&self) -> bool {
        self.rests_freed
    }

    fn store_pool(&self, network: &str) -> Option<String> {
        self.store_pool.map(|name| name(network))
    }
}

/// A program that speaks CNI.
pub struct Binary {
    program: PathBuf,
    folder: PathBuf,
    form: Form,
    reach: Reach,
    config: Map<String, Value>,
    aging: Option<Aging>,
    patience: Duration,
    path: OsString,
}

impl Binary {
    /// A program; what it keeps on disk goes below `folder`, by `ipam.dataDir` and `ipam.stateDir`.
    pub fn new(program: &Path, form: Form, folder: &Path) -> Self {
        Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            form,
            reach: Reach::Node,
            config: Map::new(),
            aging: None,
            patience: Duration::from_secs(60),
            path: "/usr/sbin:/usr/bin:/sbin:/bin".into(),
        }
    }

    /// Sets the `PATH` of the program, by which a script finds its interpreter.
    #[must_use]
    pub fn finding(mut self, path: OsString) -> Self {
        self.path = path;
        self
    }

    /// Says how long a call may take, instead of a minute. One that takes longer is killed, and
    /// its check has failed.
    #[must_use]
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets which nodes take leases from its store.
    #[must_use]
    pub fn reaching(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// Lets the suite age the leases by this function, instead of by the times of files in
    /// `ipam.dataDir`.
    #[must_use]
    pub fn aging(mut self, age: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        self.aging = Some(Box::new(age));
        self
    }

    /// Takes further keys from a network configuration, and leaves its `dataDir` and
    /// `stateDir` unchanged.
    #[must_use]
    pub fn configured(mut self, config: Map<String, Value>) -> Self {
        self.config = config;
        self
    }

    fn start(&self, environment: &Environment, stdin: &[u8]) -> io::Result<Child> {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(environment.iter());
        command.env("CNI_PATH", self.program.parent().unwrap_or(Path::new("/")));
        command.env("PATH", &self.path).env(Deadline::VARIABLE, "30000");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A script that kills its process group, as in `trap 'kill 0' EXIT`, must not end the suite.
        let mut child = command.process_group(0).spawn();
        // Another thread's child may have inherited the file from whoever wrote it just now.
        for _ in 0..100 {
            if child.as_ref().is_err_and(|error| error.kind() == ErrorKind::ExecutableFileBusy) {
                thread::sleep(Duration::from_millis(10));
                child = command.spawn();
            }
        }
        let mut child = child?;
        if let Some(mut pipe) = child.stdin.take() {
            // A program that answers without reading closes the pipe.
            let _ = pipe.write_all(stdin);
        }
        Ok(child)
    }

    /// Waits for the end of a program; `None` if it still runs when its time is over.
    fn wait(&self, child: &mut Child, began: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            let status = child.try_wait()?;
            if status.is_some() || began.elapsed() >= self.patience {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The most bytes that are read of what a program prints. Its writes fail after that.
const LONGEST_OUTPUT: u64 = 16 * 1024 * 1024;

/// Reads a pipe to its end in a thread of its own.
fn read_apart<P: Read + Send + 'static>(pipe: Option<P>) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |pipe| pipe.take(LONGEST_OUTPUT).read_to_end(&mut bytes));
        // The receiver may have given up.
        let _ = sender.send(read.map(|_| bytes));
    });
    receiver
}

impl Subject for Binary {
    fn form(&self) -> Form {
        self.form
    }

    fn reach(&self) -> Reach {
        self.reach
    }

    fn config(&self) -> Map<String, Value> {
        let name = self.program.file_name().unwrap_or_default().to_string_lossy();
        let mut ipam = json!({
            "type": name,
            "dataDir": self.folder.join("data"),
            "stateDir": self.folder.join("state"),
        });
        if let (Some(ipam), Some(Value::Object(written))) =
            (ipam.as_object_mut(), self.config.get("ipam"))
        {
            ipam.extend(written.clone());
        }
        let mut config = self.config.clone();
        config.insert("ipam".to_owned(), ipam);
        config
    }

    fn answer(&self, environment: Environment, stdin: &[u8]) -> Result<CallOutput> {
        let failed = |error| Error::io(format!("cannot run {}", self.program.display()), error);
        let mut child = self.start(&environment, stdin).map_err(failed)?;
        let began = Instant::now();
        let (answer, words) = (read_apart(child.stdout.take()), read_apart(child.stderr.take()));
        let stdout = answer.recv_timeout(self.patience).ok();
        // A program may close its stdout and go on.
        let status = self.wait(&mut child, began).map_err(failed)?;
        let (Some(stdout), Some(status)) = (stdout, status) else {
            let _ = child.kill();
            let _ = child.wait();
            let message = format!("it has not ended within {} s", self.patience.as_secs_f64());
            return Err(Error::new(ErrorCode::TIMED_OUT, message));
        };
        let stdout = String::from_utf8_lossy(&stdout.map_err(failed)?).into_owned();
        let success = status.success();
        // A child process that lives on keeps the pipe open.
        let stderr = words.recv_timeout(Duration::from_secs(1)).map_or(Ok(Vec::new()), |it| it);
        let stderr = String::from_utf8_lossy(&stderr.map_err(failed)?).into_owned();
        Ok(CallOutput { success, stdout, stderr })
    }

    fn age(&self, by: Duration) -> bool {
        if let Some(age) = &self.aging {
            age(by);
            return true;
        }
        let then = SystemTime::now() - by;
        let mut folders = vec![self.folder.join("data")];
        let mut aged = false;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else if let Ok(file) = File::open(entry.path()) {
                    aged |= file.set_modified(then).is_ok();
                }
            }
        }
        aged
    }

    fn kill_during(&self, environment: Environment, stdin: &[u8], after: Duration) -> bool {
        let Ok(mut child) = self.start(&environment, stdin) else { return false };
        thread::sleep(after);
        // It may have ended already, which is one of the moments to be tried.
        let _ = child.kill();
        let _ = child.wait();
        true
    }
}
