//! What this node remembers of pools between two calls: their ranges, and addresses that were free.

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

/// The cache of one pool: a file with the state at a time, and a line for each event since.
///
/// All of it is a hint: Consul judges the index of the ranges, and each address, by the claim itself.
/// Processes of one node take their addresses out of it one after the other, so that they do not meet in
/// Consul.
#[derive(Debug)]
pub(crate) struct Cache {
    path: PathBuf,
}

/// What a pool's addresses are chosen from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RangeSource<'a> {
    /// What stands in Consul.
    Definition(&'a Definition),
    /// What the pool brought with it.
    Request(&'a RangeSet),
}

/// For how long it is believed, in milliseconds: a store that was restored may have the same indexes again.
const AGE: u64 = 60_000;

/// From which length on, in bytes, the events are summed up.
const LONGEST: usize = 32 * 1024;

/// From which length on, in bytes, nobody sums them up: where addresses are only asked for or given back.
const FORGOTTEN: u64 = 2 * LONGEST as u64;

impl Cache {
    /// The cache at this path, which need not exist.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// What is remembered; nothing where that is too old.
    pub(crate) fn read(&self) -> Option<CachedPool> {
        let content = self.content()?;
        let age = now().checked_sub(content.read_at())?;
        (age < AGE).then(|| content.known())
    }

    /// Remembers ranges and free addresses, as they were read now. Whether others were met stays known.
    /// `wide` says that enough was looked at for contention.
    pub(crate) fn renew(&self, ranges: RangeSource<'_>, free: &BTreeSet<IpAddr>, wide: bool) {
        let (definition, brought) = match ranges {
            RangeSource::Definition(definition) => (Some(definition.clone()), None),
            RangeSource::Request(set) => (None, Some(set.to_string())),
        };
        self.logged(|| {
            let _folder = lock_folder(self.folder())?;
            let before = self.content();
            let known = CachedPool {
                definition: definition.clone(),
                brought: brought.clone(),
                free: free.clone(),
                wide,
                cursor: before.as_ref().and_then(CacheFile::cursor),
                contended: false,
            };
            self.write(now(), &known, before.map_or(0, |before| before.contended_claims()))
        });
    }

    /// Chooses the first of the candidates that no other process of this node has taken meanwhile, and takes
    /// it out; the very first where all are gone.
    pub(crate) fn take(&self, candidates: &[IpAddr]) -> Option<IpAddr> {
        let first = candidates.first().copied();
        let mut chosen = first;
        self.logged(|| {
            let _folder = lock_folder(self.folder())?;
            let Some(content) = self.content() else { return Ok(()) };
            chosen = candidates.iter().copied().find(|address| content.is_free(*address)).or(first);
            let Some(chosen) = chosen else { return Ok(()) };
            if content.length > LONGEST {
                let (read, contended_claims) = (content.read_at(), content.contended_claims());
                let mut known = content.known();
                known.free.remove(&chosen);
                known.cursor = Some(chosen);
                return self.write(read, &known, contended_claims.saturating_sub(1));
            }
            self.append(CacheEvent::Chosen(chosen))
        });
        chosen
    }

    /// Notes that others take addresses at the same time.
    pub(crate) fn remember_contention(&self) {
        self.logged(|| self.append(CacheEvent::Contended));
    }

    /// Notes that an address that was asked for is taken.
    pub(crate) fn remember_taken(&self, address: IpAddr) {
        self.logged(|| self.append(CacheEvent::Taken(address)));
    }

    /// Notes that this node has given an address back.
    pub(crate) fn give_back(&self, address: IpAddr) {
        self.logged(|| self.append(CacheEvent::GivenBack(address)));
    }

    /// Forgets everything but whether others were met.
    pub(crate) fn forget(&self) {
        self.logged(|| match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        });
    }

    fn logged(&self, act: impl FnOnce() -> io::Result<()>) {
        if let Err(error) = act() {
            debug!("{} cannot be used: {error}", self.path.display());
        }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Adds an event; nothing where there is no file to add it to. A file that nobody sums up is forgotten.
    fn append(&self, event: CacheEvent) -> io::Result<()> {
        match open_own(&self.path, OFlags::WRONLY | OFlags::APPEND, 0) {
            Ok(file) if file.metadata()?.len() > FORGOTTEN => fs::remove_file(&self.path),
            Ok(mut file) => file.write_all(event.to_line().as_bytes()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn write(&self, read: u64, known: &CachedPool, contended_claims: u32) -> io::Result<()> {
        let line = first_line(read, known, contended_claims)?;
        // A name that no pool's cache has.
        replace_own(&self.path, &beside(&self.path, "#new"), 0o600, &line)
    }

    fn content(&self) -> Option<CacheFile> {
        CacheFile::read(&String::from_utf8(read_own(&self.path).ok()?).ok()?)
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
        cache.give_back("10.0.0.9".parse().unwrap());
        assert_eq!(cache.take(&["10.0.0.9".parse().unwrap()]), Some("10.0.0.9".parse().unwrap()));
        let free = set(&["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.7", "fd00::1"]);
        cache.renew(RangeSource::Request(&ranges()), &free, false);
        assert_eq!(
            cache.read(),
            Some(CachedPool {
                free,
                brought: Some("10.0.0.1-10.0.0.254".into()),
                ..CachedPool::default()
            })
        );
        let candidates: Vec<IpAddr> = set(&["10.0.0.3", "10.0.0.4"]).into_iter().collect();
        assert_eq!(cache.take(&candidates), Some(candidates[0]));
        assert_eq!(cache.take(&candidates), Some(candidates[1]));
        assert_eq!(cache.take(&candidates), Some(candidates[0]));
        cache.give_back(candidates[1]);
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
        cache.renew(RangeSource::Request(&ranges()), &free, false);
        let candidates: Vec<IpAddr> = free.iter().copied().collect();
        let taking = lock_folder(folder.path()).unwrap();
        // Nobody waits longer: Consul tells whether the address is free.
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
        cache.renew(RangeSource::Request(&ranges()), &set(&["10.0.0.2"]), false);
        let mut longest = 0;
        for _ in 0..FORGOTTEN / 10 {
            cache.give_back("10.0.0.2".parse().unwrap());
            longest = longest.max(fs::metadata(&path).map_or(0, |file| file.len()));
        }
        assert!(longest <= FORGOTTEN + 64 && cache.read().is_none(), "{longest}");
    }

    #[test]
    fn pools_whose_names_go_on_have_files_of_their_own() {
        let folder = TempDir::new().unwrap();
        let [blue, new] = ["blue", "blue.new"].map(|name| Cache::at(folder.path().join(name)));
        new.renew(RangeSource::Request(&ranges()), &set(&["10.0.0.2"]), false);
        blue.renew(RangeSource::Request(&ranges()), &set(&["10.0.0.3"]), false);
        assert_eq!(new.read().unwrap().free, set(&["10.0.0.2"]));
    }

    #[test]
    fn a_crowd_is_remembered_for_some_claims() {
        let folder = TempDir::new().unwrap();
        let cache = Cache::at(folder.path().join("pool"));
        cache.renew(RangeSource::Request(&ranges()), &set(&["10.0.0.2"]), false);
        cache.remember_contention();
        for _ in 0..CONTENDED_CLAIMS {
            assert!(cache.read().unwrap().contended);
            cache.renew(RangeSource::Request(&ranges()), &set(&["10.0.0.2"]), false);
            cache.take(&["10.0.0.2".parse().unwrap()]);
        }
        assert!(!cache.read().unwrap().contended);
    }

    #[test]
    fn a_long_file_is_summed_up_and_an_old_one_is_not_believed() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("pool");
        let cache = Cache::at(path.clone());
        cache.renew(RangeSource::Request(&ranges()), &set(&["10.0.0.2", "10.0.0.3"]), false);
        for _ in 0..LONGEST / 10 {
            cache.give_back("10.0.0.2".parse().unwrap());
        }
        cache.take(&["10.0.0.2".parse().unwrap()]);
        assert!(fs::metadata(&path).unwrap().len() < 200);
        assert_eq!(cache.read().unwrap().free, set(&["10.0.0.3"]));
        let old = fs::read_to_string(&path).unwrap();
        let read = now() - AGE;
        let start = old.find(',').unwrap();
        fs::write(&path, format!("{{\"read\":{read}{}", &old[start..])).unwrap();
        assert_eq!(cache.read(), None);
    }
}
