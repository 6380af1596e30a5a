use ipam_kit::ipam_section::{self, IpamSection};
use ipam_kit::keys::Key;
use ipam_kit::{Error, Request, Result, Selection, Selector};
use serde::de::IgnoredAny;

/// The selector of pools in `ipam` and `runtimeConfig`. It keeps no state and sends no request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Static;

impl Selector for Static {
    type Config = IgnoredAny;

    const KEYS: Option<&'static [Key]> = Some(ipam_section::KEYS);

    fn select(&self, _: IgnoredAny, request: &Request) -> Result<Selection> {
        Ok(Selection::from(IpamSection::read(request)?.ok_or_else(nothing)?))
    }
}

fn nothing() -> Error {
    Error::config("ipam", "no IP ranges specified")
        .advise("set ranges, for example \"ranges\": [[{\"subnet\": \"10.1.2.0/24\"}]], or pools")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::Call;

    #[test]
    fn there_must_be_something_to_choose() {
        for ipam in [
            json!({}),
            json!({"ranges": []}),
            json!({"ranges": null, "pools": null, "subnet": ""}),
            json!({"rangeStart": "10.1.2.3"}),
        ] {
            let details = Call::ipam(ipam).err(7, "ipam: no IP ranges specified");
            assert!(details.starts_with("set ranges, for example"), "{details}");
        }
    }

    #[test]
    fn a_plain_host_local_gets_the_same_ranges() {
        let answer = Call::ipam(json!({"subnet": "10.1.2.0/24"})).ok();
        assert_eq!(answer["ipam"]["ranges"][0][0]["rangeStart"], "10.1.2.1");
        assert_eq!(answer["ipam"]["subnet"], json!(null));
    }

    #[test]
    fn bad_keys_name_their_place() {
        for (ipam, message) in [
            (
                json!({"ranges": [{"subnet": "10.1.2.0/24"}]}),
                "ipam.ranges[0]: expected an array, found an object",
            ),
            (
                json!({"ranges": [[{"subnet": 5}]]}),
                "ipam.ranges[0][0].subnet: expected a string, found a number",
            ),
            (json!({"subnet": "10.1.2.0"}), "ipam.subnet: \"10.1.2.0\" is not a CIDR"),
            (json!({"RANGES": []}), "ipam.RANGES: unknown key (did you mean ranges?)"),
        ] {
            // STATUS is not to say that an ADD would succeed.
            for verb in ["ADD", "STATUS", "DEL", "CHECK", "GC"] {
                Call::ipam(ipam.clone()).verb(verb).err(7, message);
            }
        }
    }

    #[test]
    fn the_previous_result_goes_on() {
        let answer = Call::ipam(json!({"subnet": "10.1.2.0/24", "routes": [{"dst": "::/0"}]}))
            .with(
                "prevResult",
                json!({"ips": [{"address": "10.9.9.9/24"}], "routes": [{"dst": "::/0"}],
                       "dns": {"domain": "a"}, "pools": [{"name": "old"}], "other": 1}),
            )
            .verb("DEL")
            .ok();
        assert_eq!(answer["ips"], json!([{"address": "10.9.9.9/24"}]));
        assert_eq!(answer["routes"], json!([{"dst": "::/0"}]));
        assert_eq!(answer["dns"], json!({"domain": "a"}));
        assert_eq!(answer["pools"].as_array().unwrap().len(), 2);
        assert_eq!(answer["pools"][0], json!({"name": "old"}));
        assert_eq!(answer["pools"][1]["index"], 1);
        assert_eq!(answer["other"], 1);
    }

    #[test]
    fn every_verb_answers_the_same_pools() {
        let ipam = json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]});
        let pools = Call::ipam(ipam.clone()).ok()["pools"].clone();
        for verb in ["DEL", "CHECK", "GC", "STATUS"] {
            assert_eq!(Call::ipam(ipam.clone()).verb(verb).ok()["pools"], pools, "{verb}");
        }
    }
}
