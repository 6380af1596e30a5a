//! Records that were set aside because they have another identity of this node.

use std::path::Path;

use ipam_kit::host::StateDir;

/// Names the folders with such records, and how to take them back: a line each.
pub(super) fn of_other_identities(state: &StateDir) -> Vec<String> {
    state.set_aside().iter().map(|aside| describe(state, aside)).collect()
}

fn describe(state: &StateDir, aside: &Path) -> String {
    let attachments = state.attachments().display().to_string();
    let name = aside.file_name().unwrap_or_default().to_string_lossy();
    let taken_back = state.root().join(name.replacen("attachments", "taken-back", 1));
    let (aside, taken_back) = (aside.display(), taken_back.display());
    format!(
        "{aside} holds records of another identity of this node, or of the machine it was \
         cloned from: every verb ignores them; if they belong to this machine, take them back: \
         mkdir -p {attachments} && cp -an {aside}/. {attachments}/ && mv {aside} {taken_back}"
    )
}
