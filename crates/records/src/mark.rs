//! The mark of an owner in the text of a record.
//!
//! `ipd:NODE/NETWORK/CONTAINER/IFNAME TAIL`, and `ipd:NODE/NETWORK@NAME+KEEP/CONTAINER/IFNAME TAIL`
//! with a sticky name. An address that is kept for its name has neither container nor interface.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ipam_kit::allocate::ledger::Holder;
use ipam_kit::allocate::{Owner, Scope};
use ipam_kit::{Error, ErrorCode, Result};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use crate::packing::{
    PACKED, last_part, pack_container, pack_uuid, to_radix_36, unpack_container, unpack_uuid,
};

/// The beginning of each text that is ours.
pub(crate) const PREFIX: &str = "ipd:";

/// The owner of a record, or the name that its address is kept for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerMark {
    node: Field,
    network: Field,
    /// The sticky name.
    pub(crate) sticky: Option<NameMark>,
    /// Container and interface; `None` for an address that is kept for its name.
    pub(crate) holder: Option<(String, String)>,
    /// The rest of the text, for people: the end of the pod's name.
    pub(crate) tail: String,
}

/// An owner in the node's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotedOwner {
    pub(crate) network: String,
    /// The [`short_hash`] of the node.
    pub(crate) node: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
}

impl NotedOwner {
    /// Whether a text has a mark of this owner.
    pub(crate) fn has_mark(&self, text: &str) -> bool {
        OwnerMark::parse(text).and_then(Result::ok).is_some_and(|mark| mark.is_of_noted(self))
    }

    pub(crate) fn of(owner: &Owner) -> Self {
        Self {
            network: owner.scope.network.to_string(),
            node: short_hash(&owner.scope.node),
            container: owner.container.to_string(),
            ifname: owner.ifname.to_string(),
        }
    }
}

impl fmt::Display for NotedOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on {}", self.container, self.ifname, self.network)
    }
}

/// A sticky name as a record has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameMark {
    /// The hash of the name on its network.
    pub(crate) hash: String,
    /// How long the address stays with the name after its owner, in minutes.
    pub(crate) minutes: u32,
}

/// A name as it is written, or its hash where the name does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Plain(String),
    Hashed(String),
}

/// The longest time that a record holds, in minutes: 32 days.
const LONGEST_KEEP: u32 = 36 * 36 * 36 - 1;

/// The sign of a field with a hash.
const HASHED: char = '#';

impl Field {
    fn parse(text: &str) -> Option<Self> {
        if let Some(hash) = text.strip_prefix(HASHED) {
            return Some(Self::Hashed(hash.to_owned()));
        }
        match text.strip_prefix(PACKED) {
            Some(packed) => unpack_uuid(packed).map(Self::Plain),
            None => (!text.is_empty()).then(|| Self::Plain(text.to_owned())),
        }
    }

    fn is(&self, name: &str) -> bool {
        match self {
            Self::Plain(text) => text == name,
            Self::Hashed(text) => *text == short_hash(name),
        }
    }

    fn hash(&self) -> String {
        match self {
            Self::Plain(text) => short_hash(text),
            Self::Hashed(text) => text.clone(),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Plain(text) => text.clone(),
            Self::Hashed(text) => format!("{HASHED}{text}"),
        }
    }
}

impl NameMark {
    /// A sticky name on a network, whose address stays with it for this time.
    pub(crate) fn new(network: &str, name: &str, keep: Duration) -> Self {
        let minutes = u32::try_from(keep.as_secs().div_ceil(60)).unwrap_or(u32::MAX);
        Self { hash: sticky_hash(network, name), minutes: minutes.min(LONGEST_KEEP) }
    }

    /// How long the address stays with the name.
    pub(crate) fn keep(&self) -> Duration {
        Duration::from_secs(60 * u64::from(self.minutes))
    }
}

impl OwnerMark {
    /// The text of an owner's record, of at most `longest` bytes.
    ///
    /// # Errors
    /// Code 4: the container id and the interface do not fit.
    pub(crate) fn text_of(
        owner: &Owner,
        sticky: Option<&NameMark>,
        tail: &str,
        longest: usize,
    ) -> Result<String> {
        let holder = format!("{}/{}", pack_container(owner.container.as_str()), owner.ifname);
        text(&owner.scope, sticky, &holder, tail, longest).ok_or_else(|| {
            let message = format!(
                "CNI_CONTAINERID: {} has {} characters, and does not fit into a record of the server with {}",
                owner.container,
                owner.container.as_str().len(),
                owner.ifname
            );
            Error::new(ErrorCode::INVALID_ENVIRONMENT, message)
                .advise("use a runtime whose container ids have 64 hexadecimal digits, or shorter ones")
        })
    }

    /// The beginning of the texts of the owner's records, and of its node's other records on the
    /// network; `None` if names may not fit into a text as they are.
    pub(crate) fn start_of(owner: &Owner, longest: usize) -> Option<String> {
        let network = owner.scope.network.as_str();
        let longest_name = NameMark::new(network, "", Duration::MAX);
        let holder = format!("{}/{}", pack_container(owner.container.as_str()), owner.ifname);
        let text = text(&owner.scope, Some(&longest_name), &holder, "", longest)?;
        let start = format!("{PREFIX}{}/{network}", node_field(&owner.scope.node));
        text.starts_with(&start).then_some(start)
    }

    /// The text of an address that is kept for the name of this mark.
    pub(crate) fn kept_text(&self, scope: &Scope, longest: usize) -> Option<String> {
        text(scope, self.sticky.as_ref(), "/", &self.tail, longest)
    }

    /// Reads a text; `None` for one that is not ours, an error for one that cannot be read.
    pub(crate) fn parse(text: &str) -> Option<Result<Self, &'static str>> {
        let rest = text.strip_prefix(PREFIX)?;
        Some(Self::parse_rest(rest).ok_or("its mark is incomplete or was changed"))
    }

    fn parse_rest(rest: &str) -> Option<Self> {
        let (head, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        let [node, network, container, ifname] = *head.split('/').collect::<Vec<_>>() else {
            return None;
        };
        let (network, sticky) = match network.split_once('@') {
            None => (network, None),
            Some((network, sticky)) => {
                let (hash, keep) = sticky.split_once('+').unwrap_or((sticky, "0"));
                let minutes = u32::from_str_radix(keep, 36).ok()?;
                (network, Some(NameMark { hash: hash.to_owned(), minutes }))
            }
        };
        let holder = match (container, ifname) {
            ("", "") if sticky.is_some() => None,
            ("", _) | (_, "") => return None,
            (container, ifname) => Some((unpack_container(container)?, ifname.to_owned())),
        };
        let (node, network) = (Field::parse(node)?, Field::parse(network)?);
        Some(Self { node, network, sticky, holder, tail: tail.to_owned() })
    }

    pub(crate) fn is_of_network(&self, scope: &Scope) -> bool {
        self.network.is(scope.network.as_str())
    }

    pub(crate) fn is_of_node(&self, node: &str) -> bool {
        self.node.is(node)
    }

    pub(crate) fn is_of(&self, owner: &Owner) -> bool {
        self.has_holder(owner.container.as_str(), owner.ifname.as_str())
            && self.node.is(&owner.scope.node)
            && self.is_of_network(&owner.scope)
    }

    pub(crate) fn is_of_noted(&self, owner: &NotedOwner) -> bool {
        self.has_holder(&owner.container, &owner.ifname)
            && self.network.is(&owner.network)
            && self.node.hash() == owner.node
    }

    fn has_holder(&self, container: &str, ifname: &str) -> bool {
        self.holder.as_ref().is_some_and(|holder| (&*holder.0, &*holder.1) == (container, ifname))
    }

    /// The holder as a scan of this network shows it. `node` is the name of a node whose hash the mark
    /// may have.
    pub(crate) fn to_holder(&self, network: &str, node: Option<&str>) -> Option<Holder> {
        let (container, ifname) = self.holder.clone()?;
        let node = node.filter(|node| self.node.is(node)).map(str::to_owned);
        Some(Holder {
            node: Some(node.unwrap_or_else(|| self.node.shown())),
            container,
            ifname: Some(ifname),
            network: (!self.network.is(network)).then(|| self.network.shown()),
            pod: (!self.tail.is_empty()).then(|| self.tail.clone()),
        })
    }

    /// A name of the owner, which is the same in each of its records.
    pub(crate) fn owner_key(&self) -> Option<String> {
        let (container, ifname) = self.holder.as_ref()?;
        Some([&self.node.hash(), &self.network.hash(), container, ifname].map(|it| &**it).join("/"))
    }

    /// The sticky name in words.
    pub(crate) fn name(&self) -> String {
        match (&*self.tail, &self.sticky) {
            ("", Some(sticky)) => format!("the name #{}", sticky.hash),
            (tail, _) => tail.to_owned(),
        }
    }
}

/// The shortest text that fits: names are plain if they can be, the network before the node.
fn text(
    scope: &Scope,
    sticky: Option<&NameMark>,
    holder: &str,
    tail: &str,
    longest: usize,
) -> Option<String> {
    let sticky = sticky.map_or_else(String::new, |sticky| match sticky.minutes {
        0 => format!("@{}", sticky.hash),
        minutes => format!("@{}+{}", sticky.hash, to_radix_36(minutes)),
    });
    let network = scope.network.as_str();
    let (node, short_node) =
        (node_field(&scope.node), format!("{HASHED}{}", short_hash(&scope.node)));
    let short_network = format!("{HASHED}{}", short_hash(network));
    let forms = [(&node, network), (&node, &*short_network), (&short_node, &*short_network)];
    let heads = forms.map(|(node, network)| format!("{PREFIX}{node}/{network}{sticky}/{holder}"));
    let mut head = heads.into_iter().find(|head| head.len() <= longest)?;
    let room = longest.saturating_sub(head.len() + 1);
    let tail = last_part(tail, room);
    if !tail.is_empty() {
        head.push(' ');
        head.push_str(&tail);
    }
    Some(head)
}

/// A UUID as 22 characters, another name as it is if it has no sign of the mark's.
fn node_field(node: &str) -> String {
    if let Some(packed) = pack_uuid(node) {
        return packed;
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if node.chars().all(is_plain) && !node.is_empty() {
        return node.to_owned();
    }
    format!("{HASHED}{}", short_hash(node))
}

/// The hash of a sticky name on its network. A pod may choose the name, so it has to be hard to find
/// another name with the same hash.
pub(crate) fn sticky_hash(network: &str, name: &str) -> String {
    let hash = digest(&SHA256, format!("{network}\0{name}").as_bytes());
    URL_SAFE_NO_PAD.encode(&hash.as_ref()[..8])
}

/// Whether a text has a mark of ours, or what is left of one.
pub fn is_marked(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// The container id in the mark of a text, if it has one.
pub fn container_of(text: &str) -> Option<String> {
    let mark = OwnerMark::parse(text)?.ok()?;
    mark.holder.map(|(container, _)| container)
}

/// A hash of 48 bits, in 8 characters that a file name may have.
pub fn short_hash(name: &str) -> String {
    URL_SAFE_NO_PAD.encode(&digest(&SHA256, name.as_bytes()).as_ref()[..6])
}

#[cfg(test)]
mod tests {
    use ipam_kit::cni::{ContainerId, IfName, NetworkName};

    use super::*;

    const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

    fn owner(node: &str, network: &str, container: &str, ifname: &str) -> Owner {
        let scope = Scope { node: node.into(), network: NetworkName::parse(network).unwrap() };
        Owner {
            scope,
            container: ContainerId::parse(container).unwrap(),
            ifname: IfName::parse(ifname).unwrap(),
        }
    }

    fn digits() -> String {
        "0123456789abcdef".repeat(4)
    }

    #[test]
    fn an_owner_is_read_back_as_it_was() {
        let long = "n".repeat(60);
        for (node, network, container, ifname) in [
            (UUID, "lan", &*digits(), "eth0"),
            (UUID, &*long, &digits(), "a-long-name-123"),
            ("ip-10-0-1-2.eu-central-1.compute.internal", &long, &digits(), "net1@x"),
            ("node/1", "lan", "c1", "eth0"),
            ("node-1", "lan", &"0123456789ABCDEF".repeat(4)[..40], "eth0"),
        ] {
            let owner = owner(node, network, container, ifname);
            let sticky = NameMark::new(network, "web", Duration::from_secs(3601));
            for sticky in [None, Some(&sticky)] {
                let text = OwnerMark::text_of(&owner, sticky, "default/web-0", 100).unwrap();
                assert!(text.len() <= 100, "{text}");
                let mark = OwnerMark::parse(&text).unwrap().unwrap();
                assert!(mark.is_of(&owner), "{text}");
                assert_eq!(mark.sticky.as_ref(), sticky);
                let holder = mark.to_holder(network, Some(node)).unwrap();
                assert_eq!(holder.container, container);
                assert_eq!(holder.ifname.as_deref(), Some(ifname));
                assert_eq!(holder.node.as_deref(), Some(node), "{text}");
                assert_eq!(holder.network, None);
            }
        }
    }

    #[test]
    fn owners_differ_by_each_part() {
        let owner = |node, network, container, ifname| owner(node, network, container, ifname);
        let one = owner("n1", "lan", "c1", "eth0");
        let text = OwnerMark::text_of(&one, None, "", 100).unwrap();
        assert_eq!(text, "ipd:n1/lan/c1/eth0");
        let mark = OwnerMark::parse(&text).unwrap().unwrap();
        for other in [
            owner("n2", "lan", "c1", "eth0"),
            owner("n1", "wan", "c1", "eth0"),
            owner("n1", "lan", "c2", "eth0"),
            owner("n1", "lan", "c1", "eth1"),
        ] {
            assert!(!mark.is_of(&other), "{other}");
        }
        assert_eq!(mark.to_holder("wan", None).unwrap().network.as_deref(), Some("lan"));
    }

    #[test]
    fn an_owner_has_one_key_with_and_without_a_sticky_name() {
        // With the name, the network does not fit.
        let owner = owner(UUID, &"n".repeat(30), "c1", "eth0");
        let sticky = NameMark::new(owner.scope.network.as_str(), "web", Duration::from_secs(60));
        let keys = [None, Some(&sticky)].map(|sticky| {
            let text = OwnerMark::text_of(&owner, sticky, "", 70).unwrap();
            (OwnerMark::parse(&text).unwrap().unwrap().owner_key().unwrap(), text)
        });
        assert!(keys[0].1.contains("/nnn") && keys[1].1.contains("/#"), "{keys:?}");
        assert_eq!(keys[0].0, keys[1].0);
    }

    #[test]
    fn the_records_of_a_node_on_a_network_begin_alike() {
        let one = owner("n1", "lan", "c1", "eth0");
        let start = OwnerMark::start_of(&one, 100).unwrap();
        assert_eq!(start, "ipd:n1/lan");
        let sticky = NameMark::new("lan", "web", Duration::from_secs(90));
        for sticky in [None, Some(&sticky)] {
            assert!(OwnerMark::text_of(&one, sticky, "a/b", 100).unwrap().starts_with(&start));
        }
        // With a name that does not fit beside it, the text has its hash.
        let long = owner(&"n".repeat(70), "lan", "c1", "eth0");
        assert_eq!(OwnerMark::start_of(&long, 100), None);
        assert!(OwnerMark::start_of(&long, 1000).is_some());
        assert_eq!(container_of("ipd:n1/lan/c1/eth0 a/b").as_deref(), Some("c1"));
        assert!(is_marked("ipd:x") && container_of("ipd:x").is_none() && !is_marked("printer"));
    }

    #[test]
    fn a_container_id_that_does_not_fit_is_error_4() {
        let long = "z".repeat(80);
        let error =
            OwnerMark::text_of(&owner(UUID, "lan", &long, "eth0"), None, "", 100).unwrap_err();
        assert_eq!(error.code().number(), 4);
        assert!(error.to_string().starts_with("CNI_CONTAINERID: zzz"), "{error}");
    }

    #[test]
    fn the_rest_is_the_end_of_the_pods_name() {
        let owner = owner(UUID, "lan", &digits(), "eth0");
        let text = OwnerMark::text_of(&owner, None, "a-namespace/a-pod-with-a-long-name-7f9c", 100)
            .unwrap();
        assert_eq!(text.len(), 100);
        assert!(text.ends_with(" …-long-name-7f9c"), "{text}");
        let text = OwnerMark::text_of(&owner, None, "default/web-0", 100).unwrap();
        assert!(text.ends_with("/eth0 default/web-0"), "{text}");
    }

    #[test]
    fn a_kept_address_has_its_name_and_no_owner() {
        let owner = owner("n1", "lan", "c1", "eth0");
        let sticky = NameMark::new("lan", "web", Duration::from_secs(90));
        let text = OwnerMark::text_of(&owner, Some(&sticky), "web", 100).unwrap();
        let mark = OwnerMark::parse(&text).unwrap().unwrap();
        let kept = mark.kept_text(&owner.scope, 100).unwrap();
        let kept = OwnerMark::parse(&kept).unwrap().unwrap();
        assert_eq!((kept.holder.as_ref(), kept.name()), (None, "web".to_owned()));
        let sticky = kept.sticky.unwrap();
        assert_eq!(sticky.keep(), Duration::from_secs(120));
        assert_eq!(sticky.hash, sticky_hash("lan", "web"));
        assert_ne!(sticky.hash, sticky_hash("wan", "web"));
    }

    #[test]
    fn a_text_that_was_changed_is_neither_ours_nor_anothers() {
        assert!(OwnerMark::parse("printer").is_none());
        for text in [
            "ipd:",
            "ipd:n1/lan/c1",
            "ipd:n1/lan/c1/eth0/x",
            "ipd:/lan/c1/eth0",
            "ipd:n1/lan//",
            "ipd:n1/lan/c1/",
            "ipd:n1/lan/~x/eth0",
            "ipd:~x/lan/c1/eth0",
            "ipd:n1/lan@x+!/c1/eth0",
        ] {
            assert!(OwnerMark::parse(text).unwrap().is_err(), "{text}");
        }
    }
}
