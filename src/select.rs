//! The role of a selector: a delegate that chooses pools, keeps no state and gives no address.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::cni::{Dns, IpamResult, Keep, Route};
use crate::delegate::{Delegate, Request};
use crate::error::Result;
use crate::offer;
use crate::pool::Pool;

/// What chooses the pools that a later delegate allocates from.
///
/// Name the program `ipam-ds-…`: the chain knows a selector by its name, and does not run it on a
/// DEL or CHECK whose attachment it has a record of.
pub trait Selector {
    /// What the selector reads of the section `ipam`. Keys it does not know are other delegates'.
    type Config: DeserializeOwned;

    /// Whether choosing may have to wait for a server: see [`Delegate::waits`].
    const WAITS: bool = true;

    /// Chooses the pools for this call.
    ///
    /// [`Request::attachment`] tells which attachment; on STATUS and GC there is none.
    fn select(&self, config: Self::Config, request: &Request) -> Result<Selection>;
}

/// What a selector answers.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The pools, one address each.
    pub pools: Vec<Pool>,
    /// Routes of the selector's source.
    pub routes: Vec<Route>,
    /// Name resolution of the selector's source.
    pub dns: Dns,
    /// Settings put over what later delegates find in `ipam`: a JSON merge patch. Of use where a
    /// standard plugin follows, which knows nothing of pools.
    pub ipam: Map<String, Value>,
}

impl Selection {
    /// Pools and nothing else.
    pub fn of(pools: impl IntoIterator<Item = Pool>) -> Self {
        Self { pools: pools.into_iter().collect(), ..Self::default() }
    }
}

/// A [`Selector`] as a [`Delegate`].
#[derive(Clone, Copy, Debug)]
pub struct Select<S>(pub S);

impl<S: Selector> Select<S> {
    /// The previous result with the selected pools, and with routes and dns where there are any.
    fn answer(&self, request: &Request) -> Result<IpamResult> {
        let selection = self.0.select(request.network.settings()?, request)?;
        let mut result = request.prev_result()?;
        let pools = selection.pools.iter().map(Pool::to_json).collect();
        result.extra.insert("pools".to_owned(), Value::Array(pools));
        offer::add_to(&mut result, selection.routes, selection.dns);
        if !selection.ipam.is_empty() {
            result.extra.insert("ipam".to_owned(), Value::Object(selection.ipam));
        }
        Ok(result)
    }
}

impl<S: Selector> Delegate for Select<S> {
    fn waits(&self) -> bool {
        S::WAITS
    }

    fn add(&self, request: &Request) -> Result<IpamResult> {
        self.answer(request)
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.answer(request).map(Some)
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.answer(request).map(Some)
    }

    fn gc(&self, request: &Request, _keep: &Keep) -> Result<Option<IpamResult>> {
        self.answer(request).map(Some)
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.answer(request).map(Some)
    }
}
