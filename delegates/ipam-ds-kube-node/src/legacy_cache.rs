//! The cache of the replaced plugin kube-node: `kube-node.json`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipam_kit::host::{make_folder, read_own, replace_own};
use log::debug;
use serde::{Deserialize, Serialize};

use crate::subnets;

/// The file in which kube-node keeps the settings for host-local that it has read.
#[derive(Debug)]
pub(crate) struct LegacyCache {
    path: PathBuf,
    /// The folder, if the configuration names one.
    data_dir: Option<PathBuf>,
    network: String,
}

/// The content of the file: the section `ipam` for host-local, its keys in this order.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HostLocalSection {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data_dir: Option<PathBuf>,
    ranges: Vec<[SubnetRange; 1]>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SubnetRange {
    subnet: String,
}

const NAME: &str = "kube-node.json";

impl LegacyCache {
    /// The file for a network with this `dataDir`.
    pub(crate) fn of(data_dir: Option<&PathBuf>, network: &str) -> Self {
        let folder = match data_dir {
            Some(folder) => folder.clone(),
            None => Path::new("/var/lib/cni/networks").join(network),
        };
        Self { path: folder.join(NAME), data_dir: data_dir.cloned(), network: network.to_owned() }
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The subnets in the file; `None` if kube-node did not write it, or if it may be another
    /// network's.
    pub(crate) fn read(&self) -> Option<Vec<String>> {
        if let Some(other) = self.other_network() {
            debug!("{} may belong to the network {other}", self.path.display());
            return None;
        }
        let content: HostLocalSection = serde_json::from_slice(&read_own(&self.path).ok()?).ok()?;
        let subnets: Vec<_> = content.ranges.into_iter().map(|[range]| range.subnet).collect();
        let is_valid = content.kind == "host-local" && subnets::invalid(&subnets).is_none();
        is_valid.then_some(subnets)
    }

    /// Writes the file as kube-node would, so that you can go back. Nothing is written into a
    /// default folder, which has host-local's leases, nor if several networks share the file.
    pub(crate) fn keep(&self, subnets: &[String]) {
        let Some(data_dir) = &self.data_dir else { return };
        let content = HostLocalSection {
            kind: "host-local".to_owned(),
            data_dir: Some(data_dir.clone()),
            ranges: subnets.iter().map(|subnet| [SubnetRange { subnet: subnet.clone() }]).collect(),
        };
        let Ok(bytes) = serde_json::to_vec(&content) else { return };
        if read_own(&self.path).is_ok_and(|before| before == bytes)
            || self.other_network().is_some()
        {
            return;
        }
        if let Err(error) = self.write(data_dir, &bytes) {
            debug!("{} cannot be written: {error}", self.path.display());
        }
    }

    fn write(&self, folder: &Path, bytes: &[u8]) -> io::Result<()> {
        make_folder(folder, 0o755)?;
        let draft = folder.join(format!(".{NAME}.{}", std::process::id()));
        replace_own(&self.path, &draft, 0o644, bytes)
    }

    /// Another network with leases in the same `dataDir`: kube-node gives all of them the subnets
    /// of the first.
    fn other_network(&self) -> Option<String> {
        let entries = fs::read_dir(self.data_dir.as_ref()?).ok()?.flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let mut names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.find(|name| *name != self.network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_kube_node_does() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("data");
        let legacy = LegacyCache::of(Some(&data_dir), "net");
        let subnets = ["11.0.1.0/24".to_owned(), "1100:0:0:1::/64".to_owned()];
        assert_eq!(legacy.read(), None);
        legacy.keep(&subnets);
        assert_eq!(
            fs::read_to_string(data_dir.join(NAME)).unwrap(),
            format!(
                r#"{{"type":"host-local","dataDir":"{}","ranges":[[{{"subnet":"11.0.1.0/24"}}],[{{"subnet":"1100:0:0:1::/64"}}]]}}"#,
                data_dir.display()
            )
        );
        assert_eq!(legacy.read().unwrap(), subnets);
        assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 1);
    }

    #[test]
    fn what_may_be_another_networks_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().to_owned();
        let legacy = LegacyCache::of(Some(&data_dir), "net");
        fs::create_dir(data_dir.join("net")).unwrap();
        legacy.keep(&["10.0.0.0/24".to_owned()]);
        fs::create_dir(data_dir.join("other")).unwrap();
        assert_eq!(legacy.read(), None);
        legacy.keep(&["10.0.1.0/24".to_owned()]);
        fs::remove_dir(data_dir.join("other")).unwrap();
        assert_eq!(legacy.read().unwrap(), ["10.0.0.0/24"]);
    }

    #[test]
    fn what_is_not_kube_nodes_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().to_owned();
        for text in [
            "",
            r#"{"type":"other"}"#,
            r#"{"type":"host-local","ranges":[]}"#,
            r#"{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"blah"}]]}"#,
            r#"{"type":"other","ranges":[[{"subnet":"10.0.0.0/24"}]]}"#,
            r#"{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"},{"subnet":"10.1.0.0/24"}]]}"#,
        ] {
            fs::write(data_dir.join(NAME), text).unwrap();
            assert_eq!(LegacyCache::of(Some(&data_dir), "net").read(), None, "{text}");
        }
    }
}
