use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::log::{error, warn};
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, makedev};
use rustix::io::{read, retry_on_intr};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::stdio::stdin;
use serde_json::{Map, Value};

use super::request::deadline_from_env;
use super::{CliCall, Delegate, Mark, Request};
use crate::cni::{Environment, Verb, Version, to_text};
use crate::error::{Error, ErrorCode, Result};
use crate::host::{Settings, show_duration};
use crate::log::{LogSettings, line_to_stderr, print_to_stderr, write_without_waiting};
use crate::text::visible;

/// A network configuration is a few KiB; a caller that never ends must not fill the memory.
const STDIN_LIMIT: usize = 16 * 1024 * 1024;

/// How long an answer may take to be written when the time is over.
const DELIVERY: Duration = Duration::from_millis(100);

/// Whether an answer has been begun: there must be only one.
static ANSWERED: AtomicBool = AtomicBool::new(false);

/// The output and exit code of a call, for calling a delegate without a process.
#[derive(Debug)]
pub struct Reply {
    /// One JSON object, or nothing.
    pub stdout: String,
    /// 0, or 1 with an error object on stdout.
    pub exit: u8,
    /// The request whose addresses are lost if `stdout` cannot be delivered.
    granted: Option<Request>,
}

/// Runs a delegate as the process it is called in: `main` of every delegate.
///
/// Called without `CNI_COMMAND`, it prints for a person: the answer of [`Delegate::cli`] to the
/// arguments that [`Delegate::expand_args`] returns, else what program it is.
pub fn run(name: &'static str, delegate: impl Delegate) -> ExitCode {
    if let Some(error) = refuse_chains_place(name) {
        line_to_stderr(&format!("{name}: {}", error.in_full()));
        let reply = Reply::error(Version::NEWEST, &error);
        write_without_waiting(rustix::stdio::stdout(), reply.stdout.as_bytes());
        return ExitCode::FAILURE;
    }
    run_dyn(name, &delegate)
}

/// The error of a delegate in the file of `ipam-delegated`: a tool has copied it through a link. As the
/// chain, a selector would release nothing and succeed.
fn refuse_chains_place(name: &str) -> Option<Error> {
    let file = std::env::current_exe().ok()?;
    if file.file_name()? != "ipam-delegated" {
        return None;
    }
    let message = format!("{} is the program {name}, copied through a link", file.display());
    let error = Error::new(ErrorCode::INVALID_CONFIG, message);
    Some(error.advise("run install.sh again, which replaces names by a rename"))
}

/// [`run`] for a program that chooses its delegate when it is called.
pub fn run_dyn(name: &'static str, delegate: &dyn Delegate) -> ExitCode {
    let environment = Environment::new(std::env::vars_os());
    if !matches!(environment.verb(), Ok(None)) {
        return serve(name, delegate, environment);
    }
    let arguments = delegate.expand_args(std::env::args_os().skip(1).collect());
    if !arguments.is_empty() {
        let json = arguments.iter().any(|argument| argument == "--json");
        match answer_person(name, delegate, environment, arguments) {
            None => {}
            Some(Ok(text)) => {
                let mut stdout = std::io::stdout();
                let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
                return match written {
                    // A reader that has seen enough closes the pipe.
                    Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                        print_to_stderr(&format!("{name}: cannot print: {error}\n"));
                        ExitCode::FAILURE
                    }
                    _ => ExitCode::SUCCESS,
                };
            }
            Some(Err(error)) => {
                if json {
                    let reply = Reply::error(Version::NEWEST, &error);
                    let _ = writeln!(std::io::stdout(), "{}", reply.stdout);
                } else {
                    print_to_stderr(&format!("{name}: {}\n", visible(&error.in_full())));
                }
                return ExitCode::FAILURE;
            }
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    print_to_stderr(&format!(
        "{name} {version}: a CNI IPAM delegate. Runtimes call it with CNI_COMMAND set and a network configuration on stdin.\n"
    ));
    ExitCode::SUCCESS
}

fn answer_person(
    name: &'static str,
    delegate: &dyn Delegate,
    environment: Environment,
    arguments: Vec<OsString>,
) -> Option<Result<String>> {
    let mut stdin = Vec::new();
    if arguments.iter().any(|argument| argument == "-")
        && let Err(error) = io::stdin().take(STDIN_LIMIT as u64).read_to_end(&mut stdin)
    {
        return Some(Err(Error::io("cannot read stdin", error)));
    }
    let settings = match Settings::load() {
        Ok(settings) => settings,
        Err(error) => return Some(Err(error)),
    };
    let verb = arguments.first().map(|verb| verb.to_string_lossy()).unwrap_or_default();
    let log = LogSettings {
        name,
        context: verb.into_owned(),
        verbose: settings.verbose,
        debug: environment.text(LogSettings::VARIABLE) == Some("debug"),
        folder: &settings.log_dir,
    };
    log.start();
    delegate.cli(&CliCall { name, arguments, stdin, environment, settings })
}

/// Answers the call this process was started for, as a plugin alone: for the meta-plugin, which has
/// other verbs for people. A delegate calls [`run`].
pub fn serve(name: &'static str, delegate: &dyn Delegate, environment: Environment) -> ExitCode {
    answer_panics(name);
    end_with_chain(&environment);
    // VERSION works whatever stdin and the settings are.
    if let Ok(Some(Verb::Version)) = environment.verb() {
        return deliver(name, delegate, Reply::success(Version::supported().to_string()));
    }
    if let Ok(Some(Verb::Add)) = environment.verb()
        && is_stdout_closed()
    {
        let error = Error::new(ErrorCode::IO, "stdout is closed: the addresses would be lost")
            .advise("connect stdout to a pipe or a file, or to /dev/null to drop the addresses on purpose");
        log_refusal(name, None, &error);
        return ExitCode::FAILURE;
    }
    let stdin = read_stdin();
    let settings = Settings::load_for(environment.verb().ok().flatten());
    let reply = match (stdin, settings) {
        (Err(error), _) => {
            let error = Error::io("cannot read stdin", error);
            log_refusal(name, None, &error);
            Reply::error(Version::NEWEST, &error)
        }
        (Ok(stdin), Err(error)) => {
            log_refusal(name, None, &error);
            Reply::error(version_for_errors(&stdin), &error)
        }
        (Ok(stdin), Ok(settings)) => {
            let verbose = settings.verbose.then(|| settings.log_dir.clone());
            let parsed = |request: Result<&Request, &Error>| match request {
                Ok(request) => start_log(name, request),
                Err(error) => log_refusal(name, verbose, error),
            };
            let failed = |error: &Error| error!("{}: {}", error.code(), error.in_full());
            answer_with(delegate, environment, &stdin, settings, parsed, failed)
        }
    };
    deliver(name, delegate, reply)
}

/// Reads stdin up to its limit, without the buffer of the standard library: each page of memory that
/// is touched costs as much as a thousand instructions.
fn read_stdin() -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(2048);
    while text.len() < STDIN_LIMIT {
        if text.len() == text.capacity() {
            text.reserve(text.capacity());
        }
        if retry_on_intr(|| read(stdin(), spare_capacity(&mut text)))? == 0 {
            break;
        }
    }
    Ok(text)
}

/// A whole call as a function: environment and stdin in, stdout and exit code out.
pub fn answer(
    delegate: &dyn Delegate,
    environment: Environment,
    stdin: &[u8],
    settings: Settings,
) -> Reply {
    answer_with(delegate, environment, stdin, settings, |_| (), |_| ())
}

fn answer_with(
    delegate: &dyn Delegate,
    environment: Environment,
    stdin: &[u8],
    settings: Settings,
    log_parsed: impl FnOnce(Result<&Request, &Error>),
    log_failed: impl FnOnce(&Error),
) -> Reply {
    let verb = environment.verb().and_then(|verb| {
        let missing = "required env variables [CNI_COMMAND] missing";
        verb.ok_or_else(|| Error::new(ErrorCode::INVALID_ENVIRONMENT, missing))
    });
    if let Ok(Verb::Version) = verb {
        return Reply::success(Version::supported().to_string());
    }
    let request = verb.and_then(|verb| Request::parse(verb, environment, stdin, settings));
    log_parsed(request.as_ref());
    let request = match request {
        Ok(request) => request,
        Err(error) => return Reply::error(version_for_errors(stdin), &error),
    };
    let verb = request.verb;
    let version = request.network.version();
    let reply = match dispatch(delegate, &request) {
        Ok(reply) => reply,
        Err(error) => {
            log_failed(&error);
            Reply::error(version, &error)
        }
    };
    match verb {
        Verb::Add if reply.exit == 0 => Reply { granted: Some(request), ..reply },
        _ => reply,
    }
}

fn dispatch(delegate: &dyn Delegate, request: &Request) -> Result<Reply> {
    let result = match request.verb {
        Verb::Add => Some(delegate.add(request)?),
        Verb::Del => delegate.del(request)?,
        Verb::Check => delegate.check(request)?,
        Verb::Gc => delegate.gc(request, &request.keep)?,
        Verb::Status => delegate.status(request)?,
        Verb::Version => None,
    };
    let Some(result) = result else {
        return Ok(Reply::success(String::new()));
    };
    match result.into_json(request.network.version()) {
        Ok(json) => Ok(Reply::success(to_text(&json))),
        Err(error) if request.verb == Verb::Add => {
            Err(error.and(delegate.undelivered(request).err()))
        }
        Err(error) => Err(error),
    }
}

fn start_log(name: &str, request: &Request) {
    let settings = &request.settings;
    let in_config = request.network.ipam().get("verbose").and_then(Value::as_bool);
    let log = LogSettings {
        name,
        context: format!("{} {}", request.verb, request.subject()),
        verbose: in_config.unwrap_or(settings.verbose),
        debug: request.environment.text(LogSettings::VARIABLE) == Some("debug"),
        folder: &settings.log_dir,
    };
    log.start();
    // A chain that runs this delegate has warned already.
    if let Some(fault) = &settings.fault
        && deadline_from_env(&request.environment).is_none()
    {
        let folder = settings.state_dir.display();
        warn!("{fault}; {} continues with the records in {folder}", request.verb);
    }
}

/// Logs why a call could not be parsed, with the attachment that its environment names.
fn log_refusal(name: &str, verbose: Option<PathBuf>, error: &Error) {
    let environment = Environment::new(std::env::vars_os());
    let verb = environment.text("CNI_COMMAND").unwrap_or_default();
    let container = environment.text("CNI_CONTAINERID").unwrap_or_default();
    let ifname = environment.text("CNI_IFNAME").unwrap_or_default();
    let log = LogSettings {
        name,
        context: format!("{verb} {container}/{ifname}"),
        verbose: verbose.is_some(),
        debug: environment.text(LogSettings::VARIABLE) == Some("debug"),
        folder: &verbose.unwrap_or_else(|| Settings::default().log_dir),
    };
    log.start();
    error!("{}: {}", error.code(), error.in_full());
}

/// Whether this process was started without stdout. Rust's runtime has then opened /dev/null in its
/// place, for reading and writing; a redirection opens it for writing alone.
fn is_stdout_closed() -> bool {
    let stdout = rustix::stdio::stdout();
    fcntl_getfl(stdout).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR)
        && fstat(stdout).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
                && stat.st_rdev == makedev(1, 3)
        })
}

fn deliver(name: &str, delegate: &dyn Delegate, reply: Reply) -> ExitCode {
    if ANSWERED.swap(true, Ordering::Relaxed) {
        // The time is over: the process ends any moment, with what was said of that.
        loop {
            std::thread::park();
        }
    }
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(reply.stdout.as_bytes()).and_then(|()| stdout.flush());
    let Err(error) = written else {
        let exit = ExitCode::from(reply.exit);
        // The process ends with its memory: taking a request apart would only cost time.
        std::mem::forget(reply);
        return exit;
    };
    line_to_stderr(&format!("{name}: cannot deliver the answer on stdout: {error}"));
    if let Some(request) = &reply.granted
        && let Err(error) = delegate.undelivered(request)
    {
        line_to_stderr(&format!("{name}: {}", error.in_full()));
    }
    ExitCode::FAILURE
}

impl Reply {
    fn success(stdout: String) -> Self {
        Self { stdout, exit: 0, granted: None }
    }

    /// An error as the protocol has it, with exit code 1. Runtimes log and print it.
    pub fn error(version: Version, error: &Error) -> Self {
        let mut object = Map::new();
        object.insert("cniVersion".to_owned(), version.as_str().into());
        object.insert("code".to_owned(), error.code().number().into());
        object.insert("msg".to_owned(), visible(&error.to_string()).into());
        let details = error.details();
        if !details.is_empty() {
            object.insert("details".to_owned(), visible(&details).into());
        }
        Self { stdout: Value::Object(object).to_string(), exit: 1, granted: None }
    }
}

/// The configuration's version, if it can be read, for an error about the rest.
fn version_for_errors(stdin: &[u8]) -> Version {
    serde_json::from_slice::<Map<String, Value>>(stdin)
        .ok()
        .and_then(|config| Version::of(&config).ok())
        .unwrap_or(Version::NEWEST)
}

/// Prints an error object when the program panics, and ends it without a core dump: memory may
/// hold secrets.
fn answer_panics(name: &'static str) {
    std::panic::set_hook(Box::new(move |panic| {
        let error = Error::new(ErrorCode::INTERNAL, format!("internal error in {name} (bug)"))
            .caused_by(panic.to_string())
            .advise("report it, with the verbose log");
        line_to_stderr(&format!("{name}: {}", error.in_full()));
        let reply = Reply::error(Version::NEWEST, &error);
        let _ = std::io::stdout().write_all(reply.stdout.as_bytes());
        std::process::exit(1);
    }));
}

/// Ends this process with its chain, also if it hangs.
fn end_with_chain(environment: &Environment) {
    let Some(time) = deadline_from_env(environment) else { return };
    let chain = Mark::chain(environment);
    // The signal is for the end of the parent's thread: a runtime in Go has threads that end while
    // it lives, but a chain attends to a delegate on the thread that started it.
    if is_child_of(chain) && set_parent_process_death_signal(Some(Signal::KILL)).is_ok() {
        if !is_child_of(chain) {
            // The chain has died in between, and nothing is begun.
            std::process::exit(1);
        }
        return;
    }
    end_in_time(time);
}

fn is_child_of(chain: Option<Pid>) -> bool {
    chain.is_some() && getppid() == chain
}

/// Ends this process at its deadline: another program runs between it and the chain, or the chain
/// has ended already.
fn end_in_time(time: Duration) {
    let watch = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(time);
        if ANSWERED.swap(true, Ordering::Relaxed) {
            // The answer is on its way, or stuck in a pipe that nobody reads.
            std::thread::sleep(DELIVERY);
        } else {
            let error = Error::new(
                ErrorCode::TIMED_OUT,
                format!("deadline exceeded: not done within {}", show_duration(time)),
            )
            .advise("check what it waits for, or raise ipam.timeout or its own timeout");
            let reply = Reply::error(Version::NEWEST, &error);
            write_without_waiting(rustix::stdio::stdout(), reply.stdout.as_bytes());
        }
        std::process::exit(1);
    });
    // Where no thread can be had, the chain alone keeps the time.
    drop(watch);
}
