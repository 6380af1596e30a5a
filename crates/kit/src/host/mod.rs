//! The state of this machine: host-wide settings, the state folder, the node's identity, and the
//! results that runtimes keep.

mod age;
mod boot;
mod duration;
mod file;
mod lock;
mod netns;
mod node;
mod own;
mod persistence;
mod results;
mod settings;
mod state;
mod state_file;
mod trusted;

pub use age::is_old;
pub use boot::boot_id;
pub use duration::{parse_duration, parse_duration_or_zero, show_duration};
pub use file::read_regular;
pub use lock::{lock, lock_folder};
pub use netns::{InhabitedNamespaces, Netns};
pub use node::Node;
pub use own::{beside, is_at, make_folder, make_private_folder, open_own, read_own, replace_own};
pub use persistence::{transient_machine_id, volatile_filesystem};
pub use results::{CachedResult, ResultCache};
pub use settings::Settings;
pub use state::{StateDir, can_write};
pub use state_file::StateFile;
pub use trusted::read_trusted;
