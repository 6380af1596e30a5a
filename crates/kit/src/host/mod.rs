//! What this machine knows: host-wide settings, the state folder, the node's identity, and the
//! results that runtimes keep.

mod age;
mod boot;
mod duration;
mod file;
mod lasting;
mod lock;
mod netns;
mod node;
mod note;
mod own;
mod results;
mod settings;
mod state;
mod trusted;

pub use age::is_old;
pub use boot::boot_id;
pub use duration::{parse_duration, show_duration};
pub use file::read_regular;
pub use lasting::{emptied_by_reboot, transient_machine_id};
pub use lock::{lock, lock_folder};
pub use netns::{Inhabited, Netns};
pub use node::Node;
pub use note::Note;
pub use own::{beside, is_at, make_folder, make_private_folder, open_own, read_own, replace_own};
pub use results::{Cached, ResultCache};
pub use settings::Settings;
pub use state::{StateDir, can_write};
pub use trusted::read_trusted;
