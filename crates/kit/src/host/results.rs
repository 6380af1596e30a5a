use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::read_regular;
use crate::cni::{ContainerId, IfName, IpamResult, NetworkName, parse_object};
use crate::error::{Error, Result};

/// libcni's cache of results, which podman, containerd, CRI-O and Nomad share: a file
/// `<network>-<container id>-<ifname>` for each attachment, written after its ADD and removed after
/// its DEL.
///
/// Runtimes write it without a lock. A half-written file is ignored; a file that cannot be read is
/// an error.
#[derive(Clone, Debug)]
pub struct ResultCache {
    folder: PathBuf,
}

/// The cached result of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedResult {
    /// The network.
    pub network: NetworkName,
    /// The container.
    pub container: ContainerId,
    /// The interface inside it.
    pub ifname: IfName,
    /// Every address of the result, in order: also what plugins before or after IPAM added.
    pub addresses: Vec<IpAddr>,
    /// The network namespace, where the cache names one; old ones of libcni do not.
    pub netns: Option<String>,
}

impl ResultCache {
    /// The default of runtimes.
    pub const DEFAULT: &'static str = "/var/lib/cni/results";

    /// The folder that a configuration names; [`Self::DEFAULT`] where the name is absent or empty.
    pub fn folder_named(name: Option<PathBuf>) -> PathBuf {
        let name = name.filter(|name| !name.as_os_str().is_empty());
        name.unwrap_or_else(|| Self::DEFAULT.into())
    }

    /// The cache in this folder, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Fails if the folder is missing or cannot be listed.
    ///
    /// # Errors
    /// The reason.
    pub fn can_be_asked(&self) -> io::Result<()> {
        fs::read_dir(&self.folder).map(drop)
    }

    /// Whether there is a file of an attachment, readable or not; true if that is unknown.
    pub fn names(&self, network: &NetworkName, container: &ContainerId, ifname: &IfName) -> bool {
        self.folder.join(file_name(network, container, ifname)).try_exists().unwrap_or(true)
    }

    /// The cached result of one attachment; `None` without one, and for a file of another
    /// attachment whose names make the same file name.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of(
        &self,
        network: &NetworkName,
        container: &ContainerId,
        ifname: &IfName,
    ) -> Result<Option<CachedResult>> {
        let name = file_name(network, container, ifname);
        let cached =
            self.read(&name, || Some((network.clone(), container.clone(), ifname.clone())))?;
        Ok(cached.filter(|cached| {
            cached.network == *network && cached.container == *container && cached.ifname == *ifname
        }))
    }

    /// The cached results of one network, by file name.
    ///
    /// Files of libcni before 0.8 tell the names by their own name alone: there the interface is
    /// taken to have no `-`, and the network to be this one if it can be.
    ///
    /// Unreadable files are left out: the answer is for people, and proves nothing.
    pub fn of_network(&self, network: &NetworkName) -> Vec<CachedResult> {
        let head = format!("{network}-");
        let all = self.matching(
            |name| name.starts_with(&head),
            |name| {
                let (container, ifname) = name.strip_prefix(&head)?.rsplit_once('-')?;
                parse_names(network.as_str(), container, ifname)
            },
        );
        let all = all.into_iter().flatten().filter_map(Result::ok);
        all.filter(|cached| cached.network == *network).collect()
    }

    /// The cached results of one container on all networks, by file name; no other file is read.
    ///
    /// The names of files of libcni before 0.8 are read as in [`ResultCache::of_network`], with the
    /// container in the network's place.
    ///
    /// # Errors
    /// The folder or one of the files cannot be read.
    pub fn of_container(&self, container: &ContainerId) -> Result<Vec<CachedResult>> {
        let middle = format!("-{container}-");
        let all = self.matching(
            |name| name.contains(&middle),
            |name| {
                let (rest, ifname) = name.rsplit_once('-')?;
                let network = rest.strip_suffix(container.as_str())?.strip_suffix('-')?;
                parse_names(network, container.as_str(), ifname)
            },
        );
        let all = all?
            .into_iter()
            .filter(|cached| cached.as_ref().map_or(true, |cached| cached.container == *container));
        all.collect()
    }

    /// The results in files whose names fit.
    fn matching(
        &self,
        fits: impl Fn(&str) -> bool,
        names: impl Fn(&str) -> Option<AttachmentNames>,
    ) -> Result<Vec<Result<CachedResult>>> {
        let mut files = Vec::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            other => other.map_err(|error| unreadable(&self.folder, error))?,
        };
        for entry in entries {
            let entry = entry.map_err(|error| unreadable(&self.folder, error))?;
            let name = entry.file_name();
            files.extend(name.into_string().ok().filter(|name| fits(name)));
        }
        files.sort_unstable();
        Ok(files.iter().filter_map(|name| self.read(name, || names(name)).transpose()).collect())
    }

    /// Reads a file; `names` are for a file without names in it.
    fn read(
        &self,
        name: &str,
        names: impl FnOnce() -> Option<AttachmentNames>,
    ) -> Result<Option<CachedResult>> {
        let path = self.folder.join(name);
        let object = object_in(&path).map_err(|error| unreadable(&path, error))?;
        Ok(object.and_then(|file| cached_in(file, names)))
    }
}

type AttachmentNames = (NetworkName, ContainerId, IfName);

/// libcni since 0.8 wraps the result; before, the result was all there is.
const KIND: &str = "cniCacheV1";

fn cached_in(
    mut file: Map<String, Value>,
    names: impl FnOnce() -> Option<AttachmentNames>,
) -> Option<CachedResult> {
    let netns = file.get("netns").and_then(Value::as_str).map(str::to_owned);
    let ((network, container, ifname), result) = match file.get("kind") {
        None => (names()?, Value::Object(file)),
        Some(kind) if kind == KIND => {
            let network = file.get("networkName")?.as_str()?;
            let container = file.get("containerId")?.as_str()?;
            let ifname = file.get("ifName")?.as_str()?;
            let names = parse_names(network, container, ifname)?;
            (names, file.remove("result")?)
        }
        Some(_) => return None,
    };
    let result = IpamResult::parse(&result, "result").ok()?;
    let addresses = result.ips.iter().map(|ip| ip.address.addr()).collect();
    Some(CachedResult { network, container, ifname, addresses, netns })
}

/// Whether a regular file is missing: there is nothing, a folder or a FIFO.
fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
        || matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::io(format!("cannot read the result cache {}", path.display()), error).advise(
        "call again; if the error persists, check the disk, or remove the file after its container",
    )
}

fn file_name(network: &NetworkName, container: &ContainerId, ifname: &IfName) -> String {
    format!("{network}-{container}-{ifname}")
}

fn parse_names(network: &str, container: &str, ifname: &str) -> Option<AttachmentNames> {
    let network = NetworkName::parse(network).ok()?;
    Some((network, ContainerId::parse(container).ok()?, IfName::parse(ifname).ok()?))
}

/// The object in a file.
fn object_in(path: &Path) -> io::Result<Option<Map<String, Value>>> {
    match read_regular(path) {
        Ok(content) => Ok(parse_object(&content, "a cached result").ok()),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    fn cache(files: &[(&str, Value)]) -> (TempDir, ResultCache) {
        let temp = TempDir::new().unwrap();
        for (name, content) in files {
            fs::write(temp.path().join(name), content.to_string()).unwrap();
        }
        let cache = ResultCache::new(temp.path());
        (temp, cache)
    }

    #[test]
    fn an_empty_name_of_a_folder_counts_as_absent() {
        for (name, folder) in
            [(None, ResultCache::DEFAULT), (Some(""), ResultCache::DEFAULT), (Some("/a"), "/a")]
        {
            assert_eq!(ResultCache::folder_named(name.map(PathBuf::from)), Path::new(folder));
        }
    }

    fn wrapped(network: &str, container: &str, ifname: &str, result: &Value) -> Value {
        json!({
            "kind": "cniCacheV1", "containerId": container, "config": "e30=", "ifName": ifname,
            "networkName": network, "cniArgs": [["IgnoreUnknown", "1"]], "result": result,
        })
    }

    fn result(address: &str) -> Value {
        json!({"cniVersion": "1.0.0", "ips": [{"address": address, "interface": 0}]})
    }

    fn shown(all: &[CachedResult]) -> Vec<String> {
        let each = |it: &CachedResult| {
            format!("{} {} {} {:?}", it.network, it.container, it.ifname, it.addresses)
        };
        all.iter().map(each).collect()
    }

    /// What the cache says of `net`, `c1`, `eth0`.
    fn addresses(cache: &ResultCache) -> Option<Vec<String>> {
        let (network, container, ifname) = parse_names("net", "c1", "eth0").unwrap();
        let cached = cache.of(&network, &container, &ifname).unwrap()?;
        Some(cached.addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn results_of_every_version_are_read_wrapped_and_bare() {
        let old = json!({
            "cniVersion": "0.2.0", "dns": {},
            "ip4": {"ip": "10.0.0.2/24", "routes": [{"dst": "0.0.0.0/0"}]}, "ip6": {"ip": "fd00::2/64"},
        });
        let new = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x"}],
            "ips": [{"address": "10.0.0.2/24", "interface": 0}, {"address": "fd00::2/64"}],
        });
        let both = Some(vec!["10.0.0.2".to_owned(), "fd00::2".to_owned()]);
        for result in [&old, &new] {
            for content in [result.clone(), wrapped("net", "c1", "eth0", result)] {
                let (_temp, cache) = cache(&[("net-c1-eth0", content)]);
                assert_eq!(addresses(&cache), both);
            }
        }
    }

    #[test]
    fn what_is_no_cached_result_says_nothing() {
        for content in [
            json!([]),
            json!({"kind": "cniCacheV9", "result": result("10.0.0.2/24")}),
            json!({"kind": "cniCacheV1", "networkName": "net", "containerId": "c1", "ifName": "eth0"}),
            wrapped("net", "c1", "eth0", &json!({"ips": [{"address": "10.0.0.2"}]})),
            // Its names make up the same file name, or another program wrote it there.
            wrapped("net-c1", "eth0", "eth0", &result("10.0.0.2/24")),
            wrapped("other", "c1", "eth0", &result("10.0.0.2/24")),
            wrapped("net", "c2", "eth0", &result("10.0.0.2/24")),
            wrapped("net", "c1", "eth1", &result("10.0.0.2/24")),
            wrapped("../net", "c1", "eth0", &result("10.0.0.2/24")),
        ] {
            let (_temp, cache) = cache(&[("net-c1-eth0", content.clone())]);
            assert_eq!(addresses(&cache), None, "{content}");
            let (network, container, ifname) = parse_names("net", "c1", "eth0").unwrap();
            assert!(cache.names(&network, &container, &ifname));
        }
        assert_eq!(addresses(&cache(&[("net-c1-eth0", json!({}))]).1), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_file_of_bounded_size_is_not_read() {
        let (temp, cache) = cache(&[]);
        let (network, container, ifname) = parse_names("net", "c1", "eth0").unwrap();
        assert_eq!(addresses(&cache), None);
        assert!(!cache.names(&network, &container, &ifname));
        let path = temp.path().join("net-c1-eth0");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert_eq!(addresses(&cache), None, "a FIFO");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(addresses(&cache), None, "a folder");
        fs::remove_dir(&path).unwrap();
        let blanks = vec![b' '; 1 << 20];
        fs::write(&path, [&blanks[..], result("10.0.0.2/24").to_string().as_bytes()].concat())
            .unwrap();
        assert_eq!(addresses(&cache), None, "too large");
        let missing = ResultCache::new("/nowhere");
        assert!(missing.of_network(&network).is_empty());
    }

    #[test]
    fn a_network_and_a_container_are_found_by_what_files_say_before_their_names() {
        let (temp, cache) = cache(&[
            ("net-c1-eth0", wrapped("net", "c1", "eth0", &result("10.0.0.2/24"))),
            ("net-c1-net1", result("10.0.0.3/24")),
            ("net-default-c1-eth0", wrapped("net", "default-c1", "eth0", &result("10.0.0.4/24"))),
            ("net-b-c1-eth1", wrapped("net-b", "c1", "eth1", &result("10.0.0.5/24"))),
            ("net-b6cd8f3e-c9ac-eth0", result("10.0.0.6/24")),
            ("other-c1-eth0", result("10.0.0.7/24")),
            ("other-c10-eth0", result("10.0.0.8/24")),
            ("net-", json!({})),
            ("net-c2-eth0", json!("torn")),
        ]);
        fs::create_dir(temp.path().join("net-c3-eth0")).unwrap();
        let (network, container, _) = parse_names("net", "c1", "eth0").unwrap();
        assert_eq!(
            shown(&cache.of_network(&network)),
            [
                "net b6cd8f3e-c9ac eth0 [10.0.0.6]",
                "net c1 eth0 [10.0.0.2]",
                "net c1 net1 [10.0.0.3]",
                "net default-c1 eth0 [10.0.0.4]",
            ]
        );
        assert_eq!(
            shown(&cache.of_container(&container).unwrap()),
            [
                "net-b c1 eth1 [10.0.0.5]",
                "net c1 eth0 [10.0.0.2]",
                "net c1 net1 [10.0.0.3]",
                "other c1 eth0 [10.0.0.7]",
            ]
        );
    }
}
