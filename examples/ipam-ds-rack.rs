//! Chooses the pool by the rack this host stands in.

use std::{collections::BTreeMap, fs, process::ExitCode};

use ipam_kit::{Error, Request, Result, Select, Selection, Selector, pool::Pool};

/// What it reads of the section `ipam`; the other keys belong to other delegates.
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
        let rack = fs::read_to_string(&rack_file)
            .map_err(|e| Error::io(format!("ipam.rackFile: cannot read {rack_file}"), e))?;
        let pool = racks.get(rack.trim()).and_then(|name| Pool::new(Some(name.clone()), vec![]));
        let missing = || Error::config("ipam.racks", format!("no pool for rack {:?}", rack.trim()));
        Ok(Selection::of([pool.ok_or_else(missing)?]))
    }
}

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-rack", Select(Rack))
}
