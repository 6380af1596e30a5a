//! Logs: warnings and errors on stderr, everything in a file when that is asked for.
//!
//! Each line carries time (UTC), level, verb and attachment, so that `grep` follows one attachment
//! across all delegates. One record is one write in append mode, so that lines of processes that
//! log at once stay whole.
//!
//! A delegate logs by the macros of the crate `log`: [`run`](crate::run) has its log started. Only
//! the meta-plugin starts one itself.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ::log::{LevelFilter, Log, Metadata, Record, debug};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use crate::host::{make_folder, open_own};
use crate::text::{Utc, visible};

/// How a call logs.
pub struct LogSettings<'a> {
    /// The program.
    pub name: &'a str,
    /// Verb and attachment.
    pub context: String,
    /// Whether debug lines go to the file.
    pub verbose: bool,
    /// Whether debug lines go to stderr, too.
    pub debug: bool,
    /// The folder of the file.
    pub folder: &'a Path,
}

impl LogSettings<'_> {
    /// The variable that, set to `debug`, shows every line on stderr and in the file.
    pub const VARIABLE: &'static str = "IPAM_DELEGATED_LOG";

    /// Starts logging for this call. A log that cannot be written never fails the call.
    pub fn start(self) {
        let Self { name, context, verbose, debug, folder } = self;
        let level = if debug { LevelFilter::Debug } else { LevelFilter::Warn };
        let mut loggers = vec![Lines::new(level, format!("{name}: {context}"), Stderr)];
        ::log::set_max_level(level);
        if verbose || debug {
            match open(folder, name) {
                Ok(file) => loggers.push(Lines::new(LevelFilter::Debug, context, file)),
                Err(error) => {
                    let line = format!(
                        "{name}: cannot write a verbose log in {}: {error}",
                        folder.display()
                    );
                    line_to_stderr(&line);
                }
            }
            ::log::set_max_level(LevelFilter::Debug);
        }
        if ::log::set_boxed_logger(Box::new(Loggers(loggers))).is_ok() {
            debug!("{name} {}", env!("CARGO_PKG_VERSION"));
        }
    }
}

/// Writes to stderr what it takes without waiting: a caller that does not read its plugin's stderr
/// must not hold up an attachment.
pub fn to_stderr(text: &[u8]) {
    write_without_waiting(rustix::stdio::stderr(), text);
}

/// Writes to stderr for a person, who may read slowly. A failure is ignored: the macros of the
/// standard library panic on it.
pub fn print_to_stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes one line as [`to_stderr`] does, without what a terminal would obey.
pub(crate) fn line_to_stderr(line: &str) {
    to_stderr(format!("{}\n", visible(line)).as_bytes());
}

/// Writes what the descriptor takes without waiting; the rest is dropped.
pub(crate) fn write_without_waiting(fd: BorrowedFd<'_>, text: &[u8]) {
    // A pipe that is ready takes at least this much (PIPE_BUF) at once.
    for piece in text.chunks(4096) {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = matches!(poll(&mut fds, Some(&at_once)), Ok(1));
        if !ready || !fds[0].revents().contains(PollFlags::OUT) {
            return;
        }
        if rustix::io::write(fd, piece).is_err() {
            return;
        }
    }
}

/// [`to_stderr`] as a writer.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        to_stderr(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(folder: &Path, name: &str) -> io::Result<File> {
    make_folder(folder, 0o755)?;
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    open_own(&folder.join(format!("{name}.log")), flags, 0o640)
}

/// The libraries of HTTP and TLS log every step, with the words of a server.
const IGNORED: [&str; 2] = ["rustls", "ureq"];

/// One logger to the facade: stderr, and the file when it is asked for.
struct Loggers(Vec<Lines>);

impl Log for Loggers {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ignored = IGNORED.iter().any(|target| metadata.target().starts_with(target));
        !is_ignored && self.0.iter().any(|logger| metadata.level() <= logger.level)
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.iter().for_each(|logger| logger.log(record));
        }
    }

    fn flush(&self) {}
}

/// A logger whose records reach `out` in one write each.
struct Lines {
    level: LevelFilter,
    context: String,
    out: Mutex<Box<dyn Write + Send>>,
}

impl Lines {
    fn new(level: LevelFilter, context: String, out: impl Write + Send + 'static) -> Self {
        Self { level, context, out: Mutex::new(Box::new(out)) }
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() > self.level {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (time, micros) = (Utc::from(now), now.subsec_micros());
        let (level, context, message) = (record.level(), &self.context, record.args().to_string());
        // As many digits in each line, so that lines sort by time.
        let line = format!("{time}.{micros:06}Z [{level}] {context}: {}", message.trim_end());
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // One line a record, whatever the message holds.
        let _ = out.write_all(format!("{}\n", visible(&line)).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_in_one_write() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines::new(LevelFilter::Debug, "ADD c1/eth0".to_owned(), writer);
        lines.log(
            &Record::builder()
                .args(format_args!("a\nb\r\u{1b}[2J {}", 1))
                .level(::log::Level::Warn)
                .build(),
        );
        drop(lines);
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        let (time, rest) = text.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        assert_eq!(rest, "[WARN] ADD c1/eth0: a\\nb\\r\\u{1b}[2J 1\n");
    }
}
