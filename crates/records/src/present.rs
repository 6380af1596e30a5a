//! The server by the present configuration, if a record names another one.

use ipam_kit::allocate::present_store::present_store;
use ipam_kit::allocate::{Lease, scope};
use ipam_kit::{Error, ErrorCode, Request};

use crate::ledger::Revision;
use crate::mark::OwnerMark;
use crate::server::RecordServer;

/// Opens the server that the present configuration names, if it proves to have the records of the
/// attachment: one of them, with this node's mark.
pub(crate) fn proven<S: RecordServer>(request: &Request, known: &[Lease]) -> Option<S> {
    present_store(
        request,
        |network| {
            let server = S::open(network.settings()?, request)?;
            let site = server.site();
            Ok((server, site))
        },
        |mut server, deadline| {
            server.set_deadline(deadline);
            let scope = scope(request)?;
            for lease in known {
                let Some(revision) = Revision::read(lease) else { continue };
                let record = server.read(&revision.id)?;
                let mark = record.and_then(|record| OwnerMark::parse(&record.text)?.ok());
                if mark
                    .is_some_and(|mark| mark.is_of_node(&scope.node) && mark.is_of_network(&scope))
                {
                    server.set_deadline(request.deadline);
                    return Ok(Some(server));
                }
            }
            match known.is_empty() {
                true => Err(Error::new(ErrorCode::TRY_AGAIN, "the record names no lease")),
                false => Ok(None),
            }
        },
    )
}
