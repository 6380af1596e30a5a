//! Files of objects.

use std::path::Path;

use serde_json::Value;

use super::kubeconfig::Kubeconfig;
use super::program::kubectl;
use super::server::Kube;
use crate::servers::process;

impl Kube {
    /// The objects of a file in YAML or JSON, as kubectl reads it. None is made.
    #[track_caller]
    pub fn read_manifest(&self, file: &Path) -> Vec<Value> {
        let folder = process::folder();
        let config = Kubeconfig::of(self, &self.admin()).write(&folder.path().join("config"));
        let mut command = process::plain(kubectl());
        command.env("HOME", folder.path()).arg("--kubeconfig").arg(config);
        command.args(["create", "--dry-run=client", "--validate=false", "--output=json"]);
        let output = command.arg("--filename").arg(file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        let items = |value: Value| match value["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![value],
        };
        values.map(Result::unwrap).flat_map(items).collect()
    }
}
