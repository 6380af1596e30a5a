//! What this machine knows: host-wide settings, the state folder, the node's identity, and the
//! results that runtimes keep.

mod age;
mod duration;
mod file;
mod lasting;
mod lock;
mod netns;
mod node;
mod note;
mod results;
mod settings;
mod state;
mod trusted;

pub use age::is_old;
pub use duration::parse_duration;
pub use file::read_regular;
pub(crate) use lasting::{emptied_by_reboot, transient_machine_id};
pub use lock::{lock, lock_folder};
pub(crate) use netns::{Inhabited, Netns};
pub use node::Node;
pub use note::Note;
pub use results::{Cached, ResultCache};
pub use settings::Settings;
pub(crate) use state::make_private_folder;
pub use state::{StateDir, can_write};
pub use trusted::read_trusted;
