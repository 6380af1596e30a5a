//! The API server of the present network configuration, if a record names another kubeconfig.
//!
//! It is tried first, because the recorded file may be gone. Another cluster would answer that
//! nothing is held, so it is used only if it has a pool that this node remembers.

use ipam_kit::allocate::known;
use ipam_kit::delegate::Deadline;
use ipam_kit::{Request, Result};
use ipam_kube::Kube;
use log::{debug, warn};

use crate::config::{KubeConfig, KubeSite};
use crate::lease_mark::LeaseMark;
use crate::memory::KubeMemory;
use crate::store::ObjectStore;

/// The proof may take this part of the time that is left.
const PART: u32 = 4;

/// Opens the API server of a recorded site, by the present configuration if that proves to lead to
/// the recorded objects.
///
/// # Errors
/// The recorded credentials cannot be used.
pub(crate) fn open(
    recorded: Result<KubeSite>,
    request: &Request,
    memory: &KubeMemory,
) -> Result<(KubeSite, Kube)> {
    if let Some(present) = present_of(request)
        && recorded
            .as_ref()
            .map_or(true, |site| site.source.to_string() != present.source.to_string())
    {
        match prove(&present, recorded.as_ref().ok(), request, memory) {
            Ok(true) => {
                debug!("uses the kubeconfig of the present configuration: {}", present.source);
                let kube = present.source.open(request.unreached(), request.deadline)?;
                let site = match recorded {
                    Ok(site) => KubeSite { source: present.source, ..site },
                    Err(_) => present,
                };
                return Ok((site, kube));
            }
            Ok(false) => {
                warn!("{}: no proof that it leads to the recorded objects", present.source)
            }
            Err(error) => warn!("{}: {}", present.source, error.in_full()),
        }
    }
    let recorded = recorded?;
    let kube = recorded.source.open(request.unreached(), request.deadline)?;
    Ok((recorded, kube))
}

/// Reads the present configuration; `None` if it has not changed since the record.
fn present_of(request: &Request) -> Option<KubeSite> {
    let network = request.present()?;
    let site =
        network.settings::<KubeConfig>().and_then(|config| config.site(&request.environment));
    site.inspect_err(|error| {
        debug!("cannot read the kubeconfig of the present configuration: {}", error.in_full());
    })
    .ok()
}

/// Returns whether a pool of a recorded lease is the one that this node has seen.
fn prove(
    present: &KubeSite,
    recorded: Option<&KubeSite>,
    request: &Request,
    memory: &KubeMemory,
) -> Result<bool> {
    let known = known(request);
    let leases = known.iter().filter_map(|lease| Some((lease, LeaseMark::of(lease)?)));
    let Some((lease, mark)) = leases.into_iter().next() else { return Ok(false) };
    if recorded.is_some_and(|site| site.namespace.as_ref().is_some_and(|n| *n != mark.namespace)) {
        return Ok(false);
    }
    let deadline = Deadline::after(request.deadline.left() / PART);
    let kube = present.source.open(request.unreached(), deadline)?;
    let mut store = ObjectStore::new(kube, mark.namespace);
    let name = recorded.unwrap_or(present).names.pool(lease.address);
    let before = memory.pool(&name);
    let pool = store.read_pool(&name)?;
    Ok(pool.is_some_and(|pool| before.is_of(&pool.metadata)))
}
