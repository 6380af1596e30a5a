//! Chooses the pool by the rack of this host.

use std::{collections::BTreeMap, fs, process::ExitCode};

use ipam_kit::{Error, Request, Result, Select, Selection, Selector, keys::Key, pool::Pool};
use serde_json::Value;

/// The keys of `ipam` that it reads; the other keys belong to other delegates.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    rack_file: String,
    racks: BTreeMap<String, Value>,
}

struct Rack;
impl Selector for Rack {
    type Config = Config;
    const KEYS: Option<&'static [Key]> = Some(&[Key::Value("rackFile"), Key::Value("racks")]);

    fn select(&self, Config { rack_file, racks }: Config, _: &Request) -> Result<Selection> {
        let content = fs::read_to_string(&rack_file)
            .map_err(|e| Error::io(format!("ipam.rackFile: cannot read {rack_file}"), e))?;
        let rack = content.trim();
        let pool = racks
            .get(rack)
            .ok_or_else(|| Error::config("ipam.racks", format!("no pool for rack {rack:?}")))?;
        Ok(Selection::of([Pool::parse(pool, &format!("ipam.racks.{rack}"))?]))
    }
}

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-rack", Select(Rack))
}
