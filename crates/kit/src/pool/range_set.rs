//! Range sets: the ranges that one address is taken from.

use std::fmt;
use std::net::IpAddr;

use super::lenient::{Clipped, clip, each_address_once};
use super::{Range, RangeConfig, RangeRules, Sets};
use crate::error::{Error, Result};

/// At least one range, all of one family, none overlapping another, not wholly excluded.
///
/// By [`RangeRules::CONSUL`] ranges may overlap and be of both families. Then the first range that
/// spans an address decides about it, and the gateway of one range is given by no other.
///
/// `Display` shows `start-end,start-end`, host-local's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
    remarks: Vec<String>,
}

impl RangeSet {
    /// Reads one set; `path` is its place in the configuration, as in `ipam.ranges[0]`.
    ///
    /// # Errors
    /// The set is empty, a range is invalid, or every address is excluded. With other rules than
    /// [`RangeRules::CONSUL`] also: two ranges are of different families or overlap.
    pub fn parse(ranges: &[RangeConfig], rules: RangeRules, path: &str) -> Result<Self> {
        let mut set = Self { ranges: Vec::new(), remarks: Vec::new() };
        let mut emptied = None;
        for (index, config) in ranges.iter().enumerate() {
            let path = format!("{path}[{index}]");
            let clipped = match rules.sets {
                Sets::Strict => Clipped::Unchanged,
                Sets::Lenient => clip(config, &path),
            };
            match clipped {
                Clipped::Unchanged => set.ranges.push(Range::parse(config, rules, &path)?),
                Clipped::Smaller(config, remarks) => {
                    set.ranges.push(Range::parse(&config, rules, &path)?);
                    set.remarks.extend(remarks);
                }
                Clipped::Empty(error) => {
                    set.remarks.push(format!("{error}: the range is ignored"));
                    emptied = emptied.or(Some(error));
                }
            }
        }
        if set.ranges.is_empty() {
            return Err(emptied.unwrap_or_else(|| Error::config(path, "empty range set")));
        }
        match rules.sets {
            Sets::Strict => {
                let mixed = set.mixture().map(str::to_owned);
                if let Some(fault) = mixed.or_else(|| set.overlaps_inside().next()) {
                    return Err(Error::config(path, fault));
                }
            }
            Sets::Lenient => {
                let mixed = set.mixture().map(|mixture| {
                    format!("{path}: {mixture}: an ADD takes one address, from the first range that has one free")
                });
                let overlaps = set.overlaps_inside();
                let overlaps = overlaps.map(|o| format!("{path}: {o}: each address is given once"));
                let remarks: Vec<String> = mixed.into_iter().chain(overlaps).collect();
                set.remarks.extend(remarks);
                set.ranges = each_address_once(set.ranges);
            }
        }
        if set.ranges.iter().all(|range| range.segments().is_empty()) {
            return Err(Error::config(path, format!("every address of {set} is excluded"))
                .advise("add a range, or exclude fewer addresses"));
        }
        Ok(set)
    }

    /// Refuses sets of which two overlap; each comes with its place, for the error.
    ///
    /// # Errors
    /// The later of the two is named as the place, with the ranges and the earlier one.
    pub(crate) fn refuse_overlaps<'a>(
        sets: impl Iterator<Item = (&'a str, &'a Self)> + Clone,
    ) -> Result<()> {
        for (index, (place, set)) in sets.clone().enumerate() {
            for (other, earlier) in sets.clone().take(index) {
                if let Some((its, others)) = set.overlap(earlier) {
                    let message = format!("{its} overlaps {others} of {other}");
                    return Err(Error::config(place, message));
                }
            }
        }
        Ok(())
    }

    /// The ranges in the order written; never empty.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Whether all ranges are of IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.ranges.iter().all(|range| range.start().is_ipv4())
    }

    /// The range whose start and end the address lies between, usable or not.
    pub fn find(&self, address: IpAddr) -> Option<&Range> {
        self.ranges.iter().find(|range| range.spans(address))
    }

    /// The last range whose start and end the address lies between: another one than the first only
    /// where ranges overlap, and then the one that passcod takes for a requested address.
    pub(crate) fn find_last(&self, address: IpAddr) -> Option<&Range> {
        self.ranges.iter().rfind(|range| range.spans(address))
    }

    /// The faults that these rules accept and others refuse, each with its place.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// The same ranges, of which none gives these addresses.
    pub(crate) fn without(self, addresses: &[IpAddr]) -> Self {
        let holes: Vec<_> = addresses.iter().map(|address| (*address, *address)).collect();
        let ranges = self.ranges.into_iter().map(|range| range.without(&holes));
        Self { ranges: ranges.collect(), ..self }
    }

    /// Why the address may not be given out of these ranges; none when it may.
    pub fn refusal(&self, address: IpAddr) -> Option<String> {
        let Some(range) = self.find(address) else {
            return Some(format!("not in {self}"));
        };
        if range.usable(address) {
            return None;
        }
        // By lenient rules it may be the gateway of another range.
        let mut ranges = [range].into_iter().chain(&self.ranges);
        if let Some(of) = ranges.find(|range| range.gateway() == Some(address)) {
            return Some(format!("the gateway of {of}"));
        }
        let hole = range.exclude().iter().find(|hole| hole.contains(&address));
        Some(match hole {
            Some(hole) => format!("excluded from {range} by {hole}"),
            None if range.skips(address) => format!("excluded from {range}: it ends in .0"),
            None => format!("not available in {range}"),
        })
    }

    /// Whether a range of this set and one of the other overlap.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.overlap(other).is_some()
    }

    /// The first range of this set, with that of the other, that overlap.
    pub(crate) fn overlap<'a>(&'a self, other: &'a Self) -> Option<(&'a Range, &'a Range)> {
        self.ranges.iter().find_map(|range| {
            let clash = other.ranges.iter().find(|others| range.overlaps(others));
            clash.map(|others| (range, others))
        })
    }

    /// How many addresses may be given out, each counted once; saturating.
    pub fn size(&self) -> u128 {
        self.ranges.iter().map(Range::size).fold(0, u128::saturating_add)
    }

    /// The ranges with every default written out, as the etcd plugins store them.
    pub fn to_config(&self) -> Vec<RangeConfig> {
        self.ranges.iter().map(Range::to_config).collect()
    }

    /// The same addresses in ranges that host-local understands: one per segment, without host
    /// bits in the subnet. It still refuses small subnets, and gives what [`Range::skips`].
    pub fn without_excludes(&self) -> Vec<RangeConfig> {
        let mut configs = Vec::new();
        for range in &self.ranges {
            for (first, last) in range.segments() {
                configs.push(RangeConfig {
                    subnet: Some(range.subnet().trunc().to_string()),
                    range_start: Some(first.to_string()),
                    range_end: Some(last.to_string()),
                    exclude: Vec::new(),
                    ..range.to_config()
                });
            }
        }
        configs
    }

    fn mixture(&self) -> Option<&'static str> {
        let mut families = self.ranges.iter().map(|range| range.start().is_ipv4());
        let first = families.next()?;
        families.any(|ipv4| ipv4 != first).then_some("mixed address families")
    }

    /// For each range the next one that overlaps it.
    fn overlaps_inside(&self) -> impl Iterator<Item = String> {
        self.ranges.iter().enumerate().filter_map(|(index, range)| {
            let other = self.ranges[index + 1..].iter().find(|other| range.overlaps(other))?;
            Some(format!("{range} and {other} overlap"))
        })
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{range}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sets(json: Value) -> Result<Vec<RangeSet>> {
        let configs: Vec<Vec<RangeConfig>> = serde_json::from_value(json).unwrap();
        let places: Vec<String> = (0..configs.len()).map(|i| format!("ipam.ranges[{i}]")).collect();
        let read = |(place, ranges): (&String, &Vec<_>)| {
            RangeSet::parse(ranges, RangeRules::HOST_LOCAL, place)
        };
        let sets: Vec<RangeSet> = places.iter().zip(&configs).map(read).collect::<Result<_>>()?;
        RangeSet::refuse_overlaps(places.iter().map(String::as_str).zip(&sets))?;
        Ok(sets)
    }

    #[test]
    fn a_bad_set_is_named() {
        for (json, message) in [
            (json!([[]]), "ipam.ranges[0]: empty range set"),
            (
                json!([[{"subnet": "10.1.0.0/16"}], [{"subnet": "10.2.0.0/16"}, {"subnet": "fd00::/64"}]]),
                "ipam.ranges[1]: mixed address families",
            ),
            (
                json!([[
                    {"subnet": "10.1.0.0/16", "rangeEnd": "10.1.0.9"},
                    {"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.20"},
                ]]),
                "ipam.ranges[0]: 10.1.0.1-10.1.0.9 and 10.1.0.5-10.1.0.20 overlap",
            ),
            (
                json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.0.0.0/8"}]]),
                "ipam.ranges[1]: 10.0.0.1-10.255.255.254 overlaps 10.1.0.1-10.1.0.254 of ipam.ranges[0]",
            ),
            (
                json!([[{"subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/31"}]]),
                "ipam.ranges[0][1].subnet: 10.2.0.0/31 is too small to allocate from",
            ),
            (
                json!([[{"subnet": "10.1.0.0/24", "exclude": ["10.1.0.0/25", "10.1.0.128/25"]}]]),
                "ipam.ranges[0]: every address of 10.1.0.1-10.1.0.254 is excluded",
            ),
        ] {
            assert_eq!(sets(json).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn addresses_find_their_range() {
        let sets = sets(json!([
            [{"subnet": "10.1.2.0/24"}, {"subnet": "10.2.2.0/24"}],
            [{"subnet": "2001:db8:1::0/64"}],
        ]))
        .unwrap();
        let find =
            |set: usize, text: &str| sets[set].find(text.parse().unwrap()).map(Range::to_string);
        assert_eq!(find(0, "10.2.2.1").unwrap(), "10.2.2.1-10.2.2.254");
        assert_eq!(find(0, "10.2.2.255"), None);
        assert_eq!(find(0, "2001:db8:1::1"), None);
        assert!(find(1, "2001:db8:1::1").is_some());
        assert_eq!(sets[0].to_string(), "10.1.2.1-10.1.2.254,10.2.2.1-10.2.2.254");
        assert_eq!((sets[0].is_ipv4(), sets[1].is_ipv4()), (true, false));
        assert_eq!(sets[0].size(), 2 * 253);
        assert!(sets[0].overlaps(&sets[0]) && !sets[0].overlaps(&sets[1]));
    }

    #[test]
    fn host_local_gets_one_range_per_segment() {
        let config = serde_json::from_value(json!({
            "subnet": "10.1.2.9/24", "rangeStart": "10.1.2.1", "exclude": ["10.1.2.64/26"],
        }))
        .unwrap();
        let set = RangeSet::parse(&[config], RangeRules::ETCD, "r").unwrap();
        assert_eq!(
            json!(set.without_excludes()),
            json!([
                {"rangeStart": "10.1.2.1", "rangeEnd": "10.1.2.63", "subnet": "10.1.2.0/24", "gateway": "10.1.2.10"},
                {"rangeStart": "10.1.2.128", "rangeEnd": "10.1.2.254", "subnet": "10.1.2.0/24", "gateway": "10.1.2.10"},
            ])
        );
    }
}
