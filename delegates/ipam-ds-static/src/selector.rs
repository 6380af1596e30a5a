use ipam_delegated::cni::{Dns, Verb};
use ipam_delegated::{Request, Result, Selection, Selector};
use log::warn;

use crate::config::Config;
use crate::offer::{self, Offer};
use crate::{host_local, requested, resolv_conf, spelling};

/// Chooses what `ipam` and `runtimeConfig` say. It keeps no state and asks nobody.
#[derive(Clone, Copy, Debug)]
pub struct Static;

impl Selector for Static {
    type Config = Config;

    const WAITS: bool = false;

    fn select(&self, config: Config, request: &Request) -> Result<Selection> {
        spelling::check(request.network.ipam())?;
        let mut offers = offer::read(&config, &request.network)?;
        requested::place(&mut offers, request)?;
        Ok(Selection {
            routes: config.routes()?,
            dns: dns(&config, request.verb)?,
            ipam: host_local::patch(&offers),
            pools: offers.into_iter().map(Offer::into_pool).collect(),
        })
    }
}

/// A file that is gone must not stand in the way of a DEL.
fn dns(config: &Config, verb: Verb) -> Result<Dns> {
    let Some(path) = config.resolv_conf() else {
        return Ok(Dns::default());
    };
    match resolv_conf::read(path) {
        Err(error) if verb != Verb::Add => {
            warn!("{}", error.in_full());
            Ok(Dns::default())
        }
        read => read,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::Call;

    #[test]
    fn routes_are_copied_and_stay_without_gateway() {
        let routes = json!([
            {"dst": "0.0.0.0/0"},
            {"dst": "192.168.0.0/16", "gw": "10.1.2.254", "mtu": 1400, "advmss": 1360,
             "priority": 5, "table": 100, "scope": 0},
        ]);
        let ipam = json!({"subnet": "10.1.2.0/24", "routes": routes});
        assert_eq!(Call::ipam(ipam).ok()["routes"], routes);
    }

    #[test]
    fn bad_routes_name_their_place() {
        for (routes, message) in [
            (json!({}), "ipam.routes: invalid type: map, expected a sequence"),
            (json!([{"dst": "0.0.0.0/0"}, 5]), "ipam.routes[1]: expected an object"),
            (json!([{"gw": "10.1.2.1"}]), "ipam.routes[0].dst: expected an address"),
            (json!([{"dst": "10.0.0.0"}]), "ipam.routes[0].dst: \"10.0.0.0\" is no address"),
            (json!([{"dst": "::/0", "gw": "x"}]), "ipam.routes[0].gw: \"x\" is no address"),
        ] {
            Call::ipam(json!({"subnet": "10.1.2.0/24", "routes": routes})).err(7, message);
        }
    }

    #[test]
    fn empty_members_are_left_out() {
        for ipam in [
            json!({"subnet": "10.1.2.0/24"}),
            json!({"subnet": "10.1.2.0/24", "routes": [], "resolvConf": ""}),
            json!({"subnet": "10.1.2.0/24", "routes": null, "resolvConf": null}),
        ] {
            let answer = Call::ipam(ipam).ok();
            assert_eq!(answer.get("routes"), None);
            assert_eq!(answer.get("dns"), None);
        }
    }

    #[test]
    fn name_resolution_comes_from_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "nameserver 192.0.2.3\n").unwrap();
        let answer = Call::ipam(json!({"subnet": "10.1.2.0/24", "resolvConf": file.path()})).ok();
        assert_eq!(answer["dns"], json!({"nameservers": ["192.0.2.3"]}));
    }

    #[test]
    fn a_missing_file_fails_add_alone() {
        let call = || Call::ipam(json!({"subnet": "10.1.2.0/24", "resolvConf": "/nowhere/r"}));
        call().err(5, "ipam.resolvConf: cannot read /nowhere/r");
        for verb in ["DEL", "CHECK", "GC", "STATUS"] {
            assert_eq!(call().verb(verb).ok().get("dns"), None, "{verb}");
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
        assert_eq!(answer["pools"].as_array().unwrap().len(), 1);
        assert_eq!(answer["pools"][0]["index"], 0);
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
