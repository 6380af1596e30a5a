//! A subnet of OpenWISP with those who use it.

use std::sync::atomic::{AtomicU8, Ordering};

use ipam_testkit::node;
use ipam_testkit::openwisp::OpenWisp;
use ipam_testkit::record_site::RecordSite;

pub use ipam_testkit::record_site::{VERBS, assert_told, brief};

/// A node that calls the program.
pub type Node = node::Node<OpenWisp>;

/// A subnet that no other test uses.
pub type Site<'a> = RecordSite<'a, OpenWisp>;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-da-openwisp");

/// Adds a second record of an address, as two requests at once leave it: the application looks, and
/// the database does not.
pub fn make_twin(server: &OpenWisp, address: &str, description: &str) {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let id = format!("{:032x}", 0xabcdef00_u32 + u32::from(COUNT.fetch_add(1, Ordering::Relaxed)));
    server.sql(&format!(
        "INSERT INTO openwisp_ipam_ipaddress (id, created, modified, ip_address, description, subnet_id) \
         SELECT '{id}', created, modified, ip_address, '{description}', subnet_id \
         FROM openwisp_ipam_ipaddress WHERE ip_address = '{address}' LIMIT 1"
    ));
}
