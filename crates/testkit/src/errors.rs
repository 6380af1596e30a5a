//! Single errors of system calls, by strace.

use std::collections::BTreeMap;

use crate::kills::strace;

/// The system calls that are made to fail, as strace selects them.
const CALLS: &str = "?open,openat,read,pread64,write,pwrite64,?rename,renameat,renameat2,?link,linkat,?symlink,symlinkat,\
                     ?unlink,unlinkat,?mkdir,mkdirat,?rmdir,ftruncate,fchmod,utimensat,?stat,fstat,?lstat,?newfstatat,statx,\
                     getdents64,?readlink,readlinkat,flock,fcntl,pipe2,pidfd_open,getrandom";

/// The call after which a program of ours has come to its `main`: Rust's runtime makes it last.
const BEFORE_MAIN: &str = "sigaltstack";

/// A system call that a program makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    pub name: String,
    /// The number by which strace counts it among those of its name.
    pub nth: usize,
    pub arguments: String,
}

impl Call {
    /// Whether it carries what the program answers.
    pub fn is_answer(&self) -> bool {
        self.name == "write" && self.arguments.starts_with("1,")
    }

    /// The errors that it may end with on a machine in trouble.
    pub fn errors(&self) -> Vec<&'static str> {
        let creates = ["O_CREAT", "O_WRONLY", "O_RDWR", "O_TMPFILE"];
        let creates = creates.iter().any(|flag| self.arguments.contains(flag));
        match self.name.as_str() {
            "open" | "openat" if creates => {
                vec!["EIO", "EMFILE", "ENOSPC", "EROFS", "ENOMEM", "EINTR", "ESTALE"]
            }
            "open" | "openat" => vec!["EIO", "EMFILE", "ENOMEM", "EINTR", "ESTALE"],
            "read" | "pread64" => vec!["EIO", "EINTR", "ESTALE", "EAGAIN", "ENOMEM"],
            "write" | "pwrite64" => vec!["EIO", "ENOSPC", "EINTR", "EAGAIN", "ESTALE"],
            // EAGAIN says that somebody else holds the lock.
            "flock" => vec!["EINTR", "ENOLCK", "EIO"],
            "fcntl" => vec!["EMFILE", "EAGAIN", "EIO"],
            "pipe2" => vec!["EMFILE", "ENFILE"],
            "pidfd_open" => vec!["EMFILE", "ENOMEM", "ENOSYS"],
            "getrandom" => vec!["EINTR", "ENOSYS"],
            "stat" | "fstat" | "lstat" | "newfstatat" | "statx" | "getdents64" | "readlink"
            | "readlinkat" => vec!["EIO", "ENOMEM", "ESTALE"],
            _ => vec!["EIO", "ENOSPC", "EROFS", "ENOMEM", "ESTALE"],
        }
    }

    /// What strace is told to let it fail so.
    pub fn injection(&self, error: &str) -> String {
        format!("{}:error={error}:when={}", self.name, self.nth)
    }
}

/// The words that run a program under strace, which writes to this log.
pub fn traced(log: &str, injection: Option<&str>) -> Vec<String> {
    let trace = format!("trace={CALLS},{BEFORE_MAIN}");
    let mut words = vec![strace().display().to_string()];
    words.extend(["-o", log, "-e", &trace].map(str::to_owned));
    if let Some(injection) = injection {
        words.extend(["-e".to_owned(), format!("inject={injection}")]);
    }
    words
}

/// Whether the log tells of an error that was injected.
pub fn is_injected(log: &str) -> bool {
    log.contains("(INJECTED)")
}

/// The calls of a log that its program's own code makes.
pub fn calls(log: &str) -> Vec<Call> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = Vec::new();
    let mut stacks = 0;
    for line in log.lines() {
        let Some((name, arguments)) = line.split_once('(') else { continue };
        if name == BEFORE_MAIN {
            stacks += 1;
            continue;
        }
        let count = counts.entry(name).or_default();
        *count += 1;
        // One asks for the stack of signals, one sets it, and one takes it away in the end.
        if stacks == 2 {
            let (name, arguments) = (name.to_owned(), arguments.to_owned());
            found.push(Call { name, nth: *count, arguments });
        }
    }
    found
}
