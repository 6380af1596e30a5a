use std::path::{Path, PathBuf};
use std::process::Command;

/// One build of this workspace's release programs.
pub struct Build {
    pub label: &'static str,
    target: Option<String>,
    pub folder: PathBuf,
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
#[allow(dead_code, reason = "not every benchmark does")]
pub fn host_local() -> PathBuf {
    let places = ["/usr/lib/cni/host-local", "/opt/cni/bin/host-local"].map(PathBuf::from);
    let found = places.into_iter().find(|path| path.exists());
    found.expect("host-local: apt-get install containernetworking-plugins")
}

impl Build {
    pub fn is_static(&self) -> bool {
        self.target.is_some()
    }

    fn make(label: &'static str, target: Option<String>) -> Self {
        let folder = root().join(target.as_deref().unwrap_or_default()).join("release");
        let build = Self { label, target, folder };
        build.cargo(&["--workspace", "--bins"]);
        build
    }

    /// Makes more of the workspace's programs.
    pub fn cargo(&self, what: &[&str]) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--release", "--target-dir"]).arg(root()).args(what);
        cargo.args(self.target.iter().flat_map(|target| ["--target", target]));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success(), "cargo build");
    }

    /// The least program of this build.
    pub fn compile_hello(&self, out: &Path) {
        let mut rustc = Command::new("rustc");
        rustc
            .args(["--edition=2024", "-Copt-level=3", "-Cpanic=abort", "-Cstrip=symbols", "-o"])
            .arg(out);
        rustc.args(self.target.iter().flat_map(|target| ["--target", target]));
        rustc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("floor/hello.rs"));
        assert!(rustc.status().expect("rustc").success(), "rustc");
    }

    /// In KiB.
    pub fn size(&self, name: &str) -> u64 {
        std::fs::metadata(self.folder.join(name)).unwrap().len() / 1024
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
