//! The files of the host that whereabouts reads.

use std::path::Path;

use ipam_kit::cni::parse_object;
use ipam_kit::host::read_trusted;
use ipam_kit::keys::{Key, misspelt, refuse_other_letters_inside};
use ipam_kit::{Error, ErrorCode, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::config::KEYS;
use crate::tolerance::Tolerance;
use crate::written::WrittenPlace;

/// The flat files of the host, of which the first counts that exists.
pub(crate) const FLAT_FILES: [&str; 2] = [
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
];

/// A file with keys of whereabouts, which root alone may have written.
#[derive(Debug)]
pub(crate) struct FlatFile {
    path: String,
    content: Value,
}

impl FlatFile {
    /// Reads the first flat file that exists: the one that `ipam.configuration_path` names, else
    /// that of the host.
    ///
    /// # Errors
    /// It is not trusted, cannot be read, or is not one JSON object; the path named is relative.
    pub(crate) fn find(named: Option<&str>) -> Result<Option<Self>> {
        if let Some(named) = named.filter(|named| !named.is_empty()) {
            let (key, path) = ("ipam.configuration_path", Path::new(named));
            if path.is_relative() {
                let message = format!("expected an absolute path, found {named:?}");
                return Err(Error::config(key, message));
            }
            let found = Self::read(path).map_err(|error| error.at(key))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        for path in FLAT_FILES {
            let found = Self::read(Path::new(path))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Reads a file; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`FlatFile::find`].
    pub(crate) fn read(path: &Path) -> Result<Option<Self>> {
        let Some(bytes) = read_trusted(path)? else { return Ok(None) };
        let path = path.display().to_string();
        let content = parse_object(&bytes, &path)
            .map_err(|error| error.with_code(ErrorCode::INVALID_CONFIG))?;
        Ok(Some(Self { path, content: Value::Object(content) }))
    }

    /// Refuses keys in other letters than whereabouts documents: it would read them.
    ///
    /// # Errors
    /// There is such a key.
    pub(crate) fn refuse_other_letters(&self, keys: &[Key]) -> Result<()> {
        refuse_other_letters_inside(&self.content, keys, &self.path)
    }

    /// A warning for each misspelt key.
    pub(crate) fn misspelt(&self) -> impl Iterator<Item = String> {
        misspelt(&self.content, KEYS, &self.path).into_iter().map(|it| it.warning())
    }

    /// The keys of a type.
    ///
    /// # Errors
    /// A key has a value of the wrong type, which the error does not show.
    pub(crate) fn keys<K: DeserializeOwned>(&self, tolerance: &mut Tolerance) -> Result<K> {
        tolerance.keys(&self.content, &self.path)
    }

    /// The place of a key.
    pub(crate) fn place(&self, key: &str) -> WrittenPlace {
        WrittenPlace::of_file(&self.path, key)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The whole content.
    pub(crate) fn content(&self) -> &Value {
        &self.content
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::Call;

    #[test]
    fn the_flat_file_fills_what_is_empty() {
        let flat = json!({
            "range": "10.9.0.0/24", "range_start": "10.0.0.9", "exclude": ["10.0.0.10"],
            "gateway": "10.0.0.1", "routes": [{"dst": "::/0"}], "network_name": "flat",
            "dns": {"domain": "flat", "search": ["flat"]}, "kubernetes": {"kubeconfig": "/flat"},
            "configuration_path": "/a/folder", "enable_overlapping_ranges": false, "other": 1,
        });
        let ipam = json!({"range": "10.0.0.0/24", "exclude": [], "gateway": "", "routes": null,
            "dns": {"domain": "own", "search": []}});
        let answer = Call::bare(ipam).flat(&flat).ok();
        assert_eq!(
            answer["pools"][0]["ranges"],
            json!([{
                "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.254",
                "gateway": "10.0.0.1", "exclude": ["10.0.0.10/32"], "rules": "whereabouts",
            }])
        );
        assert_eq!(answer["routes"], flat["routes"]);
        assert_eq!(answer["dns"], json!({"domain": "own", "search": ["flat"]}));
        let section = json!({"kubeconfig": "/flat", "networkName": "flat"});
        assert_eq!(answer["ipam"], json!({"kube": section}));
        let own = json!({"ipRanges": [{"range": "10.0.0.0/24"}], "network_name": "own"});
        let answer = Call::ipam(own.clone()).flat(&flat).ok();
        assert_eq!(answer["pools"].as_array().unwrap().len(), 2);
        assert_eq!(answer["ipam"]["kube"], json!({"kubeconfig": "/k", "networkName": "own"}));
    }

    #[test]
    fn an_error_about_the_flat_file_names_the_key_and_shows_no_text() {
        for (flat, message) in [
            (json!({"range": "pa55"}), ".range: expected a CIDR"),
            (
                json!({"range": "10.0.0.0/24", "range_end": "pa55"}),
                ".range_end: expected an address",
            ),
            (
                json!({"exclude": ["pa55"], "range": "10.0.0.0/24"}),
                ".exclude[0]: expected a CIDR or",
            ),
            (json!({"gateway": "pa55"}), ".gateway: expected an address"),
            (json!({"routes": [{"dst": "pa55"}]}), ".routes[0]: expected a route"),
            (json!({"routes": ["pa55"]}), ".routes[0]: expected a route"),
            (json!({"addresses": [{"address": "pa55"}]}), ".addresses[0].address: expected a CIDR"),
            (json!({"ipRanges": [{"range": "pa55"}]}), ".ipRanges[0].range: expected a CIDR"),
            (json!({"ipRanges": "pa55"}), ".ipRanges: expected an array, found a string"),
            (json!({"requested": "pa55"}), ".requested: expected \"beside\" or"),
            (json!({"network_name": "Pa55"}), ".network_name: expected a name"),
            (json!({"kubernetes": "pa55"}), ".kubernetes: expected an object, found a string"),
            (json!({"dns": {"domain": ["pa55"]}}), ".dns.domain: expected a string"),
        ] {
            let details = Call::ipam(json!({})).flat(&flat).err(7, &format!("FLAT{message}"));
            assert!(!details.contains("a55"), "{details}");
        }
        let letters = Call::ipam(json!({})).flat(json!({"Range": "pa55"}));
        letters.err(7, "FLAT.Range: unknown key (did you mean range?)");
        for (flat, message) in [
            ("pa55: x", "is not one JSON object"),
            ("", "is empty"),
            (r#"["pa55"]"#, "is JSON but not an object"),
        ] {
            let message = format!("ipam.configuration_path: FLAT {message}");
            let details = Call::ipam(json!({})).flat(flat).err(7, &message);
            assert!(!details.contains("pa55"), "{details}");
        }
    }
}
