use std::path::Path;

use ipam_kit::host::read_regular;

/// The identity of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// The host's name, as it is set.
    pub host_name: String,
    /// The id in `/etc/machine-id`, as the kubelet reports it in `status.nodeInfo.machineID`.
    pub ids: Vec<String>,
    /// Its names in a cloud, in lower case: the last part of `spec.providerID`.
    pub instances: Vec<String>,
}

/// The files with a cloud's name of a machine: cloud-init's, and the firmware's.
const INSTANCES: [&str; 3] = [
    "var/lib/cloud/data/instance-id",
    "sys/class/dmi/id/board_asset_tag",
    "sys/class/dmi/id/product_uuid",
];

/// A shorter name is not unique: firmware that was not set up has one.
const SHORTEST: usize = 8;

impl Machine {
    /// This one.
    pub(super) fn this() -> Self {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> Self {
        let instances =
            INSTANCES.iter().map(|path| read_or_empty(root, path).trim().to_lowercase());
        Self {
            host_name: read_or_empty(root, "proc/sys/kernel/hostname").trim().to_owned(),
            ids: read_or_empty(root, "etc/machine-id")
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
            instances: instances
                .filter(|name| {
                    name.len() >= SHORTEST && name.contains(|c: char| c.is_ascii_digit())
                })
                .collect(),
        }
    }

    /// All its names, in one string.
    pub(super) fn identity(&self) -> String {
        let ids = self.ids.iter().chain(&self.instances).map(String::as_str);
        ids.chain([&*self.host_name]).collect::<Vec<_>>().join(" ")
    }

    /// Whether a machine-id is this machine's; `None` if one of both is unknown.
    pub(super) fn has_id(&self, id: &str) -> Option<bool> {
        (!id.is_empty() && !self.ids.is_empty()).then(|| self.ids.iter().any(|own| own == id))
    }

    /// Whether a `spec.providerID` is of this machine.
    pub(super) fn is_instance(&self, provider_id: &str) -> bool {
        let last = provider_id.rsplit('/').next().unwrap_or_default().to_lowercase();
        self.instances.contains(&last)
    }
}

fn read_or_empty(root: &Path, path: &str) -> String {
    let content = read_regular(&root.join(path)).ok();
    content.and_then(|content| String::from_utf8(content).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_machine_is_known_by_what_its_files_say() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("etc/machine-id", "0123abc\n"),
            ("proc/sys/kernel/hostname", "Node-1\n"),
            ("var/lib/cloud/data/instance-id", "i-0ABCDEF1\n"),
            ("sys/class/dmi/id/board_asset_tag", "Not Specified\n"),
            ("sys/class/dmi/id/product_uuid", "EC2A-1\n"),
        ] {
            fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
            fs::write(root.path().join(path), text).unwrap();
        }
        let machine = Machine::below(root.path());
        assert_eq!(machine.host_name, "Node-1");
        assert_eq!(machine.identity(), "0123abc i-0abcdef1 Node-1");
        assert_eq!(
            (machine.has_id("0123abc"), machine.has_id("x"), machine.has_id("")),
            (Some(true), Some(false), None)
        );
        assert!(machine.is_instance("aws:///eu-west-1a/i-0abcdef1"));
        for other in
            ["aws:///eu-west-1a/i-0abcdef2", "", "x://", "vsphere://EC2A-1", "not specified"]
        {
            assert!(!machine.is_instance(other), "{other}");
        }
        assert_eq!(Machine::below(Path::new("/nowhere")).has_id("0123abc"), None);
    }
}
