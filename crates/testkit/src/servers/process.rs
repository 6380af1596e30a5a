//! Programs, and processes that end with the test's own.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use tempfile::TempDir;

/// Each program with the Debian package that has it.
const PACKAGES: [(&str, &str); 6] = [
    ("etcd", "etcd-server"),
    ("etcdctl", "etcd-client"),
    ("ip", "iproute2"),
    ("kubectl", "kubernetes-client"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the names of all folders and namespaces begin with; the process id follows.
const PREFIX: &str = "ipamd-test-";

/// On a smaller `/dev/shm` the data lie on the disk: a server takes up to 128 MiB for its log alone.
const SHARED_MEMORY: u64 = 2 << 30;

/// Where a program lies among the folders of a search path; else what to install.
fn find(name: &str, path: &OsStr) -> Result<PathBuf, String> {
    let mut places = std::env::split_paths(path).map(|folder| folder.join(name));
    let package = PACKAGES.iter().find(|(program, _)| *program == name).map_or(name, |(_, p)| *p);
    places.find(|place| place.is_file()).ok_or_else(|| {
        format!("{name} is missing: apt-get install {package} (tests/run.sh installs it)")
    })
}

/// A program that must be there.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::var_os("PATH").unwrap_or_default();
    let path = [own.as_os_str(), OsStr::new(PATH)].join(OsStr::new(":"));
    find(name, &path).unwrap_or_else(|missing| panic!("{missing}"))
}

/// A program without the environment of the test: no proxy, no setting.
pub fn plain(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).stdin(Stdio::null());
    command
}

/// A program that is killed when the test's process ends, in whatever way; in a network namespace.
pub fn tied(program_path: &Path, namespace: Option<&Path>) -> Command {
    let setpriv = program("setpriv");
    let mut command = match namespace {
        None => plain(setpriv),
        Some(path) => {
            let mut command = plain(program("nsenter"));
            command.arg(format!("--net={}", path.display())).arg(setpriv);
            command
        }
    };
    // The signal does not come from a parent that had ended before it was asked for.
    let script = r#"[ "$PPID" = "$0" ] && exec "$@""#;
    command.args(["--pdeathsig", "KILL", "/bin/sh", "-c", script]);
    command.arg(std::process::id().to_string()).arg(program_path);
    command
}

/// Starts a tied program. The signal comes when the thread ends that started it, and a test's
/// thread may end before its servers do: one that lasts starts them all.
pub fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static STARTER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, queue) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in queue {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = channel();
    starter.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer)).unwrap();
    child.recv().unwrap()
}

/// A name that no other server, folder or namespace on this machine has.
pub fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{count}-{:04x}", std::process::id(), random() & 0xffff)
}

pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A folder of its own, in memory where there is enough of it.
pub fn folder() -> TempDir {
    static SWEPT: Once = Once::new();
    let memory = Path::new("/dev/shm");
    SWEPT.call_once(|| {
        for place in [memory, &std::env::temp_dir()] {
            for name in leftovers(place) {
                let _ = fs::remove_dir_all(place.join(name));
            }
        }
    });
    let mut builder = tempfile::Builder::new();
    let name = format!("{}-", unique());
    let builder = builder.prefix(&name);
    let free = rustix::fs::statvfs(memory).map_or(0, |state| state.f_bavail * state.f_frsize);
    if free >= SHARED_MEMORY {
        builder.tempdir_in(memory).unwrap()
    } else {
        builder.tempdir().unwrap()
    }
}

/// The names in a folder that a test process left which is no more.
pub fn leftovers(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_dead = |name: &String| {
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
        pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    };
    names.filter(is_dead).collect()
}

/// Ports of 127.0.0.1 that the kernel found free.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
