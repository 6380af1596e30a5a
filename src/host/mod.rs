//! What this machine knows: host-wide settings, the state folder and the node's identity.

mod duration;
mod lock;
mod node;
mod settings;
mod state;

pub use duration::parse_duration;
pub(crate) use lock::lock;
pub use node::Node;
pub use settings::Settings;
pub use state::StateDir;
pub(crate) use state::make_private_folder;
