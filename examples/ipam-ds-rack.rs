//! Chooses the pool by the rack of this host.

use std::{collections::BTreeMap, fs, process::ExitCode};

use ipam_kit::{Error, Request, Result, Select, Selection, Selector, pool::Pool};

/// The keys of `ipam` that it reads; the other keys belong to other delegates.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    rack_file: String,
    racks: BTreeMap<String, String>,
}

struct Rack;
impl Selector for Rack {
    type Config = Config;
    fn select(&self, Config { rack_file, racks }: Config, _: &Request) -> Result<Selection> {
        let content = fs::read_to_string(&rack_file)
            .map_err(|e| Error::io(format!("ipam.rackFile: cannot read {rack_file}"), e))?;
        let rack = content.trim();
        let pool = racks.get(rack).and_then(|name| Pool::new(Some(name.clone()), vec![]));
        match pool {
            Some(pool) => Ok(Selection::of([pool])),
            None => Err(Error::config("ipam.racks", format!("no pool for rack {rack:?}"))),
        }
    }
}

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-rack", Select(Rack))
}
