//! A table of owners and their leases in one file, changed in place: an entry costs no inode.
//!
//! Each slot has an owner's key and an address as text, `c1:eth0 10.9.0.2`, padded with zero bytes.
//! An entry is in one of the slots that follow the hash of its key (`WINDOW`), so a search is one
//! read, and no change moves another entry. A table whose window is full is emptied, and made again
//! for the leases there are.
//!
//! A key has `MOST` addresses at most, and then the mark `*`: it must not fill the window of others.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ipam_kit::host::open_own;
use ipam_kit::text::stable_hash;
use rustix::fs::OFlags;

/// The file of a table, open.
#[derive(Debug)]
pub(crate) struct OwnerTable {
    file: File,
    /// How many windows there are: as many as slots, without those after the last hash.
    hashes: u64,
}

/// The bytes before the first slot, with one line of text.
const HEADER: usize = 4096;

/// The bytes of a slot. A key has at most 80, an address 45.
const SLOT: usize = 128;

/// How many slots an entry may be in.
const WINDOW: usize = 64;

/// How many addresses a key may have.
const MOST: usize = 16;

/// The address of a key that has more.
const MORE: &str = "*";

/// How many slots are read at once to see all.
const CHUNK: usize = 512;

impl OwnerTable {
    /// Opens a table; `None` if the file does not exist, or has not the length of a table.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match open_own(path, OFlags::RDWR, 0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let slots = file.metadata()?.len().checked_sub(HEADER as u64);
        let slots = slots.filter(|bytes| bytes.is_multiple_of(SLOT as u64));
        let slots = slots.map(|bytes| bytes / SLOT as u64);
        let hashes = slots.and_then(|slots| slots.checked_sub(WINDOW as u64));
        Ok(hashes.filter(|hashes| *hashes > 0).map(|hashes| Self { file, hashes }))
    }

    /// Makes an empty table with room for as many leases, and some more.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn create(path: &Path, leases: usize) -> io::Result<Self> {
        let hashes = (2 * leases as u64 + 512).next_power_of_two();
        let file = open_own(path, OFlags::RDWR | OFlags::CREATE, 0o600)?;
        file.set_len(0)?;
        let table = Self { file, hashes };
        table.file.set_len(HEADER as u64 + table.slots() * SLOT as u64)?;
        Ok(table)
    }

    /// Reads the line before the slots; `None` if it was never written.
    pub(crate) fn header(&self) -> io::Result<Option<String>> {
        let bytes = self.read(0, HEADER)?;
        let line = bytes.split(|byte| *byte == b'\n').next().filter(|line| line.len() < HEADER);
        Ok(line.and_then(|line| String::from_utf8(line.to_vec()).ok()))
    }

    /// Writes the line before the slots.
    ///
    /// # Errors
    /// It is too long, or cannot be written.
    pub(crate) fn set_header(&self, line: &str) -> io::Result<()> {
        if line.len() >= HEADER {
            return Err(ErrorKind::InvalidInput.into());
        }
        // What is left of a longer line comes after the newline.
        self.file.write_all_at(format!("{line}\n").as_bytes(), 0)
    }

    /// Returns how many slots there are.
    pub(crate) fn slots(&self) -> u64 {
        self.hashes + WINDOW as u64
    }

    /// Returns the addresses under a key.
    ///
    /// # Errors
    /// The table cannot be read, or the key has more addresses than a table keeps.
    pub(crate) fn addresses(&self, key: &str) -> io::Result<Vec<String>> {
        let window = self.read(self.window(key), WINDOW * SLOT)?;
        let entries = window.chunks(SLOT).filter_map(entry).filter(|(other, _)| *other == key);
        let addresses: Vec<String> = entries.map(|(_, address)| address.to_owned()).collect();
        match addresses.iter().any(|address| address == MORE) {
            true => Err(io::Error::other(format!("{key} has more than {MOST} leases"))),
            false => Ok(addresses),
        }
    }

    /// Adds an address under a key, unless it is there.
    ///
    /// # Errors
    /// The table is full, or cannot be written. A full one is emptied.
    pub(crate) fn add(&self, key: &str, address: &str) -> io::Result<()> {
        let at = self.window(key);
        let window = self.read(at, WINDOW * SLOT)?;
        let mut free = None;
        let mut its = 0;
        for (number, slot) in window.chunks(SLOT).enumerate() {
            match entry(slot) {
                Some((other, found)) if other == key => {
                    if found == address || found == MORE {
                        return Ok(());
                    }
                    its += 1;
                }
                Some(_) => {}
                None => free = free.or(Some(number)),
            }
        }
        let address = if its < MOST { address } else { MORE };
        let text = format!("{key} {address}");
        let Some(free) = free.filter(|_| text.len() <= SLOT) else {
            self.file.set_len(0)?;
            return Err(io::Error::other("the table is full"));
        };
        let mut slot = text.into_bytes();
        slot.resize(SLOT, 0);
        self.file.write_all_at(&slot, at + (free * SLOT) as u64)
    }

    /// Takes an address off a key.
    pub(crate) fn remove(&self, key: &str, address: &str) -> io::Result<()> {
        let at = self.window(key);
        let window = self.read(at, WINDOW * SLOT)?;
        for (number, slot) in window.chunks(SLOT).enumerate() {
            if entry(slot) == Some((key, address)) {
                self.clear(at + (number * SLOT) as u64)?;
            }
        }
        Ok(())
    }

    /// Shows each key and address to `keep`, and removes those that it does not keep, or that no
    /// search finds: the file had another length when they were written.
    ///
    /// # Errors
    /// The table cannot be read or written, or `keep` failed.
    pub(crate) fn retain(
        &self,
        mut keep: impl FnMut(&str, &str) -> io::Result<bool>,
    ) -> io::Result<()> {
        let end = HEADER as u64 + self.slots() * SLOT as u64;
        for at in (HEADER as u64..end).step_by(CHUNK * SLOT) {
            for (number, slot) in self.read(at, CHUNK * SLOT)?.chunks(SLOT).enumerate() {
                let at = at + (number * SLOT) as u64;
                let kept = match entry(slot) {
                    Some((key, address)) => self.is_found(key, at) && keep(key, address)?,
                    None => slot.iter().all(|byte| *byte == 0),
                };
                if !kept {
                    self.clear(at)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether the slot at this place is one where a search for the key looks.
    fn is_found(&self, key: &str, at: u64) -> bool {
        let window = self.window(key);
        (window..window + (WINDOW * SLOT) as u64).contains(&at)
    }

    fn clear(&self, at: u64) -> io::Result<()> {
        self.file.write_all_at(&[0; SLOT], at)
    }

    fn window(&self, key: &str) -> u64 {
        HEADER as u64 + stable_hash(key) % self.hashes * SLOT as u64
    }

    /// Reads so many bytes, or those up to the end of the file.
    fn read(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match self.file.read_at(&mut bytes[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

/// The key and the address of a slot; `None` if it is free.
fn entry(slot: &[u8]) -> Option<(&str, &str)> {
    let end = slot.iter().position(|byte| *byte == 0).unwrap_or(slot.len());
    std::str::from_utf8(&slot[..end]).ok()?.split_once(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn table(temp: &TempDir, leases: usize) -> OwnerTable {
        OwnerTable::create(&temp.path().join("index"), leases).unwrap()
    }

    #[test]
    fn a_table_says_what_was_written_to_it() {
        let temp = TempDir::new().unwrap();
        let table = table(&temp, 1000);
        let of = |number: u32| [format!("c{number}:eth0"), format!("10.0.{number}.1")];
        for number in 0..1000 {
            let [key, address] = of(number);
            table.add(&key, &address).unwrap();
            table.add(&key, &address).unwrap();
            table.add(&key, "fd00::1").unwrap();
            if number % 2 == 0 {
                table.remove(&key, &address).unwrap();
            }
        }
        table.set_header("a longer line").unwrap();
        table.set_header("a line").unwrap();
        let table = OwnerTable::open(&temp.path().join("index")).unwrap().unwrap();
        assert_eq!(table.header().unwrap().unwrap(), "a line");
        let mut seen = 0;
        table
            .retain(|key, address| {
                seen += 1;
                Ok(key != "c1:eth0" || address != "10.0.1.1")
            })
            .unwrap();
        assert_eq!(seen, 1500);
        for number in 0..1000 {
            let [key, address] = of(number);
            let mut found = table.addresses(&key).unwrap();
            found.sort_unstable();
            match number {
                number if number == 1 || number % 2 == 0 => assert_eq!(found, ["fd00::1"]),
                _ => assert_eq!(found, [&address, "fd00::1"]),
            }
        }
        assert!(table.addresses("c1:eth1").unwrap().is_empty());
    }

    #[test]
    fn a_full_table_is_replaced_by_a_larger_one() {
        let temp = TempDir::new().unwrap();
        let small = table(&temp, 0);
        let added = (0..2000).take_while(|n| small.add(&format!("c{n}:eth0"), "10.0.0.1").is_ok());
        assert!((200..2000).contains(&added.count()));
        assert!(OwnerTable::open(&temp.path().join("index")).unwrap().is_none());
        let large = table(&temp, 2000);
        for n in 0..2000 {
            large.add(&format!("c{n}:eth0"), "10.0.0.1").unwrap();
        }
        assert_eq!(large.header().unwrap(), None);
    }

    #[test]
    fn a_key_with_very_many_addresses_leaves_room_for_others() {
        let temp = TempDir::new().unwrap();
        let table = table(&temp, 0);
        let address = |n: usize| format!("10.0.0.{n}");
        for n in 0..MOST {
            table.add("reserved:", &address(n)).unwrap();
        }
        assert_eq!(table.addresses("reserved:").unwrap().len(), MOST);
        for n in MOST..200 {
            table.add("reserved:", &address(n)).unwrap();
        }
        table.addresses("reserved:").unwrap_err();
        // All that are left may be seen after the mark was removed.
        let mut seen = Vec::new();
        table
            .retain(|_, address| {
                seen.push(address.to_owned());
                Ok(address != MORE)
            })
            .unwrap();
        assert_eq!(seen.len(), MOST + 1);
        assert_eq!(table.addresses("reserved:").unwrap().len(), MOST);
    }

    #[test]
    fn entries_that_no_search_finds_any_more_are_removed() {
        let temp = TempDir::new().unwrap();
        let path = temp.path().join("index");
        let small = table(&temp, 0);
        for n in 0..100 {
            small.add(&format!("c{n}:eth0"), "10.0.0.1").unwrap();
        }
        let length = small.file.metadata().unwrap().len();
        small.file.set_len(length + 1024 * SLOT as u64).unwrap();
        let large = OwnerTable::open(&path).unwrap().unwrap();
        let mut kept = 0;
        large
            .retain(|key, _| {
                kept += 1;
                assert_eq!(large.addresses(key).unwrap(), ["10.0.0.1"]);
                Ok(true)
            })
            .unwrap();
        assert!(kept < 100);
        for n in 0..100 {
            large.add(&format!("c{n}:eth0"), "10.0.0.1").unwrap();
            assert_eq!(large.addresses(&format!("c{n}:eth0")).unwrap(), ["10.0.0.1"]);
        }
    }
}
