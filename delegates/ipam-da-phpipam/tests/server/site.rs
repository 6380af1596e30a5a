//! A subnet of phpIPAM with those who use it.

use ipam_testkit::node;
use ipam_testkit::phpipam::PhpIpam;
use ipam_testkit::record_site::RecordSite;

pub use ipam_testkit::record_site::{VERBS, assert_told, brief};

/// A node that calls the program.
pub type Node = node::Node<PhpIpam>;

/// A subnet that no other test uses.
pub type Site<'a> = RecordSite<'a, PhpIpam>;

/// The custom field of servers that have one.
pub const KEY: &str = "cni_key";
