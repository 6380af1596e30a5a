//! A range as whereabouts reads it: which addresses it gives out.

use std::fmt;
use std::net::IpAddr;

use ipam_kit::cni::address;
use ipam_kit::pool::RangeConfig;
use ipam_kit::{Error, Result};
use ipnet::IpNet;

use crate::written::{Written, WrittenPlace};

/// A range as it is written.
#[derive(Debug)]
pub(crate) struct RangeText {
    /// The place of the whole range.
    pub(crate) place: WrittenPlace,
    pub(crate) range: Written<String>,
    pub(crate) start: Option<Written<String>>,
    pub(crate) end: Option<Written<String>>,
    pub(crate) exclude: Option<Written<Vec<String>>>,
    /// Whether a bound that cannot be used is ignored; otherwise it is an error.
    pub(crate) ignores_bounds: bool,
}

const BOTH_BOUNDS: &str = "expected FIRST-LAST/LENGTH, such as 10.1.2.5-10.1.2.25/24";

/// A range that addresses are given out of: first <= last, neither of them the network or the
/// broadcast address.
///
/// `Display` shows `first-last`.
#[derive(Debug)]
pub(crate) struct UsableRange {
    pub(crate) place: WrittenPlace,
    pub(crate) subnet: IpNet,
    pub(crate) first: IpAddr,
    pub(crate) last: IpAddr,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) exclude: Vec<IpNet>,
    /// A text for each member that is written and has no effect.
    pub(crate) ignored: Vec<String>,
}

impl UsableRange {
    /// Reads a range; a gateway of another family is not its own.
    ///
    /// # Errors
    /// A text is malformed, the range is too small, or a bound cannot be used and is not ignored.
    pub(crate) fn read(text: RangeText, gateway: Option<IpAddr>) -> Result<Self> {
        let RangeText { place, range, start, end, exclude, ignores_bounds } = text;
        let mut ignored = Vec::new();
        let (start, cidr, end) = match range.value.split_once('-') {
            None => (read_bound(start)?, read_cidr(&range.value, &range.place)?, read_bound(end)?),
            Some((first, last)) => {
                ignored.extend([start, end].into_iter().flatten().map(|bound| {
                    format!("{} is ignored: {} has a first and a last address", bound.place, place)
                }));
                let with_form = |error: Error| error.advise(BOTH_BOUNDS);
                let start = read_address(first, &range.place).map_err(with_form)?;
                let cidr = read_cidr(last, &range.place).map_err(with_form)?;
                if !cidr.contains(&start) {
                    return Err(range.place.error(format!("{start} is not in {}", cidr.trunc())));
                }
                let written = |value| Some(Written { value, place: range.place.clone() });
                (written(start), cidr, written(cidr.addr()))
            }
        };
        let subnet = cidr.trunc();
        if subnet.max_prefix_len() - subnet.prefix_len() < 2 {
            let message = format!(
                "{subnet} is too small: neither its first nor its last address is given out"
            );
            return Err(range.place.error(message).advise("use one of at least four addresses"));
        }
        let first = address::next(subnet.network()).expect("a subnet of four addresses");
        let last = address::previous(subnet.broadcast()).expect("a subnet of four addresses");
        let mut usable = |bound: Option<Written<IpAddr>>, first: IpAddr| {
            let Some(Written { value, place }) = bound else { return Ok(None) };
            if first <= value && value <= last {
                return Ok(Some(value));
            }
            let message = format!("{value} is not in {first}-{last}");
            if !ignores_bounds {
                return Err(place.error(message));
            }
            ignored.push(format!("{place}: {message}: it is ignored"));
            Ok(None)
        };
        let first = usable(start, first)?.unwrap_or(first);
        let last = usable(end, first)?.unwrap_or(last);
        let exclude = read_exclude(exclude, subnet, &mut ignored)?;
        let gateway = gateway.filter(|gateway| gateway.is_ipv4() == first.is_ipv4());
        Ok(Self { place, subnet, first, last, gateway, exclude, ignored })
    }

    /// Excludes those of some addresses that the range would give out.
    pub(crate) fn keep_free(&mut self, addresses: &[IpAddr]) {
        let inside = addresses.iter().copied().filter(|address| self.spans(*address));
        let inside: Vec<IpNet> = inside.map(IpNet::from).collect();
        self.exclude.extend(inside);
    }

    /// Whether an address is between the first and the last one.
    pub(crate) fn spans(&self, address: IpAddr) -> bool {
        self.first <= address && address <= self.last
    }

    /// Whether some address is between first and last of both.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Why an address of the subnet is never given out, not even on request; `None` if it may be.
    pub(crate) fn refusal(&self, address: IpAddr) -> Option<&'static str> {
        let ends_in_zero = matches!(address, IpAddr::V4(address) if address.octets()[3] == 0);
        match address {
            _ if self.gateway == Some(address) => Some("the gateway"),
            _ if address == self.subnet.network() => Some("the network address"),
            _ if address == self.subnet.broadcast() => Some("the last address"),
            _ if ends_in_zero => Some("an address that ends in .0"),
            _ => None,
        }
    }

    /// The addresses from one to another for the allocator.
    pub(crate) fn part(&self, first: IpAddr, last: IpAddr) -> RangeConfig {
        RangeConfig {
            subnet: Some(self.subnet.to_string()),
            range_start: Some(first.to_string()),
            range_end: Some(last.to_string()),
            gateway: self.gateway.map(|gateway| gateway.to_string()),
            exclude: self.exclude.iter().map(IpNet::to_string).collect(),
            rules: Some(RangeConfig::WHEREABOUTS.to_owned()),
            ..RangeConfig::default()
        }
    }

    /// The addresses for the allocator, in a part for each stretch between some addresses.
    pub(crate) fn parts_between(&self, mut holes: Vec<IpAddr>) -> Vec<RangeConfig> {
        holes.retain(|hole| self.spans(*hole));
        holes.sort_unstable();
        let mut parts = Vec::new();
        let mut first = Some(self.first);
        for hole in holes {
            if let (Some(first), Some(before)) = (first, address::previous(hole))
                && first <= before
            {
                parts.push(self.part(first, before));
            }
            first = address::next(hole);
        }
        if let Some(first) = first.filter(|first| *first <= self.last) {
            parts.push(self.part(first, self.last));
        }
        parts
    }
}

impl fmt::Display for UsableRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Reads an address as whereabouts does: numbers of IPv4 may begin with zeros.
pub(crate) fn read_address(text: &str, place: &WrittenPlace) -> Result<IpAddr> {
    address::parse_address(&without_zeros(text))
        .map_err(|error| place.malformed(&error, "an address"))
}

/// Reads a CIDR as whereabouts does, host bits kept: numbers of IPv4 may begin with zeros.
pub(crate) fn read_cidr(text: &str, place: &WrittenPlace) -> Result<IpNet> {
    address::parse_cidr(&without_zeros(text)).map_err(|error| place.malformed(&error, "a CIDR"))
}

fn read_bound(bound: Option<Written<String>>) -> Result<Option<Written<IpAddr>>> {
    let Some(Written { value, place }) = bound else { return Ok(None) };
    Ok(Some(Written { value: read_address(&value, &place)?, place }))
}

/// Reads a list of holes; those of another family are ignored.
fn read_exclude(
    exclude: Option<Written<Vec<String>>>,
    subnet: IpNet,
    ignored: &mut Vec<String>,
) -> Result<Vec<IpNet>> {
    let Some(Written { value, place }) = exclude else { return Ok(Vec::new()) };
    let mut holes = Vec::new();
    for (i, text) in value.iter().enumerate() {
        let place = place.inner(format_args!("[{i}]"));
        let hole = match text.contains('/') {
            true => address::parse_cidr(text).map(|hole| hole.trunc()),
            false => address::parse_address(text).map(IpNet::from),
        };
        let hole = hole.map_err(|error| place.malformed(&error, "a CIDR or an address"))?;
        if hole.addr().is_ipv4() == subnet.addr().is_ipv4() {
            holes.push(hole);
        } else {
            ignored.push(format!("{place}: {hole} is not in {subnet}: it is ignored"));
        }
    }
    Ok(holes)
}

pub(crate) fn without_zeros(text: &str) -> String {
    if text.contains(':') {
        return text.to_owned();
    }
    let is_digit = |c: char| c.is_ascii_digit();
    let mut plain = String::with_capacity(text.len());
    for number in text.split_inclusive(['.', '/']) {
        let significant = number.trim_start_matches('0');
        if number.starts_with('0') && !significant.starts_with(is_digit) {
            plain.push('0');
        }
        plain.push_str(significant);
    }
    plain
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::Call;

    #[test]
    fn the_first_and_the_last_address_of_the_masked_range_are_not_given() {
        for (range, given) in [
            ("192.168.2.225/28", "192.168.2.225-192.168.2.238"),
            ("192.168.0.0/30", "192.168.0.1-192.168.0.2"),
            ("010.000.00.7/08", "10.0.0.1-10.255.255.254"),
            ("2001::5/116", "2001::1-2001::ffe"),
            ("2001:db8::/126", "2001:db8::1-2001:db8::2"),
            ("2001:db8::/32", "2001:db8::1-2001:db8:ffff:ffff:ffff:ffff:ffff:fffe"),
            ("192.168.1.5-192.168.1.25/24", "192.168.1.5-192.168.1.25"),
            ("0192.168.1.05-000192.168.1.025/024", "192.168.1.5-192.168.1.25"),
        ] {
            assert_eq!(Call::ipam(json!({"range": range})).pools(), [given]);
        }
        for small in
            ["10.0.0.0/31", "10.0.0.1/32", "10.0.0.0-10.0.0.1/31", "fd00::/127", "fd00::1/128"]
        {
            let details = Call::ipam(json!({"range": small})).err(7, "ipam.range: ");
            assert_eq!(details, "use one of at least four addresses");
        }
    }

    #[test]
    fn a_bound_beside_range_that_cannot_be_used_is_ignored_with_a_remark() {
        let whole = "10.0.0.1-10.0.0.254";
        for (start, end, given, remark) in [
            ("10.0.0.9", "10.0.0.20", "10.0.0.9-10.0.0.20", ""),
            (
                "10.0.0.0",
                "",
                whole,
                "ipam.range_start: 10.0.0.0 is not in 10.0.0.1-10.0.0.254: it is ignored",
            ),
            ("10.0.1.9", "", whole, "ipam.range_start: 10.0.1.9"),
            ("fd00::1", "", whole, "ipam.range_start: fd00::1"),
            ("", "10.0.0.255", whole, "ipam.range_end: 10.0.0.255"),
            (
                "10.0.0.9",
                "10.0.0.8",
                "10.0.0.9-10.0.0.254",
                "ipam.range_end: 10.0.0.8 is not in 10.0.0.9-",
            ),
            ("010.0.0.09", "10.0.0.010", "10.0.0.9-10.0.0.10", ""),
        ] {
            let ipam = json!({"range": "10.0.0.7/24", "range_start": start, "range_end": end});
            assert_eq!(Call::ipam(ipam.clone()).pools(), [given]);
            let remarks = Call::ipam(ipam.clone()).verb("STATUS").ok()["remarks"][0].clone();
            assert!(remarks.as_str().unwrap_or_default().starts_with(remark), "{remarks}");
            assert_eq!(remarks.is_null(), remark.is_empty());
            let inside = Call::ipam(json!({"ipRanges": [ipam]}));
            match remark.is_empty() {
                true => assert_eq!(inside.pools(), [given]),
                false => drop(inside.err(7, "ipam.ipRanges[0].range_")),
            }
        }
    }

    #[test]
    fn bounds_and_excludes_without_an_effect_are_remarked() {
        let call = |ipam: Value| Call::ipam(ipam).verb("STATUS").ok()["remarks"].clone();
        let bounds = json!({"range_start": "10.0.0.9", "range_end": "10.0.0.10"});
        let mut alone = json!({"ipRanges": [bounds], "exclude": ["10.0.0.3"]});
        alone["ipRanges"][0]["range"] = "10.0.0.5-10.0.0.7/24".into();
        alone.as_object_mut().unwrap().extend(bounds.as_object().unwrap().clone());
        let remarks = [
            "ipam.range_start is ignored: ipam.range, to which it belongs, is missing",
            "ipam.range_end is ignored: ipam.range, to which it belongs, is missing",
            "ipam.exclude is ignored: ipam.range, to which it belongs, is missing",
            "ipam.ipRanges[0].range_start is ignored: ipam.ipRanges[0] has a first and a last address",
            "ipam.ipRanges[0].range_end is ignored: ipam.ipRanges[0] has a first and a last address",
        ];
        assert_eq!(call(alone), json!(remarks));
        let both = json!({"range": "10.0.0.5-10.0.0.7/24", "range_end": "10.0.0.9"});
        let remark = "ipam.range_end is ignored: ipam.range has a first and a last address";
        assert_eq!(call(both), json!([remark]));
    }

    #[test]
    fn excludes_are_masked_and_those_of_another_family_ignored() {
        let exclude = ["192.168.2.229/30", "192.168.2.236", "192.168.2.237/29", "fd00::/8"];
        let call = || Call::ipam(json!({"range": "192.168.2.225/28", "exclude": exclude}));
        assert_eq!(
            call().ok()["pools"][0]["ranges"],
            json!([{
                "subnet": "192.168.2.224/28", "rangeStart": "192.168.2.225",
                "rangeEnd": "192.168.2.238", "rules": "whereabouts",
                "exclude": ["192.168.2.228/30", "192.168.2.236/32", "192.168.2.232/29"],
            }])
        );
        let remarks = call().verb("STATUS").ok()["remarks"].clone();
        assert_eq!(
            remarks,
            json!(["ipam.exclude[3]: fd00::/8 is not in 192.168.2.224/28: it is ignored"])
        );
    }

    #[test]
    fn a_malformed_text_names_its_place() {
        for (ipam, message) in [
            (
                json!({"range": "10.0.0.0"}),
                r#"range: "10.0.0.0" is not a CIDR: missing prefix length"#,
            ),
            (json!({"range": "10.0.0.0/33"}), r#"range: "10.0.0.0/33" is not a CIDR"#),
            (json!({"range": "a-10.0.0.9/24"}), r#"range: "a" is not an IP address"#),
            (json!({"range": "10.0.0.5-24"}), r#"range: "24" is not a CIDR"#),
            (json!({"range": "10.0.1.5-10.0.0.9/24"}), "range: 10.0.1.5 is not in 10.0.0.0/24"),
            (json!({"range": 5}), "range: expected a string, found a number"),
            (
                json!({"range": "10.0.0.0/24", "range_start": "x"}),
                r#"range_start: "x" is not an IP address"#,
            ),
            (
                json!({"range": "10.0.0.0/24", "range_end": "10.0.0"}),
                r#"range_end: "10.0.0" is not an IP address"#,
            ),
            (
                json!({"range": "10.0.0.0/24", "exclude": "10.0.0.1"}),
                "exclude: expected an array, found a string",
            ),
            (
                json!({"range": "10.0.0.0/24", "exclude": ["10.0.0.1/123"]}),
                r#"exclude[0]: "10.0.0.1/123" is not a CIDR"#,
            ),
            (
                json!({"range": "10.0.0.0/24", "exclude": ["10.0.0.01"]}),
                r#"exclude[0]: "10.0.0.01" is not"#,
            ),
            (
                json!({"range": "10.0.0.0/24", "gateway": "10.0.0.1/24"}),
                r#"gateway: "10.0.0.1/24" is not an IP"#,
            ),
            (json!({"ipRanges": {}}), "ipRanges: expected an array, found an object"),
            (json!({"ipRanges": [{}]}), "ipRanges[0].range: missing: expected a CIDR"),
            (
                json!({"ipRanges": [{"range": "10.0.0.0/24", "range_end": "x"}]}),
                r#"ipRanges[0].range_end: "x""#,
            ),
            (
                json!({"ipRanges": [{"range": "10.0.0.0/24", "Exclude": []}]}),
                "ipRanges[0].Exclude: unknown key",
            ),
            (json!({"Range": "10.0.0.0/24"}), "Range: unknown key (did you mean range?)"),
        ] {
            for verb in ["ADD", "STATUS"] {
                Call::ipam(ipam.clone()).verb(verb).err(7, &format!("ipam.{message}"));
            }
        }
    }
}
