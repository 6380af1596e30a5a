//! Claims: a lease file appears with its content, or not at all.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::SystemTime;

use ipam_kit::allocate::Owner;
use ipam_kit::host::{make_private_folder, open_own};
use log::debug;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;

use crate::lease_file::{FileRevision, LeaseFile};

/// Takes the first of the candidates that is free; none when all are taken.
///
/// # Errors
/// The folder cannot be written. Nothing is taken then.
pub(crate) fn claim(
    folder: &Path,
    owner: &Owner,
    candidates: impl IntoIterator<Item = IpAddr>,
) -> io::Result<Option<(IpAddr, FileRevision)>> {
    let mut draft = Draft::new(folder, owner)?;
    for address in candidates {
        let name = address.to_string();
        if let Some(revision) = draft.publish(&name)? {
            return Ok(Some((address, revision)));
        }
        let leftover = LeaseFile::shown(folder, &name).is_some_and(|file| file.is_leftover());
        if leftover {
            debug!("removes {}: a killed plugin left it empty", folder.join(&name).display());
            fs::remove_file(folder.join(&name))?;
            if let Some(revision) = draft.publish(&name)? {
                return Ok(Some((address, revision)));
            }
        }
    }
    Ok(None)
}

/// Takes an address from its holder, whose lease file has this name: at no time is it free.
///
/// # Errors
/// The folder cannot be written. The holder keeps the address then.
pub(crate) fn replace(folder: &Path, owner: &Owner, name: &str) -> io::Result<FileRevision> {
    let aside = folder.with_file_name(ASIDE);
    make_private_folder(&aside)?;
    // host-local reads every file in the folder of leases, so the new one is made beside it. A
    // killed process may have left one there.
    let new = folder.file_name().unwrap_or_default();
    let _ = fs::remove_file(aside.join(new));
    let mut draft = Draft::new(&aside, owner)?;
    let revision = draft.publish(&new.to_string_lossy())?.ok_or(ErrorKind::AlreadyExists)?;
    let plain = LeaseFile::address_of(name).map_or_else(|| name.to_owned(), |a| a.to_string());
    let renamed = fs::rename(aside.join(new), folder.join(&plain));
    let revision = match renamed {
        Ok(()) => revision,
        // The folder of leases is a mount of its own.
        Err(error) if error.kind() == ErrorKind::CrossesDevices => {
            let _ = fs::remove_file(aside.join(new));
            fs::remove_file(folder.join(name))?;
            let published = Draft::new(folder, owner)?.publish(&plain)?;
            return published.ok_or_else(|| ErrorKind::AlreadyExists.into());
        }
        Err(error) => return Err(error),
    };
    // The holder's address may have stood in another form.
    if plain != name {
        fs::remove_file(folder.join(name))?;
    }
    Ok(revision)
}

/// The folder beside those of the networks in which a lease file is made that replaces another. No
/// network's name begins with a dot.
const ASIDE: &str = ".ipam-delegated";

/// A lease file without a name yet.
struct Draft<'a> {
    folder: &'a Path,
    content: String,
    /// The file, already written; `None` if the file system has no unnamed files, or cannot name
    /// them.
    nameless: Option<(File, FileRevision)>,
}

impl<'a> Draft<'a> {
    fn new(folder: &'a Path, owner: &Owner) -> io::Result<Self> {
        let content = format!("{}\r\n{}", owner.container, owner.ifname);
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let nameless = match open(folder, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                let file = File::from(file);
                let revision = fill(&file, &content)?;
                Some((file, revision))
            }
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { folder, content, nameless })
    }

    /// Gives the file this name; `None` where the name is taken.
    fn publish(&mut self, name: &str) -> io::Result<Option<FileRevision>> {
        let path = self.folder.join(name);
        if let Some((file, revision)) = &self.nameless {
            let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
            match linkat(CWD, nameless, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => return Ok(Some(*revision)),
                Err(Errno::EXIST) => return Ok(None),
                // No hard links here, or no /proc.
                Err(Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP | Errno::NOENT | Errno::NOSYS) => {
                    self.nameless = None;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let file = match open_own(&path, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, 0o600) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(error),
        };
        // A full disk lets files be made, but not written.
        let written = fill(&file, &self.content).inspect_err(|_| {
            let _ = fs::remove_file(&path);
        });
        written.map(Some)
    }
}

fn fill(mut file: &File, content: &str) -> io::Result<FileRevision> {
    file.write_all(content.as_bytes())?;
    confirm(file)
}

/// Gives a lease file a new revision. The kernel's own time is too coarse to tell two changes
/// within some milliseconds apart.
pub(crate) fn confirm(file: &File) -> io::Result<FileRevision> {
    file.set_modified(SystemTime::now())?;
    Ok(FileRevision::of(&file.metadata()?))
}
