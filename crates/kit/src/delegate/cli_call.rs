use std::ffi::OsString;

use serde_json::{Value, json};

use super::{Deadline, Reach, Request};
use crate::cni::{Args, Environment, Keep, Network, Verb, parse_object};
use crate::error::{Error, ErrorCode, Result};
use crate::host::Settings;
use crate::keys::{self, Key};

/// A call without `CNI_COMMAND`: by a person, or by a program on a person's behalf.
#[derive(Clone, Debug)]
pub struct CliCall {
    /// The program's name.
    pub name: &'static str,
    /// What was typed after it, expand_args.
    pub arguments: Vec<OsString>,
    /// stdin, where an argument `-` asks for it.
    pub stdin: Vec<u8>,
    /// Every variable of the call.
    pub environment: Environment,
    /// The host-wide settings.
    pub settings: Settings,
}

impl CliCall {
    /// What `about --json` answers.
    ///
    /// `keys` are those of `ipam` that the delegate reads; a delegate without them claims every key.
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

    /// The request a network configuration stands for, about no attachment.
    ///
    /// In a list of plugins it is the first one with a section `ipam`.
    ///
    /// # Errors
    /// It is no network configuration.
    pub fn request(&self, config: &[u8]) -> Result<Request> {
        let mut config = parse_object(config, "the network configuration")?;
        if let Some(plugins) = config.get("plugins") {
            let plugins = plugins.as_array().into_iter().flatten();
            let plugin =
                plugins.filter_map(|plugin| plugin.as_object()).find(|p| p.contains_key("ipam"));
            let mut plugin = plugin.cloned().ok_or_else(|| {
                Error::new(ErrorCode::INVALID_CONFIG, "plugins: none of them has a section ipam")
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
            keep: Keep::default(),
            args: Args::default(),
            environment: self.environment.clone(),
            settings: self.settings.clone(),
            deadline: Deadline::after(Deadline::DEFAULT),
        })
    }
}
