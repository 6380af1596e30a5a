//! Gives addresses, a file for each: an allocator on the disk of one node.
//!
//! `DATADIR/NETWORK/ADDRESS` holds the owner and the lease as JSON. A lock on the folder is held
//! from a view to the commit on it. Each file is created whole or not at all.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipam_kit::allocate::ledger::{
    Change, Claim, Commit, Entry, Holder, PoolView, Taken, Used, View, ViewQuery,
};
use ipam_kit::allocate::{Allocate, Lease, Ledger, Owner, Reach};
use ipam_kit::host::{can_write, lock_folder};
use ipam_kit::{Error, ErrorCode, Request, Result, keys::Key};
use serde::{Deserialize, Serialize};

/// The keys of `ipam` that it reads beside those of every allocator.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    data_dir: Option<PathBuf>,
}

/// The leases of one network.
struct Files {
    folder: PathBuf,
}

/// The content of a lease file.
#[derive(Serialize, Deserialize)]
struct LeaseFile {
    #[serde(rename = "containerID")]
    container: String,
    ifname: String,
    /// Milliseconds since 1970.
    taken: u64,
    lease: Lease,
}

impl Ledger for Files {
    type Config = Config;
    /// The locked folder.
    type Token = File;

    const KEYS: Option<&'static [Key]> = Some(&[Key::Value("dataDir")]);
    const REACH: Reach = Reach::Node;

    fn open(config: Config, request: &Request) -> Result<Self> {
        let data = config.data_dir.unwrap_or_else(|| PathBuf::from("/var/lib/ipam-da-files"));
        Ok(Self { folder: data.join(request.network.name().as_str()) })
    }

    fn view(&mut self, query: &ViewQuery<'_>, earlier: Option<File>) -> Result<View<File>> {
        drop(earlier); // It holds the lock.
        let lock = self.lock()?;
        let files = self.read()?;
        let used: Vec<IpAddr> = files.iter().map(LeaseFile::address).collect();
        let view = |index| PoolView {
            cursor: fs::read_link(self.cursor(index)).ok().and_then(|it| it.to_str()?.parse().ok()),
            used: Used::All(used.iter().copied().collect()),
            ..PoolView::default()
        };
        let pools = query.requests.iter().map(|request| view(request.index)).collect();
        let held = files.into_iter().filter(|file| file.is_of(query.owner)).map(LeaseFile::lease);
        Ok(View { held: held.collect(), sure: true, pools, token: lock })
    }

    /// The lock keeps everything as the view showed it: a claim is lost only to a requested address
    /// that another owner holds.
    fn commit(&mut self, owner: &Owner, _: File, change: &Change<'_>) -> Result<Commit<File>> {
        if let Some(claim) = change.claim.iter().find(|claim| claim.replaces.is_some()) {
            let message = "unsupported: this allocator takes no address from another owner";
            return Err(Error::config(format!("{}.takeover", claim.request.path), message));
        }
        let mut claimed = Vec::new();
        for (number, claim) in change.claim.iter().enumerate() {
            match self.claim(owner, claim) {
                Ok(lease) => claimed.push(lease),
                Err(error) => {
                    self.delete(&claimed)?;
                    return self.lost(number, claim, error);
                }
            }
        }
        let kept = change.keep.iter().map(|lease| {
            let file = LeaseFile::new(owner, lease.clone());
            self.write(&file, true).map_err(|e| Error::io("cannot write a lease file", e))?;
            Ok(file.lease())
        });
        let kept = kept.collect::<Result<_>>()?;
        self.delete(&change.drop)?;
        Ok(Commit::Done { kept, claimed })
    }

    fn remove(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let _lock = self.lock()?;
        let now = self.read()?;
        let mut removed = Vec::new();
        for entry in entries {
            if now.iter().any(|file| file.lease.revision == entry.lease.revision) {
                self.delete(std::slice::from_ref(&entry.lease))?;
                removed.push(entry.clone());
            }
        }
        Ok(removed)
    }

    fn scan(
        &mut self,
        _node: Option<&str>,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> Result<()> {
        let _lock = self.lock()?;
        for file in self.read()? {
            if each(self.entry(file)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn ready(&mut self) -> Result<()> {
        can_write(&self.folder)
            .map_err(|e| Error::io(self.folder.display(), e).with_code(ErrorCode::UNAVAILABLE))
    }
}

impl Files {
    fn path(&self, name: impl ToString) -> PathBuf {
        self.folder.join(name.to_string())
    }

    /// Where the address is kept that the pool of this number gave last.
    fn cursor(&self, index: u32) -> PathBuf {
        self.path(format!(".last-{index}"))
    }

    fn entry(&self, file: LeaseFile) -> Entry {
        let since = fs::metadata(self.path(file.address())).and_then(|it| it.modified()).ok();
        let (container, ifname) = (file.container.clone(), Some(file.ifname.clone()));
        let holder = Some(Holder { container, ifname, ..Holder::default() });
        Entry { lease: file.lease(), holder, since, fault: None }
    }

    fn lock(&self) -> Result<File> {
        let failed = |e| Error::io(format!("cannot lock {}", self.folder.display()), e);
        lock_folder(&self.folder).map_err(failed)
    }

    /// Every lease. A file that is not a lease fails the call: its address may be in use.
    fn read(&self) -> Result<Vec<LeaseFile>> {
        let failed = |path: &Path, e| Error::io(format!("cannot read {}", path.display()), e);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|e| failed(&self.folder, e))? {
            let path = entry.map_err(|e| failed(&self.folder, e))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with('.') {
                let bytes = fs::read(&path).map_err(|e| failed(&path, e))?;
                files.push(
                    serde_json::from_slice(&bytes)
                        .map_err(|e| failed(&path, io::Error::other(e)))?,
                );
            }
        }
        Ok(files)
    }

    /// Takes the first candidate, which the view showed as free.
    fn claim(&self, owner: &Owner, claim: &Claim<'_>) -> io::Result<Lease> {
        let address = claim.candidates[0];
        let file = LeaseFile::new(owner, claim.lease(address, 0.into()));
        self.write(&file, false)?;
        let cursor = self.cursor(claim.request.index);
        // Without a cursor, the next search begins at the first address.
        let _ = fs::remove_file(&cursor);
        let _ = symlink(address.to_string(), &cursor);
        Ok(file.lease())
    }

    /// How a claim ends whose file was not created.
    fn lost(&self, number: usize, claim: &Claim<'_>, error: io::Error) -> Result<Commit<File>> {
        if error.kind() != ErrorKind::AlreadyExists {
            return Err(Error::io("cannot create a lease file", error));
        }
        let address = claim.candidates[0];
        let holder = self.read()?.into_iter().find(|file| file.address() == address);
        let holder = holder.map(|file| self.entry(file));
        let taken = vec![Taken { claim: number, address, holder }];
        Ok(Commit::Lost { taken, view: None })
    }

    /// Writes a lease file, whole or not at all. If it may not replace one, a link fails where a
    /// file exists.
    fn write(&self, file: &LeaseFile, replaces: bool) -> io::Result<()> {
        let (new, path) = (self.path(".new"), self.path(file.address()));
        // After a kill it may be a second name of a lease.
        let _ = fs::remove_file(&new);
        let mut handle = File::create_new(&new)?;
        handle.write_all(&serde_json::to_vec(file).map_err(io::Error::other)?)?;
        handle.sync_all()?;
        if replaces { fs::rename(new, path) } else { fs::hard_link(new, path) }
    }

    fn delete(&self, leases: &[Lease]) -> Result<()> {
        for path in leases.iter().map(|lease| self.path(lease.address.addr())) {
            let failed = |e| Error::io(format!("cannot delete {}", path.display()), e);
            fs::remove_file(&path).map_err(failed)?;
        }
        Ok(())
    }
}

impl LeaseFile {
    /// A lease as it is written now: its revision is the time in nanoseconds.
    fn new(owner: &Owner, lease: Lease) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let taken = lease.taken.and_then(|taken| taken.duration_since(UNIX_EPOCH).ok());
        Self {
            container: owner.container.to_string(),
            ifname: owner.ifname.to_string(),
            taken: taken.unwrap_or(now).as_millis() as u64,
            lease: Lease { revision: (now.as_nanos() as u64).into(), preexisting: false, ..lease },
        }
    }

    fn address(&self) -> IpAddr {
        self.lease.address.addr()
    }

    fn is_of(&self, owner: &Owner) -> bool {
        self.container == owner.container.as_str() && self.ifname == owner.ifname.as_str()
    }

    /// The lease, with the time at which its owner took it.
    fn lease(self) -> Lease {
        Lease { taken: Some(UNIX_EPOCH + Duration::from_millis(self.taken)), ..self.lease }
    }
}

fn main() -> ExitCode {
    ipam_kit::run("ipam-da-files", Allocate::<Files>::answering(ipam_cli::answer::<Files>))
}
