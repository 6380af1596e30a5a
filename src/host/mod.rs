//! What this machine knows: host-wide settings, the state folder and the node's identity.

mod duration;
mod lock;
mod node;
mod settings;
mod state;

pub use duration::parse_duration;
pub use lock::lock;
pub use node::Node;
pub use settings::Settings;
pub(crate) use state::make_private_folder;
pub use state::{StateDir, can_write};
