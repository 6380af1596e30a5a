//! The node's memory of a pool between two calls: its ranges, and addresses that were free.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam_kit::allocate::owner_index::now;
use ipam_kit::host::{beside, lock_folder, open_own, read_own, replace_own};
use ipam_kit::pool::RangeSet;
use log::debug;
use rustix::fs::OFlags;

use crate::cache_file::{CacheEvent, CacheFile, CachedPool, first_line};
use crate::definition::Definition;

/// The cache of one pool: a file with a state and a line for each event since.
///
/// All of it is a hint: the claim itself checks the definition's index and each address in Consul.
/// Processes of one node take addresses out of the cache one after the other, so that they do not
/// try the same one in Consul. A cache that cannot be used is skipped with a line in the verbose
/// log.
#[derive(Debug)]
pub(crate) struct Cache {
    path: PathBuf,
}

/// The ranges that a pool's addresses are chosen from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RangeSource<'a> {
    /// Those of the definition in Consul.
    Definition(&'a Definition),
    /// Those that came with the request.
    Request(&'a RangeSet),
}

/// How long a cache is used, in milliseconds: a restored store may reach the same indexes again.
const MAX_AGE: u64 = 60_000;

/// From this length on, in bytes, the next claim replaces the events with a new state.
const COMPACTED: usize = 32 * 1024;

/// From this length on, in bytes, the file is removed: no claim compacts it, because addresses are
/// only requested or released.
const REMOVED: u64 = 2 * COMPACTED as u64;

impl Cache {
    /// Returns the cache at this path, which need not exist.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Reads the cache; `None` if it is missing, or too old.
    pub(crate) fn read(&self) -> Option<CachedPool> {
        let file = self.read_file()?;
        let age = now().checked_sub(file.read_at())?;
        (age < MAX_AGE).then(|| file.into_pool())
    }

    /// Remembers ranges and free addresses as they were read now. Contention stays remembered.
    /// `wide` says that enough addresses were listed for a contended pool.
    pub(crate) fn remember_free(
        &self,
        ranges: RangeSource<'_>,
        free: &BTreeSet<IpAddr>,
        wide: bool,
    ) {
        let (definition, ranges) = match ranges {
            RangeSource::Definition(definition) => (Some(definition.clone()), None),
            RangeSource::Request(set) => (None, Some(set.to_string())),
        };
        self.log_failure(self.replace_state(CachedPool {
            definition,
            ranges,
            free: free.clone(),
            wide,
            ..CachedPool::default()
        }));
    }

    fn replace_state(&self, pool: CachedPool) -> io::Result<()> {
        let _folder = lock_folder(self.folder())?;
        let before = self.read_file();
        let cursor = before.as_ref().and_then(CacheFile::cursor);
        let contended_claims = before.map_or(0, |before| before.contended_claims());
        self.write(now(), &CachedPool { cursor, ..pool }, contended_claims)
    }

    /// Takes out the first candidate that no other process of this node has taken, and answers it;
    /// the very first one if all are gone, or if the cache cannot be used.
    pub(crate) fn take(&self, candidates: &[IpAddr]) -> Option<IpAddr> {
        let mut chosen = *candidates.first()?;
        self.log_failure(self.take_out(candidates, &mut chosen));
        Some(chosen)
    }

    /// Sets `chosen` to the candidate that it takes out, before it writes the event.
    fn take_out(&self, candidates: &[IpAddr], chosen: &mut IpAddr) -> io::Result<()> {
        let _folder = lock_folder(self.folder())?;
        let Some(file) = self.read_file() else { return Ok(()) };
        if let Some(free) = candidates.iter().find(|address| file.is_free(**address)) {
            *chosen = *free;
        }
        if file.length <= COMPACTED {
            return self.append(CacheEvent::Chosen(*chosen));
        }
        let read_at = file.read_at();
        let contended_claims = file.contended_claims().saturating_sub(1);
        let mut pool = file.into_pool();
        pool.free.remove(chosen);
        pool.cursor = Some(*chosen);
        self.write(read_at, &pool, contended_claims)
    }

    /// Remembers that others claim addresses of the pool at the same time.
    pub(crate) fn remember_contention(&self) {
        self.log_failure(self.append(CacheEvent::Contended));
    }

    /// Remembers that a requested address is taken.
    pub(crate) fn remember_taken(&self, address: IpAddr) {
        self.log_failure(self.append(CacheEvent::Taken(address)));
    }

    /// Remembers that an address of this node is free again.
    pub(crate) fn put_back(&self, address: IpAddr) {
        self.log_failure(self.append(CacheEvent::PutBack(address)));
    }

    /// Forgets everything, contention too.
    pub(crate) fn forget(&self) {
        self.log_failure(match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        });
    }

    fn log_failure(&self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            debug!("cannot use the cache {}: {error}", self.path.display());
        }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Adds an event to the file if there is one, and removes a file that no claim compacts.
    fn append(&self, event: CacheEvent) -> io::Result<()> {
        match open_own(&self.path, OFlags::WRONLY | OFlags::APPEND, 0) {
            Ok(file) if file.metadata()?.len() > REMOVED => fs::remove_file(&self.path),
            Ok(mut file) => file.write_all(event.to_line().as_bytes()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn write(&self, read_at: u64, pool: &CachedPool, contended_claims: u32) -> io::Result<()> {
        let line = first_line(read_at, pool, contended_claims)?;
        // No pool's cache has this name.
        replace_own(&self.path, &beside(&self.path, "#new"), 0o600, &line)
    }

    fn read_file(&self) -> Option<CacheFile> {
        CacheFile::parse(&String::from_utf8(read_own(&self.path).ok()?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_file::CONTENDED_CLAIMS;
    use ipam_kit::pool::{RangeConfig, RangeRules};
    use tempfile::TempDir;

    fn set(addresses: &[&str]) -> BTreeSet<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn ranges() -> RangeSet {
        let ranges = [RangeConfig { subnet: Some("10.0.0.0/24".into()), ..RangeConfig::default() }];
        RangeSet::parse(&ranges, RangeRules::CONSUL, "p").unwrap()
    }

    #[test]
    fn events_change_what_is_known() {
        let folder = TempDir::new().unwrap();
        let cache = Cache::at(folder.path().join("a/pool"));
        assert_eq!(cache.read(), None);
        cache.put_back("10.0.0.9".parse().unwrap());
        assert_eq!(cache.take(&["10.0.0.9".parse().unwrap()]), Some("10.0.0.9".parse().unwrap()));
        let free = set(&["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.7", "fd00::1"]);
        cache.remember_free(RangeSource::Request(&ranges()), &free, false);
        assert_eq!(
            cache.read(),
            Some(CachedPool {
                free,
                ranges: Some("10.0.0.1-10.0.0.254".into()),
                ..CachedPool::default()
            })
        );
        let candidates: Vec<IpAddr> = set(&["10.0.0.3", "10.0.0.4"]).into_iter().collect();
        assert_eq!(cache.take(&candidates), Some(candidates[0]));
        assert_eq!(cache.take(&candidates), Some(candidates[1]));
        assert_eq!(cache.take(&candidates), Some(candidates[0]));
        cache.put_back(candidates[1]);
        let known = cache.read().unwrap();
        assert_eq!(known.free, set(&["10.0.0.2", "10.0.0.4", "10.0.0.7", "fd00::1"]));
        assert_eq!((known.cursor, known.contended), (Some(candidates[0]), false));
        cache.forget();
        assert_eq!(cache.read(), None);
    }

    #[test]
    fn nothing_is_taken_out_while_another_process_takes() {
        let folder = TempDir::new().unwrap();
        let cache = Cache::at(folder.path().join("pool"));
        let free = set(&["10.0.0.2", "10.0.0.3"]);
        cache.remember_free(RangeSource::Request(&ranges()), &free, false);
        let candidates: Vec<IpAddr> = free.iter().copied().collect();
        let taking = lock_folder(folder.path()).unwrap();
        // The call goes on: Consul tells whether the address is free.
        assert_eq!(cache.take(&candidates), Some(candidates[0]));
        assert_eq!(cache.read().unwrap().free, free);
        drop(taking);
        assert_eq!(cache.take(&candidates), Some(candidates[0]));
        assert_eq!(cache.read().unwrap().free, set(&["10.0.0.3"]));
    }

    #[test]
    fn a_file_to_which_is_only_added_does_not_grow_for_ever() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("pool");
        let cache = Cache::at(path.clone());
        cache.remember_free(RangeSource::Request(&ranges()), &set(&["10.0.0.2"]), false);
        let mut longest = 0;
        for _ in 0..REMOVED / 10 {
            cache.put_back("10.0.0.2".parse().unwrap());
            longest = longest.max(fs::metadata(&path).map_or(0, |file| file.len()));
        }
        assert!(longest <= REMOVED + 64 && cache.read().is_none(), "{longest}");
    }

    #[test]
    fn pools_whose_names_go_on_have_files_of_their_own() {
        let folder = TempDir::new().unwrap();
        let [blue, new] = ["blue", "blue.new"].map(|name| Cache::at(folder.path().join(name)));
        new.remember_free(RangeSource::Request(&ranges()), &set(&["10.0.0.2"]), false);
        blue.remember_free(RangeSource::Request(&ranges()), &set(&["10.0.0.3"]), false);
        assert_eq!(new.read().unwrap().free, set(&["10.0.0.2"]));
    }

    #[test]
    fn a_crowd_is_remembered_for_some_claims() {
        let folder = TempDir::new().unwrap();
        let cache = Cache::at(folder.path().join("pool"));
        cache.remember_free(RangeSource::Request(&ranges()), &set(&["10.0.0.2"]), false);
        cache.remember_contention();
        for _ in 0..CONTENDED_CLAIMS {
            assert!(cache.read().unwrap().contended);
            cache.remember_free(RangeSource::Request(&ranges()), &set(&["10.0.0.2"]), false);
            cache.take(&["10.0.0.2".parse().unwrap()]);
        }
        assert!(!cache.read().unwrap().contended);
    }

    #[test]
    fn a_long_file_is_summed_up_and_an_old_one_is_not_believed() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("pool");
        let cache = Cache::at(path.clone());
        cache.remember_free(
            RangeSource::Request(&ranges()),
            &set(&["10.0.0.2", "10.0.0.3"]),
            false,
        );
        for _ in 0..COMPACTED / 10 {
            cache.put_back("10.0.0.2".parse().unwrap());
        }
        cache.take(&["10.0.0.2".parse().unwrap()]);
        assert!(fs::metadata(&path).unwrap().len() < 200);
        assert_eq!(cache.read().unwrap().free, set(&["10.0.0.3"]));
        let old = fs::read_to_string(&path).unwrap();
        let read = now() - MAX_AGE;
        let start = old.find(',').unwrap();
        fs::write(&path, format!("{{\"read\":{read}{}", &old[start..])).unwrap();
        assert_eq!(cache.read(), None);
    }
}
