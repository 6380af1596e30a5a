//! When addresses were freed: a file beside the index, which only guides the choice of the next
//! address. Without it, no address rests.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipam_kit::allocate::is_resting;
use ipam_kit::host::StateFile;
use log::warn;

/// The addresses of a network that were freed less than the cooldown ago.
#[derive(Debug)]
pub(crate) struct FreedAddresses {
    file: StateFile,
    /// `ipam.cooldown`; with zero the file is neither read nor written.
    cooldown: Duration,
}

/// The addresses with the time of their release, in microseconds since 1970.
type Times = BTreeMap<IpAddr, u64>;

/// How many addresses rest at most: those freed last. Each DEL writes all of them.
const MOST: usize = 1000;

impl FreedAddresses {
    pub(crate) fn new(path: PathBuf, cooldown: Duration) -> Self {
        Self { file: StateFile::at(path), cooldown }
    }

    /// Returns the addresses that rest, each with the time of its release.
    pub(crate) fn resting(&self) -> BTreeMap<IpAddr, SystemTime> {
        if self.cooldown.is_zero() {
            return BTreeMap::new();
        }
        let mut times: Times = self.file.read();
        self.forget_rested(&mut times);
        times.into_iter().map(|(address, freed)| (address, time(freed))).collect()
    }

    /// Notes that addresses were freed now. A failure is a warning: the addresses are free.
    pub(crate) fn note(&self, addresses: impl IntoIterator<Item = IpAddr>) {
        let mut addresses = addresses.into_iter().peekable();
        if self.cooldown.is_zero() || addresses.peek().is_none() {
            return;
        }
        let noted = self.file.change(|times: &mut Times| {
            times.extend(addresses.map(|address| (address, now())));
            self.forget_rested(times);
        });
        if let Err(error) = noted {
            let path = self.file.path().display();
            warn!("cannot write {path}: addresses freed now do not rest: {error}");
        }
    }

    fn forget_rested(&self, times: &mut Times) {
        times.retain(|_, freed| is_resting(time(*freed), self.cooldown));
        let surplus = times.len().saturating_sub(MOST);
        if surplus > 0 {
            let mut by_time: Vec<_> = times.iter().map(|(ip, freed)| (*freed, *ip)).collect();
            by_time.sort_unstable();
            for (_, address) in &by_time[..surplus] {
                times.remove(address);
            }
        }
    }
}

fn time(microseconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_micros(microseconds)).unwrap_or(UNIX_EPOCH)
}

fn now() -> u64 {
    let since = UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const HOUR: Duration = Duration::from_secs(3600);

    fn address(number: usize) -> IpAddr {
        IpAddr::from(u32::try_from(number).unwrap().to_be_bytes())
    }

    #[test]
    fn the_file_holds_what_rests_and_no_more() {
        let folder = TempDir::new().unwrap();
        let freed = FreedAddresses::new(folder.path().join("a/freed"), HOUR);
        assert!(freed.resting().is_empty());
        let hours = |hours: u64| now() - hours * 3_600_000_000;
        // One that rests, one that has rested, and two of clocks that were set back.
        let times = [(1, hours(0)), (2, hours(2)), (3, now() + 60_000_000), (4, 2 * now())];
        let times: Times = times.map(|(number, time)| (address(number), time)).into();
        freed.file.write(&times).unwrap();
        assert_eq!(freed.resting().into_keys().collect::<Vec<_>>(), [1, 3].map(address));
        freed.note([address(5)]);
        let written: Times = freed.file.read();
        assert_eq!(written.into_keys().collect::<Vec<_>>(), [1, 3, 5].map(address));
        for number in 6..MOST + 10 {
            freed.note([address(number)]);
        }
        let resting = freed.resting();
        assert!(resting.len() == MOST && !resting.contains_key(&address(1)));
        assert!(resting.contains_key(&address(MOST + 9)));
    }

    #[test]
    fn without_a_cooldown_the_file_is_left_alone() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("freed");
        let freed = FreedAddresses::new(path.clone(), Duration::ZERO);
        freed.note([address(1)]);
        assert!(freed.resting().is_empty() && !path.exists());
        FreedAddresses::new(path.clone(), HOUR).note([]);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_cannot_be_used_lets_nothing_rest() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("freed");
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        let freed = FreedAddresses::new(path.clone(), HOUR);
        freed.note([address(1)]);
        assert!(freed.resting().is_empty());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "{\"10.0.0.1\": 7").unwrap();
        assert!(freed.resting().is_empty());
        freed.note([address(1)]);
        assert_eq!(freed.resting().len(), 1);
    }
}
