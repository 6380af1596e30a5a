use std::time::Duration;

use serde_json::Value;

use super::{Deadline, Mark};
use crate::cni::{
    Args, Attachment, Environment, IpamResult, Network, RequestedAddress, ValidAttachments, Verb,
    parse_object,
};
use crate::contract::{InputMembers, Purpose};
use crate::error::{Error, ErrorCode, Result};
use crate::host::{Settings, StateDir};

/// One call of a delegate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The verb.
    pub verb: Verb,
    /// The network configuration.
    pub network: Network,
    /// The attachment of an ADD, DEL or CHECK.
    pub attachment: Option<Attachment>,
    /// The attachments a GC must keep.
    pub keep: ValidAttachments,
    /// `CNI_ARGS`.
    pub args: Args,
    /// Every variable of the call.
    pub environment: Environment,
    /// The host-wide settings.
    pub settings: Settings,
    /// When the call must have ended.
    pub deadline: Deadline,
}

impl Request {
    /// Parses a call of any verb but VERSION.
    pub fn parse(
        verb: Verb,
        environment: Environment,
        stdin: &[u8],
        settings: Settings,
    ) -> Result<Self> {
        let network = Network::new(parse_object(stdin, "the network configuration on stdin")?)?;
        network.version().allows(verb)?;
        let keep = if verb == Verb::Gc { network.keep()? } else { ValidAttachments::default() };
        Ok(Self {
            verb,
            attachment: environment.attachment(verb)?,
            keep,
            args: environment.args(),
            deadline: Deadline::after(deadline_from_env(&environment).unwrap_or(Deadline::DEFAULT)),
            network,
            environment,
            settings,
        })
    }

    /// The attachment; error 4 for a verb that has none.
    pub fn attachment(&self) -> Result<&Attachment> {
        self.attachment.as_ref().ok_or_else(|| {
            Error::new(ErrorCode::INVALID_ENVIRONMENT, format!("{} has no attachment", self.verb))
        })
    }

    /// The previous result, or an empty one.
    pub fn prev_result(&self) -> Result<IpamResult> {
        Ok(self.network.prev_result()?.unwrap_or_default())
    }

    /// The addresses that the runtime asks for, by any of its ways.
    pub fn requested(&self) -> Result<Vec<RequestedAddress>> {
        self.network.requested(&self.args)
    }

    /// The state folder for this call.
    pub fn state_dir(&self) -> Result<StateDir> {
        StateDir::of(&self.network, &self.settings)
    }

    /// The members of the contract in `prevResult`, which can be read even if the rest cannot.
    pub fn members(&self) -> InputMembers<'_> {
        InputMembers::of(self.network.config().get("prevResult"))
    }

    /// Whether the call claims held addresses again, in a store that is not trusted yet.
    pub fn is_reassert(&self) -> bool {
        self.members().purpose().is_ok_and(|purpose| purpose == Purpose::Reassert)
    }

    /// Whether a chain calls by the record of an ADD that gave leases: what that ADD was allowed
    /// holds for the call.
    pub fn is_by_record(&self) -> bool {
        Mark::chain(&self.environment).is_some()
            && self.members().leases::<Value>().is_ok_and(|leases| !leases.is_empty())
    }

    /// Whether the call uses any store that it finds, even one that was restored or swapped: a
    /// reassert, or a person who looks.
    pub fn trusts_any_store(&self) -> bool {
        self.is_reassert() || self.environment.text("CNI_COMMAND").is_none()
    }

    /// Whether errors in the configuration that earlier releases ignored are refused: on ADD and
    /// STATUS. Other verbs and a reassert may get the configuration of a record of such a release,
    /// and a person must be able to read and release its leases.
    pub fn is_strict(&self) -> bool {
        match self.verb {
            Verb::Add => !self.is_reassert(),
            verb => verb == Verb::Status && !matches!(self.environment.verb(), Ok(None)),
        }
    }

    /// The network with the present section `ipam` of its configuration, if the record has another
    /// one.
    ///
    /// The record identifies the store. The present settings may be used to reach it if they prove
    /// to lead to the same store.
    pub fn present(&self) -> Option<Network> {
        let ipam = self.members().present()?;
        Some(self.network.with("ipam", ipam.clone().into()))
    }

    /// The code of an error if no request reached a server: the chain need not undo such an ADD.
    pub fn unreached(&self) -> ErrorCode {
        match self.verb {
            Verb::Add => ErrorCode::UNREACHED,
            _ => ErrorCode::TRY_AGAIN,
        }
    }

    /// The name of this request in logs: the attachment, else the network.
    pub(crate) fn subject(&self) -> String {
        match &self.attachment {
            Some(attachment) => attachment.to_string(),
            None => self.network.name().to_string(),
        }
    }
}

/// The time that the chain gives this delegate.
pub(super) fn deadline_from_env(environment: &Environment) -> Option<Duration> {
    environment.text(Deadline::VARIABLE)?.parse().ok().map(Duration::from_millis)
}
