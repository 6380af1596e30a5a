use std::ffi::OsString;

use serde_json::{Value, json};

use super::{Deadline, Reach, Request};
use crate::cni::{Args, Environment, Network, ValidAttachments, Verb, parse_object};
use crate::error::{Error, ErrorCode, Result};
use crate::host::Settings;
use crate::keys::{self, Key};

/// A call without `CNI_COMMAND`: by a person, or by a program on a person's behalf.
#[derive(Clone, Debug)]
pub struct CliCall {
    /// The program's name.
    pub name: &'static str,
    /// The arguments, after [`Delegate::expand_args`](super::Delegate::expand_args).
    pub arguments: Vec<OsString>,
    /// stdin, if there is an argument `-`.
    pub stdin: Vec<u8>,
    /// Every variable of the call.
    pub environment: Environment,
    /// The host-wide settings.
    pub settings: Settings,
}

impl CliCall {
    /// The answer to `about --json`.
    ///
    /// `keys` are the keys of `ipam` that the delegate reads; without them it claims every key.
    pub fn about(&self, role: &str, reach: Option<Reach>, keys: Option<&[Key]>) -> Value {
        let mut about =
            json!({"name": self.name, "version": env!("CARGO_PKG_VERSION"), "role": role});
        if let Some(reach) = reach {
            about["reach"] = reach.as_str().into();
        }
        if let Some(keys) = keys {
            about["keys"] = keys::to_json(keys);
        }
        about
    }

    /// The request for a network configuration, without an attachment.
    ///
    /// Of a list of plugins it takes the first one with a section `ipam`.
    ///
    /// # Errors
    /// It is not a network configuration.
    pub fn request(&self, config: &[u8]) -> Result<Request> {
        let mut config = parse_object(config, "the network configuration")?;
        if let Some(plugins) = config.get("plugins") {
            let plugins = plugins.as_array().into_iter().flatten();
            let plugin =
                plugins.filter_map(|plugin| plugin.as_object()).find(|p| p.contains_key("ipam"));
            let mut plugin = plugin.cloned().ok_or_else(|| {
                Error::new(ErrorCode::INVALID_CONFIG, "plugins: no plugin has a section ipam")
            })?;
            for key in ["cniVersion", "name"] {
                plugin.extend(config.remove(key).map(|value| (key.to_owned(), value)));
            }
            config = plugin;
        }
        Ok(Request {
            verb: Verb::Status,
            network: Network::new(config)?,
            attachment: None,
            keep: ValidAttachments::default(),
            args: Args::default(),
            environment: self.environment.clone(),
            settings: self.settings.clone(),
            deadline: Deadline::after(Deadline::DEFAULT),
        })
    }
}
