//! The proof that the API server of the present configuration has the recorded objects.

use ipam_kit::allocate::known;
use ipam_kit::allocate::present_store::present_store;
use ipam_kit::delegate::Deadline;
use ipam_kit::{Error, Request, Result};
use ipam_kube::Kube;

use crate::config::{KubeConfig, KubeSite};
use crate::lease_mark::LeaseMark;
use crate::memory::KubeMemory;
use crate::store::ObjectStore;

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
    let present = present_store(
        request,
        |network| {
            let present = network.settings::<KubeConfig>()?;
            let present = present.site(&request.environment, &request.settings)?;
            let source = present.source.to_string();
            if recorded.as_ref().is_ok_and(|site| site.source.to_string() == source) {
                return Err(Error::config("ipam.kube.kubeconfig", "the record names the same one"));
            }
            Ok((present, source))
        },
        |present, deadline| {
            let is_proven = prove(&present, recorded.as_ref().ok(), request, deadline, memory)?;
            Ok(is_proven.then_some(present))
        },
    );
    let site = match (present, recorded) {
        (Some(present), Ok(site)) => KubeSite { source: present.source, ..site },
        (Some(present), Err(_)) => present,
        (None, recorded) => recorded?,
    };
    let kube = site.source.open(request.unreached(), request.deadline)?;
    Ok((site, kube))
}

/// Returns whether the present configuration leads to the recorded objects: by another login to the
/// same server, or since a pool of a recorded lease is the one that this node has seen.
fn prove(
    present: &KubeSite,
    recorded: Option<&KubeSite>,
    request: &Request,
    deadline: Deadline,
    memory: &KubeMemory,
) -> Result<bool> {
    let kube = present.source.open(request.unreached(), deadline)?;
    if recorded.is_some_and(|site| is_other_login(site, &kube, request, deadline)) {
        return Ok(true);
    }
    let known = known(request);
    let marked = known.iter().find_map(|lease| Some((lease, LeaseMark::of(lease)?)));
    let Some((lease, mark)) = marked else { return Ok(false) };
    if recorded.is_some_and(|site| site.namespace.as_ref().is_some_and(|n| *n != mark.namespace)) {
        return Ok(false);
    }
    let mut store = ObjectStore::new(kube, mark.namespace);
    let name = recorded.unwrap_or(present).names.pool(lease.address);
    let before = memory.pool(&name);
    let pool = store.read_pool(&name)?;
    Ok(before.proves(pool.as_ref().map(|pool| &pool.metadata), lease))
}

/// Returns whether a login leads to the server and namespace of a recorded site, whose own login may
/// have been rejected.
fn is_other_login(site: &KubeSite, kube: &Kube, request: &Request, deadline: Deadline) -> bool {
    let Ok(recorded) = site.source.open(request.unreached(), deadline) else { return false };
    let has_namespace = site.namespace.is_some() || recorded.namespace() == kube.namespace();
    has_namespace && recorded.has_server_of(kube)
}
