//! The plugins of a network whose addresses come from this project, and requests for each.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::call::Operator;
use super::network::{NetworkFile, find_network, is_path};
use super::options::{CNI_PATH, CONF_DIR};
use crate::chain::Chain;
use crate::chain::plan::{Plan, Step};
use crate::chain::program::is_allocator;
use crate::chain::session::Session;
use ipam_cli::Row;
use ipam_kit::cni::{Args, Environment, Network, NetworkName, ValidAttachments, Verb, Version};
use ipam_kit::delegate::{Deadline, Request};
use ipam_kit::error::{Error, ErrorCode, Result};

/// The section `ipam` of one plugin of a network.
#[derive(Debug)]
pub(crate) struct OurPlugin {
    /// The main plugin.
    pub plugin: String,
    /// `ipam.type`.
    pub kind: String,
    pub chain: Chain,
    pub network: Network,
}

/// The owner of a plugin's section `ipam`.
enum Ownership {
    Ours,
    /// It has the name of a preset, but another program of that name comes first.
    Replaceable,
    Foreign,
}

impl Operator {
    /// Finds the network that the first operand names.
    pub(super) fn network(&self) -> Result<NetworkFile> {
        find_network(self.arguments.operand(0).unwrap_or_default(), self.arguments.value(&CONF_DIR))
    }

    /// Returns the name of a network whose name or file is typed. Its records may outlive its
    /// configuration.
    ///
    /// # Errors
    /// The file has no network, or the name is invalid.
    pub(super) fn name_of_network(&self, typed: &str) -> Result<NetworkName> {
        if is_path(typed) {
            return NetworkName::parse(&self.network()?.name);
        }
        NetworkName::parse(typed)
    }

    /// Finds the plugins of a network that are ours.
    ///
    /// # Errors
    /// Error 7: no plugin of the network is ours.
    pub(super) fn our_plugins(&self, found: &NetworkFile) -> Result<Vec<OurPlugin>> {
        let ours = self.plugins(found, false)?;
        if ours.is_empty() {
            let types = found.plugins.iter().filter_map(|plugin| plugin.get("ipam")?.get("type"));
            let types: Vec<String> = types.map(Value::to_string).collect();
            let message = format!(
                "{} does not use ipam-delegated: its ipam.type is {}",
                found.file.display(),
                if types.is_empty() { "missing".to_owned() } else { types.join(", ") }
            );
            return Err(Error::new(ErrorCode::INVALID_CONFIG, message).advise(
                "expected ipam-delegated, an allocator ipam-da-…, or a preset, which is this \
                 program and comes first in the plugin path",
            ));
        }
        Ok(ours)
    }

    /// Finds the plugins of a network that are ours; the list may be empty.
    pub(super) fn our_plugins_if_any(&self, found: &NetworkFile) -> Result<Vec<OurPlugin>> {
        self.plugins(found, false)
    }

    /// Finds the plugins that are ours, and those that a preset could replace.
    pub(super) fn our_plugins_and_replaceable(
        &self,
        found: &NetworkFile,
    ) -> Result<Vec<OurPlugin>> {
        let ours = self.plugins(found, true)?;
        if ours.is_empty() {
            return self.our_plugins(found);
        }
        Ok(ours)
    }

    fn plugins(&self, found: &NetworkFile, replaceable_too: bool) -> Result<Vec<OurPlugin>> {
        let mut ours = Vec::new();
        for config in &found.plugins {
            let ipam = config.get("ipam").unwrap_or_default();
            let Some(kind) = ipam.get("type").and_then(Value::as_str) else { continue };
            let chain = Chain::new(self.names, Path::new(kind));
            match self.ownership(kind, &chain) {
                Ownership::Foreign => continue,
                Ownership::Replaceable if !replaceable_too => continue,
                Ownership::Replaceable | Ownership::Ours => {}
            }
            let network =
                Network::new(config.clone()).map_err(|error| error.within(found.file.display()))?;
            let plugin = config.get("type").and_then(Value::as_str).unwrap_or_default();
            let (plugin, kind) = (plugin.to_owned(), kind.to_owned());
            ours.push(OurPlugin { plugin, kind, chain, network });
        }
        Ok(ours)
    }

    fn ownership(&self, kind: &str, chain: &Chain) -> Ownership {
        if kind == "ipam-delegated" || is_allocator(kind) {
            return Ownership::Ours;
        }
        if chain.preset.is_none() {
            return Ownership::Foreign;
        }
        let first =
            self.cni_path().into_iter().map(|folder| folder.join(kind)).find(|p| p.exists());
        if first.is_some_and(|program| chain.own_executable().is(&program)) {
            Ownership::Ours
        } else {
            Ownership::Replaceable
        }
    }

    /// The typed plugin folders, or the folder of this program and those of the distributions.
    pub(super) fn cni_path(&self) -> Vec<PathBuf> {
        if let Some(path) = self.arguments.value(&CNI_PATH) {
            return std::env::split_paths(path).filter(|p| !p.as_os_str().is_empty()).collect();
        }
        let mut path: Vec<PathBuf> = self.own_folder().into_iter().collect();
        for folder in ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"] {
            if path.first().is_none_or(|own| own != Path::new(folder)) {
                path.push(folder.into());
            }
        }
        path
    }

    /// The folder of this program, by the name it was called by.
    fn own_folder(&self) -> Option<PathBuf> {
        if self.program.components().count() > 1 {
            return std::path::absolute(&self.program).ok()?.parent().map(Path::to_owned);
        }
        let path = self.environment.text("PATH")?;
        std::env::split_paths(path).find(|folder| folder.join(&self.program).is_file())
    }

    /// Makes a request as a runtime would, for a verb that a person typed.
    pub(super) fn request(&self, network: Network, path: &[PathBuf]) -> Result<Request> {
        let mut environment = self.environment.clone();
        let joined = std::env::join_paths(path).unwrap_or_else(|_| OsString::new());
        environment.set("CNI_PATH", joined);
        for name in ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS"] {
            environment.set(name, OsStr::new(""));
        }
        self.request_in(network, environment)
    }

    /// Makes a request with the variables of an attachment.
    pub(super) fn request_in(&self, network: Network, environment: Environment) -> Result<Request> {
        Ok(Request {
            verb: Verb::Status,
            network,
            attachment: None,
            keep: ValidAttachments::default(),
            args: Args::default(),
            environment,
            settings: self.settings()?,
            deadline: Deadline::after(Deadline::DEFAULT),
        })
    }
}

impl NetworkFile {
    /// The members that every report about a plugin has.
    pub(super) fn row(&self, ours: &OurPlugin) -> Row {
        let mut row = Row::default();
        row.set_text("network", &self.name);
        row.set_text("file", &self.file.display().to_string());
        row.set_text("plugin", &ours.plugin);
        row.set_text("type", &ours.kind);
        row
    }
}

impl OurPlugin {
    /// Makes the plan of the chain; for an allocator without a chain, the allocator alone.
    pub(super) fn plan(&self, session: &Session<'_>) -> Result<Plan> {
        if !is_allocator(&self.kind) {
            return session.plan();
        }
        let program = session.planner.find(&self.kind)?;
        Ok(Plan { steps: vec![Step::new(&self.kind, program)], timeout: session.timeout() })
    }

    /// The configuration in a version that has STATUS.
    pub(super) fn for_status(&self) -> Network {
        self.network.with("cniVersion", Version::NEWEST.as_str().into())
    }
}
