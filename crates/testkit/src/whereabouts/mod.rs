//! The objects of whereabouts on a real Kubernetes API server: the CRDs of its releases, and what
//! the objects hold.
//!
//! ```no_run
//! use ipam_testkit::whereabouts::{Objects, Release};
//!
//! let kube = Release::V094.crds().served();
//! let objects = Objects::of(kube, &kube.create_namespace());
//! // Programs and players run.
//! objects.assert_consistent();
//! ```

mod crds;
mod names;
mod objects;
mod served;

pub use crds::{Crds, Release};
pub use names::{pool_name, reservation_name};
pub use objects::{Entry, Held, Objects};

/// The group and version of all objects.
pub const API: &str = "whereabouts.cni.cncf.io/v1alpha1";

/// The kinds by their plurals.
pub const POOLS: &str = "ippools";
pub const RESERVATIONS: &str = "overlappingrangeipreservations";

/// The path of the objects of a kind, by its plural, in a namespace.
pub fn collection(namespace: &str, plural: &str) -> String {
    format!("/apis/{API}/namespaces/{namespace}/{plural}")
}
