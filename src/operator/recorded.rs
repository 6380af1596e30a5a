//! The call that a runtime would make for a record.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::call::Operator;
use super::network::find_network;
use super::options::{CNI_PATH, CONF_DIR};
use crate::chain::record::Record;
use crate::chain::repeat::recorded_network;
use ipam_kit::cni::NetworkName;
use ipam_kit::delegate::Request;
use ipam_kit::error::Result;

impl Operator {
    /// Makes a request on the network of a record, as it was recorded. Secrets, servers, files and
    /// the timeout come from the present section `ipam`.
    pub(super) fn recorded_request(
        &self,
        network: &NetworkName,
        record: &Record,
    ) -> Result<Request> {
        let mut newer = self.present_ipam(network);
        let recorded = record.runs().into_iter().rev().find_map(|run| run.ipam.get("timeout"));
        if let Some(recorded) = recorded
            && !newer.contains_key("timeout")
        {
            newer.insert("timeout".to_owned(), recorded.clone());
        }
        self.request(recorded_network(network, record, newer)?, &self.recorded_path(record))
    }

    /// The plugin folders: those of the record's programs before the usual ones, for the ADD found
    /// its delegates there.
    fn recorded_path(&self, record: &Record) -> Vec<PathBuf> {
        let mut path = self.cni_path();
        if self.arguments.value(&CNI_PATH).is_none() {
            for run in record.runs().into_iter().filter(|run| run.source.is_cni_path()) {
                if let Some(folder) = Path::new(&run.program).parent() {
                    path.insert(0, folder.to_owned());
                }
            }
        }
        path
    }

    /// The section `ipam` of the network as it is configured now; empty where it is not configured
    /// any more.
    fn present_ipam(&self, network: &NetworkName) -> Map<String, Value> {
        let found = find_network(network.as_str(), self.arguments.value(&CONF_DIR));
        let ours = found.and_then(|found| self.our_plugins(&found)).unwrap_or_default();
        let Some(ours) = ours.first() else { return Map::new() };
        let mut ipam = ours.network.ipam().clone();
        if let Some(preset) = ours.chain.preset {
            preset.apply_settings(&mut ipam);
        }
        ipam
    }
}
