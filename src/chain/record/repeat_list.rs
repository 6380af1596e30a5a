use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::event::is_due;
use ipam_kit::cni::{Attachment, ContainerId, IfName, NetworkName};
use ipam_kit::host::{StateDir, make_private_folder};

/// The list of records with another DEL due, the folder `unsure`. Each entry is a link: its name
/// begins with the time when it is due, its target names the record.
///
/// The list is nearly always empty, and only a hint: the record itself says when its DEL is due.
#[derive(Debug)]
pub(crate) struct RepeatList {
    folder: PathBuf,
}

/// An entry that is due.
#[derive(Debug)]
pub(crate) struct RepeatEntry {
    link: PathBuf,
    /// The network of the record.
    pub network: NetworkName,
    /// The attachment of the record, without a network namespace.
    pub attachment: Attachment,
}

impl RepeatList {
    /// The list of this state folder.
    pub(crate) fn of(state: &StateDir) -> Self {
        Self { folder: state.unsure() }
    }

    /// Adds a record, due at a time in milliseconds since 1970.
    pub(crate) fn add(
        &self,
        due: u64,
        network: &NetworkName,
        attachment: &Attachment,
    ) -> io::Result<()> {
        let target = format!("{network}/{attachment}");
        make_private_folder(&self.folder)?;
        for number in 0..1000 {
            let link = self.folder.join(format!("{due:015}.{}.{number}", std::process::id()));
            match std::os::unix::fs::symlink(&target, &link) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    self.keep_only(&link, Path::new(&target));
                    return Ok(());
                }
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Removes the entries of a record that is released for good.
    pub(crate) fn remove(&self, network: &NetworkName, attachment: &Attachment) {
        self.keep_only(Path::new(""), Path::new(&format!("{network}/{attachment}")));
    }

    /// Removes the other entries of a record, which the newest one replaces. One that stays is removed
    /// when it is due.
    fn keep_only(&self, newest: &Path, target: &Path) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for link in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if link != newest && fs::read_link(&link).is_ok_and(|other| other == target) {
                let _ = fs::remove_file(link);
            }
        }
    }

    /// The entries that are due at `now`, the oldest first.
    ///
    /// # Errors
    /// The list could not be read.
    pub(crate) fn due(&self, now: u64) -> io::Result<Vec<RepeatEntry>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string());
        }
        names.retain(|name| due_time(name).is_some_and(|due| is_due(due, now)));
        names.sort_unstable();
        let mut found = Vec::new();
        for name in names {
            let link = self.folder.join(name);
            match fs::read_link(&link) {
                Ok(target) => match parse(&link, &target) {
                    Some(due) => found.push(due),
                    // It does not name a record.
                    None => drop(fs::remove_file(&link)),
                },
                // Another call has repeated the DEL, or another program made the entry.
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

impl RepeatEntry {
    /// Takes the entry off the list.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.link);
    }
}

fn due_time(name: &str) -> Option<u64> {
    name.split('.').next()?.parse().ok()
}

fn parse(link: &Path, target: &Path) -> Option<RepeatEntry> {
    let mut parts = target.to_str()?.splitn(3, '/');
    Some(RepeatEntry {
        link: link.to_owned(),
        network: NetworkName::parse(parts.next()?).ok()?,
        attachment: Attachment {
            container: ContainerId::parse(parts.next()?).ok()?,
            ifname: IfName::parse(parts.next()?).ok()?,
            netns: String::new(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_kit::host::Settings;

    #[test]
    fn the_oldest_entry_comes_first_and_only_when_due() {
        let temp = tempfile::TempDir::new().unwrap();
        let settings = Settings { state_dir: temp.path().to_owned(), ..Settings::default() };
        let list = RepeatList::of(&StateDir::of_host(&settings));
        assert!(list.due(u64::MAX).unwrap().is_empty());
        let network = NetworkName::parse("net").unwrap();
        // The second entry of "a" takes the place of the first.
        for (due, container) in [(50, "a"), (300, "c"), (100, "a"), (200, "b"), (100, "a2")] {
            let attachment = Attachment {
                container: ContainerId::parse(container).unwrap(),
                ifname: IfName::parse("eth0").unwrap(),
                netns: String::new(),
            };
            list.add(due, &network, &attachment).unwrap();
        }
        assert!(list.due(99).unwrap().is_empty());
        let due = list.due(200).unwrap();
        let names: Vec<String> = due.iter().map(|due| due.attachment.to_string()).collect();
        assert_eq!(names, ["a/eth0", "a2/eth0", "b/eth0"]);
        due.iter().for_each(RepeatEntry::remove);
        assert!(list.due(200).unwrap().is_empty());
        list.remove(&network, &list.due(300).unwrap()[0].attachment);
        assert!(list.due(300).unwrap().is_empty());
        std::os::unix::fs::symlink("../../etc", temp.path().join("unsure/000000000000001.1.1"))
            .unwrap();
        assert!(list.due(200).unwrap().is_empty());
        fs::remove_dir_all(temp.path().join("unsure")).unwrap();
        fs::write(temp.path().join("unsure"), "").unwrap();
        assert!(list.due(200).is_err(), "what cannot be read is not empty");
    }
}
