use std::path::{Path, PathBuf};
use std::process::Command;

/// One build of this workspace's release programs, and of this package's examples.
pub struct Build {
    pub label: &'static str,
    target: Option<String>,
    folder: PathBuf,
}

/// The static build, where rustc has its target, and the glibc one; each is made when it is its
/// turn.
pub fn builds() -> impl Iterator<Item = Build> {
    let musl = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let mut targets = vec![("glibc", None)];
    if has_target(&musl) {
        targets.insert(0, ("static", Some(musl)));
    } else {
        println!("no static builds: rustup target add {musl}");
    }
    targets.into_iter().map(|(label, target)| Build::make(label, target))
}

/// The host-local to compare with.
pub fn host_local() -> PathBuf {
    let places = ["/usr/lib/cni/host-local", "/opt/cni/bin/host-local"].map(PathBuf::from);
    let found = places.into_iter().find(|path| path.exists());
    found.expect("host-local: apt-get install containernetworking-plugins")
}

/// Where another client is installed.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

impl Build {
    pub fn is_static(&self) -> bool {
        self.target.is_some()
    }

    /// The file of a program or of an example.
    pub fn program(&self, name: &str) -> PathBuf {
        let program = self.folder.join(name);
        if program.exists() { program } else { self.folder.join("examples").join(name) }
    }

    /// In KiB.
    pub fn size(&self, name: &str) -> u64 {
        std::fs::metadata(self.program(name)).unwrap().len() / 1024
    }

    fn make(label: &'static str, target: Option<String>) -> Self {
        let folder = root().join(target.as_deref().unwrap_or_default()).join("release");
        let build = Self { label, target, folder };
        build.cargo(&["--workspace", "--bins"]);
        build.cargo(&["--package", env!("CARGO_PKG_NAME"), "--examples"]);
        build
    }

    fn cargo(&self, what: &[&str]) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--release", "--target-dir"]).arg(root()).args(what);
        cargo.args(self.target.iter().flat_map(|target| ["--target", target]));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success(), "cargo build");
    }
}

/// Where cargo puts what it builds.
fn root() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(3).unwrap().to_owned()
}

fn has_target(target: &str) -> bool {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().expect("rustc");
    let sysroot = String::from_utf8(sysroot.stdout).unwrap();
    Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").exists()
}
