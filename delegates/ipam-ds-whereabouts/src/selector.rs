//! Reads the configuration of whereabouts.

use ipam_kit::cni::Verb;
use ipam_kit::keys::{Key, names, refuse_other_letters};
use ipam_kit::{Request, Result, Selection, Selector};
use log::warn;
use serde_json::Map;

use crate::config::{KEYS, PoolKeys, StoreKeys};
use crate::flat_file::FlatFile;
use crate::kube_section::KubePatch;
use crate::merged_keys::MergedKeys;
use crate::offer;
use crate::other_stores::refuse_other_stores;
use crate::remarks::without_effect;

/// The selector. It keeps no state and sends no request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FromWhereabouts;

impl Selector for FromWhereabouts {
    type Config = StoreKeys;

    const KEYS: Option<&'static [Key]> = Some(KEYS);

    fn select(&self, config: StoreKeys, request: &Request) -> Result<Selection> {
        let ipam = request.network.ipam();
        if request.is_strict() {
            refuse_other_letters(ipam, &names(KEYS), "ipam")?;
        }
        let releases = matches!(request.verb, Verb::Del | Verb::Gc);
        let flat = match FlatFile::find(config.configuration_path.as_deref()) {
            // A release needs the login alone.
            Err(error) if releases && config.kubernetes.is_some() => {
                warn!("{}", error.in_full());
                None
            }
            found => found?,
        };
        if let Some(file) = flat.as_ref().filter(|_| request.is_strict()) {
            file.refuse_other_letters()?;
        }
        let mut store = MergedKeys::new(config, flat.as_ref())?;
        refuse_other_stores(&mut store)?;
        let kube = KubePatch::read(ipam, &mut store)?;
        let offered = request
            .network
            .settings::<PoolKeys>()
            .and_then(|keys| MergedKeys::new(keys, flat.as_ref()))
            .and_then(|keys| offer::choose(keys, kube.has_network_name, request));
        let mut selection = match offered {
            // The allocator releases by the owner, with or without pools.
            Err(error) if releases => {
                warn!("{}", error.in_full());
                Selection::of([])
            }
            offered => offered?,
        };
        if !kube.members.is_empty() {
            selection.ipam = Map::from_iter([("kube".to_owned(), kube.members.into())]);
        }
        if request.verb == Verb::Status {
            selection.remarks.extend(without_effect(request, flat.as_ref()));
        }
        Ok(selection)
    }
}
