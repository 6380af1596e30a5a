use etcd_client::KeyValue;
pub(crate) use ipam_kit::allocate::document::{
    Holding, Item, OwnerDocument, Revision, is_refusal_recent, now, time, to_text,
};
use ipam_kit::{Error, ErrorCode, Result};

/// Reads the answer about an owner's key.
///
/// # Errors
/// The value is not ours: nothing may be written over it.
pub(crate) fn holding(found: &KeyValue) -> Result<Holding> {
    let document = serde_json::from_slice(found.value()).map_err(|error| {
        let key = String::from_utf8_lossy(found.key());
        Error::new(ErrorCode::BACKEND, format!("the value of the key {key} is not ours"))
            .caused_by(error)
            .advise(format!(
                "look at it (etcdctl get '{key}') and delete the key if nobody needs it"
            ))
    })?;
    Ok(Holding { revision: found.mod_revision(), document })
}
