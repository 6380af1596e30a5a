//! The sentences of `release` that every program shares.

/// Advice if a container named with `--owner` holds no address.
pub const NAME_WHOLE_ID: &str = "write the whole container id, as list shows it";

/// The line if `--node` names a node without leases.
pub fn no_lease_of_node(node: &str) -> String {
    format!(
        "no lease names the node {node}: list shows the names; release leases without one by address"
    )
}

/// The line after the leases, which says whether they were released; `None` after a dry run that
/// found some.
pub fn release_summary(is_empty: bool, is_done: bool) -> Option<&'static str> {
    match (is_empty, is_done) {
        (true, _) => Some("nothing to release\n"),
        (false, true) => Some("released\n"),
        (false, false) => None,
    }
}
