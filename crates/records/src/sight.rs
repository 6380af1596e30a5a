//! A subnet as one list of its records showed it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use ipam_kit::allocate::Owner;
use ipam_kit::host::is_old;
use ipam_kit::{Error, ErrorCode, Result};

use crate::mark::OwnerMark;
use crate::node_records::NodeRecord;
use crate::server::{AddressRecord, ListDetail, ListQuery, Listed, Listing, RecordServer, Subnet};

/// How often a subnet is listed until a second list shows the ids of the records that are needed.
const LOOKS: u32 = 3;

/// The subjects of a look at a subnet, beside the addresses in use.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) owner: Owner,
    /// The hashes of sticky names.
    pub(crate) names: BTreeSet<String>,
    /// The addresses whose records are needed.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The names by which an older program finds its records.
    pub(crate) old_names: BTreeSet<String>,
    /// The records of this node in the subnet, the latest first, to see whether they are there.
    pub(crate) noted: Vec<NodeRecord>,
    /// The owner's records that are known, by their addresses: a list need not show their ids.
    pub(crate) known: BTreeMap<IpAddr, AddressRecord>,
}

impl Watch {
    /// A look at the records of an owner and of nothing else.
    pub(crate) fn of(owner: &Owner) -> Self {
        let (names, addresses, old_names, noted, known) = Default::default();
        Self { owner: owner.clone(), names, addresses, old_names, noted, known }
    }
}

/// A record with its mark.
#[derive(Clone, Debug)]
pub(crate) struct Marked {
    pub(crate) record: AddressRecord,
    pub(crate) mark: OwnerMark,
}

/// A subnet as one list of its records showed it.
#[derive(Clone, Debug)]
pub(crate) struct SubnetSight {
    pub(crate) subnet: Subnet,
    watch: Watch,
    /// Whether all records were shown, so that other addresses are free.
    pub(crate) is_whole: bool,
    /// The addresses with a record that counts.
    pub(crate) used: BTreeSet<IpAddr>,
    /// How many records there are of addresses with several.
    several: BTreeMap<IpAddr, usize>,
    /// The owner's records.
    pub(crate) own: Vec<Marked>,
    /// Those that were deleted, because a release might still end them.
    pub(crate) ended: Vec<Marked>,
    /// The records that have a watched name, of other owners or without an owner.
    pub(crate) named: Vec<Marked>,
    /// The records of watched addresses.
    pub(crate) watched: BTreeMap<IpAddr, AddressRecord>,
    /// The records of an older program that have a watched name.
    pub(crate) unowned: Vec<AddressRecord>,
    /// The ids of noted records whose owners have a record of the same address.
    confirmed: BTreeSet<String>,
    /// Addresses that were kept for a name whose time is over.
    pub(crate) expired: BTreeMap<IpAddr, AddressRecord>,
    /// Whether an address is kept for a name, and the list did not show since when.
    has_kept_without_time: bool,
}

impl SubnetSight {
    fn new(subnet: &Subnet, watch: &Watch) -> Self {
        Self {
            subnet: subnet.clone(),
            watch: watch.clone(),
            is_whole: false,
            used: BTreeSet::new(),
            several: BTreeMap::new(),
            own: Vec::new(),
            ended: Vec::new(),
            named: Vec::new(),
            watched: BTreeMap::new(),
            unowned: Vec::new(),
            confirmed: BTreeSet::new(),
            expired: BTreeMap::new(),
            has_kept_without_time: false,
        }
    }

    /// A subnet that was not listed.
    pub(crate) fn unseen(subnet: &Subnet, watch: &Watch) -> Self {
        Self::new(subnet, watch)
    }

    /// Lists a subnet; `None` if the server lacks the subnet. With `start`, only records whose texts
    /// begin with it are needed.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub(crate) fn look<S: RecordServer>(
        server: &mut S,
        subnet: &Subnet,
        watch: &Watch,
        start: Option<&str>,
    ) -> Result<Option<Self>> {
        let mut sight = Self::new(subnet, watch);
        for _ in 0..LOOKS {
            let query = ListQuery { start, detail: ListDetail::Texts };
            match server.list(&subnet.id, query, &mut sight)? {
                Listed::NoSubnet => return Ok(None),
                Listed::All => sight.is_whole = true,
                Listed::Queried => sight.is_whole = false,
            }
            if sight.incomplete().is_none() {
                return Ok(Some(sight));
            }
            let query = ListQuery { start, detail: ListDetail::Shown };
            if server.list(&subnet.id, query, &mut Completion(&mut sight))? == Listed::NoSubnet {
                return Ok(None);
            }
            if sight.incomplete().is_none() {
                return Ok(Some(sight));
            }
        }
        let address = sight.incomplete().map(|address| address.to_string()).unwrap_or_default();
        let message = format!("{}: the record of {address} changes while it is read", S::NAME);
        Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
    }

    /// Lists the subnet again with times, to find addresses that were kept too long; false if
    /// the times are known.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub(crate) fn look_for_expired<S: RecordServer>(&mut self, server: &mut S) -> Result<bool> {
        if !self.has_kept_without_time {
            return Ok(false);
        }
        let id = self.subnet.id.clone();
        let query = ListQuery { start: None, detail: ListDetail::Whole };
        self.is_whole = server.list(&id, query, self)? == Listed::All;
        Ok(true)
    }

    /// The address of a record that is needed with its id, and was shown without it.
    fn incomplete(&self) -> Option<IpAddr> {
        let marked = self.own.iter().chain(&self.named).map(|marked| &marked.record);
        let mut needed = marked.chain(self.watched.values()).chain(&self.unowned);
        needed.find(|record| record.id.is_empty()).map(|record| record.address)
    }

    /// A record of the owner. If the list does not show its id, it is the known one of its address; of
    /// two records of an address, one may be known.
    fn known_record(&self, record: AddressRecord) -> AddressRecord {
        let known = self.watch.known.get(&record.address).filter(|_| record.id.is_empty());
        let known = known.filter(|known| self.own.iter().all(|own| own.record.id != known.id));
        known.cloned().unwrap_or(record)
    }

    /// The records of this node by its notes, the latest first.
    pub(crate) fn noted(&self) -> &[NodeRecord] {
        &self.watch.noted
    }

    /// Whether the list showed a noted record.
    pub(crate) fn confirms(&self, noted: &NodeRecord) -> bool {
        self.confirmed.contains(&noted.record.id)
    }

    /// Whether an address has a record, also one that does not count.
    pub(crate) fn has_record(&self, address: IpAddr) -> bool {
        self.used.contains(&address) || self.expired.contains_key(&address)
    }

    /// How many records an address has.
    pub(crate) fn count(&self, address: IpAddr) -> usize {
        match self.several.get(&address) {
            Some(count) => *count,
            None => usize::from(self.used.contains(&address)),
        }
    }

    /// Whether a record of an address is not the owner's.
    pub(crate) fn is_shared(&self, address: IpAddr) -> bool {
        let own = self.own.iter().filter(|own| own.record.address == address).count();
        self.count(address) > own
    }

    /// The records that have a watched name: of other owners, then those that are kept for it.
    pub(crate) fn with_name(&self, name: &str) -> impl Iterator<Item = &Marked> {
        let named = move |marked: &&Marked| marked.has_name(name);
        let kept = self.named.iter().filter(|marked| marked.mark.holder.is_none());
        self.rivals(name).chain(kept.filter(named))
    }

    /// The records of other owners that have a watched name.
    pub(crate) fn rivals(&self, name: &str) -> impl Iterator<Item = &Marked> {
        let held = self.named.iter().filter(|marked| marked.mark.holder.is_some());
        held.filter(move |marked| marked.has_name(name))
    }
}

impl Marked {
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.mark.sticky.as_ref().is_some_and(|sticky| sticky.hash == name)
    }

    /// Whether it keeps an address for a name whose time is over.
    fn is_expired(&self) -> bool {
        let keep = self.mark.sticky.as_ref().map(|sticky| sticky.keep()).unwrap_or_default();
        self.mark.holder.is_none()
            && self.record.written.is_some_and(|since| is_old(since, keep, SystemTime::now()))
    }
}

impl Listing for SubnetSight {
    fn begin(&mut self) {
        let Self { subnet, watch, .. } = self;
        *self = Self::new(subnet, watch);
    }

    fn take(&mut self, record: AddressRecord) {
        let address = record.address;
        if !self.used.insert(address) {
            *self.several.entry(address).or_insert(1) += 1;
        }
        let mark = OwnerMark::parse(&record.text).and_then(Result::ok);
        let marked = mark.map(|mark| Marked { record: record.clone(), mark });
        if self.watch.old_names.contains(&record.text) {
            self.unowned.push(record.clone());
        }
        if self.watch.addresses.contains(&address) {
            self.watched.insert(address, record);
        }
        let Some(marked) = marked else { return };
        let Watch { owner, names, noted, .. } = &self.watch;
        let is_noted = |noted: &&NodeRecord| {
            noted.record.address == address && marked.mark.is_of_noted(&noted.owner)
        };
        let confirmed = noted.iter().filter(is_noted).map(|noted| noted.record.id.clone());
        self.confirmed.extend(confirmed);
        let has_watched_name = marked.mark.is_of_network(&owner.scope)
            && marked.mark.sticky.as_ref().is_some_and(|sticky| names.contains(&sticky.hash));
        if marked.mark.is_of(owner) {
            let record = self.known_record(marked.record);
            self.own.push(Marked { record, ..marked });
        } else if has_watched_name {
            self.named.push(marked);
        } else if marked.mark.holder.is_none() {
            if marked.is_expired() && self.count(address) == 1 {
                self.used.remove(&address);
                self.expired.insert(address, marked.record);
            } else {
                self.has_kept_without_time |= marked.record.written.is_none();
            }
        }
    }
}

/// The receiver of a list that shows the ids of records that are known without them.
struct Completion<'a>(&'a mut SubnetSight);

impl Listing for Completion<'_> {
    fn begin(&mut self) {}

    fn take(&mut self, record: AddressRecord) {
        let SubnetSight { own, named, watched, unowned, .. } = &mut *self.0;
        complete(own.iter_mut().chain(named).map(|marked| &mut marked.record), &record);
        complete(watched.get_mut(&record.address).into_iter(), &record);
        complete(unowned.iter_mut(), &record);
    }
}

/// Writes a record over the first of the same address and text that has no id.
fn complete<'a>(known: impl Iterator<Item = &'a mut AddressRecord>, record: &AddressRecord) {
    let mut incomplete = None;
    for known in known.filter(|known| known.address == record.address) {
        if known.id == record.id {
            return;
        }
        if known.id.is_empty() && known.text == record.text && incomplete.is_none() {
            incomplete = Some(known);
        }
    }
    if let Some(incomplete) = incomplete {
        *incomplete = record.clone();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ipam_kit::allocate::Scope;
    use ipam_kit::cni::{ContainerId, IfName, NetworkName};

    use super::*;
    use crate::mark::{NameMark, sticky_hash};

    fn owner(container: &str) -> Owner {
        let scope = Scope { node: "n".into(), network: NetworkName::parse("lan").unwrap() };
        Owner {
            scope,
            container: ContainerId::parse(container).unwrap(),
            ifname: IfName::parse("eth0").unwrap(),
        }
    }

    fn sight() -> SubnetSight {
        let subnet = Subnet {
            id: "7".into(),
            name: "blue".into(),
            cidr: "10.0.0.0/24".parse().unwrap(),
            gateway: None,
            parent: None,
            refusal: None,
        };
        let names = [sticky_hash("lan", "web")].into();
        let watch = Watch { names, addresses: [ip(9)].into(), ..Watch::of(&owner("c1")) };
        SubnetSight::new(&subnet, &watch)
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn record(last: u8, text: String) -> AddressRecord {
        let written = Some(SystemTime::now() - Duration::from_secs(7200));
        AddressRecord {
            id: format!("id-{last}"),
            address: ip(last),
            text,
            stamp: "1".into(),
            written,
        }
    }

    fn text(container: &str, sticky: Option<(&str, u64)>) -> String {
        let sticky =
            sticky.map(|(name, keep)| NameMark::new("lan", name, Duration::from_secs(keep)));
        OwnerMark::text_of(&owner(container), sticky.as_ref(), "", 100).unwrap()
    }

    fn kept(name: &str, keep: u64) -> String {
        let mark = OwnerMark::parse(&text("c9", Some((name, keep)))).unwrap().unwrap();
        mark.kept_text(&owner("c9").scope, 100).unwrap()
    }

    #[test]
    fn each_kind_of_record_is_recognised() {
        let mut sight = sight();
        for record in [
            record(2, text("c1", None)),
            record(3, text("c2", None)),
            record(4, "printer".into()),
            record(5, text("c3", Some(("web", 60)))),
            record(6, kept("db", 3600)),
            record(7, kept("db", 7 * 3600)),
            record(9, text("c4", None)),
        ] {
            sight.take(record);
        }
        let web = sticky_hash("lan", "web");
        assert_eq!(sight.own.len(), 1);
        assert_eq!(sight.used, [2, 3, 4, 5, 7, 9].map(ip).into());
        let rivals: Vec<_> = sight.rivals(&web).map(|rival| rival.record.address).collect();
        assert_eq!((rivals, sight.with_name(&web).count()), (vec![ip(5)], 1));
        assert_eq!(sight.expired.keys().copied().collect::<Vec<_>>(), [ip(6)]);
        assert_eq!(sight.watched[&ip(9)].id, "id-9");
    }

    #[test]
    fn an_address_is_shared_if_another_owner_has_a_record_of_it() {
        for (records, count, is_shared) in [
            (&[][..], 0, false),
            (&["c1"][..], 1, false),
            (&["c1", "c1"][..], 2, false),
            (&["c1", "c2"][..], 2, true),
            (&["c2", "c1", "c1"][..], 3, true),
        ] {
            let mut sight = sight();
            records.iter().for_each(|container| sight.take(record(2, text(container, None))));
            assert_eq!(
                (sight.count(ip(2)), sight.is_shared(ip(2))),
                (count, is_shared),
                "{records:?}"
            );
        }
    }

    fn without_id(record: AddressRecord) -> AddressRecord {
        AddressRecord { id: String::new(), ..record }
    }

    #[test]
    fn a_list_without_ids_is_enough_where_the_owners_records_are_known() {
        let mut sight = sight();
        sight.watch.known = [(ip(2), record(2, text("c1", None)))].into();
        sight.take(without_id(record(2, text("c1", None))));
        assert!(sight.own[0].record.id == "id-2" && sight.incomplete().is_none());
        sight.take(without_id(record(2, text("c1", None))));
        assert!(sight.incomplete().is_some(), "the second one is not known");
    }

    #[test]
    fn another_list_brings_the_ids_of_the_shown_records_alone() {
        let own = |id: &str, last| {
            let record = record(last, text("c1", None));
            AddressRecord { id: id.to_owned(), ..record }
        };
        let mut sight = sight();
        for record in [own("", 2), own("", 2), own("", 9), record(3, text("c2", None))] {
            sight.take(without_id(record));
        }
        let shown = [own("a", 2), own("a", 2), own("b", 9), record(9, "printer".into())];
        // The list lacks one of the two at an address, then begins anew.
        shown.into_iter().for_each(|record| Completion(&mut sight).take(record));
        assert_eq!(sight.incomplete(), Some(ip(2)));
        for record in [own("a", 2), own("c", 2), own("d", 2), own("e", 4)] {
            Completion(&mut sight).take(record);
        }
        let ids: Vec<_> = sight.own.iter().map(|own| &*own.record.id).collect();
        assert_eq!((ids, &*sight.watched[&ip(9)].id), (vec!["a", "c", "b"], "b"));
        assert_eq!(sight.used, [2, 3, 9].map(ip).into());
    }

    #[test]
    fn a_list_that_begins_anew_forgets_what_it_showed() {
        let mut sight = sight();
        sight.take(record(2, text("c1", None)));
        sight.begin();
        assert!(sight.own.is_empty() && sight.used.is_empty());
    }
}
