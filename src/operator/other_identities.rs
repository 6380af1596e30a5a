//! Records that were set aside since they are of another identity of this node.

use std::path::Path;

use ipam_kit::host::StateDir;

/// Where there are such records, and what to do if they are of this machine: a line each.
pub(super) fn of_other_identities(state: &StateDir) -> Vec<String> {
    state.set_aside().iter().map(|aside| describe(state, aside)).collect()
}

fn describe(state: &StateDir, aside: &Path) -> String {
    let attachments = state.attachments().display().to_string();
    let name = aside.file_name().unwrap_or_default().to_string_lossy();
    let taken_back = state.root().join(name.replacen("attachments", "taken-back", 1));
    let (aside, taken_back) = (aside.display(), taken_back.display());
    format!(
        "{aside} holds records of another identity of this node, or of the machine that it was \
         cloned from; every verb skips them; if they are of this machine, take them back: \
         mkdir -p {attachments} && cp -an {aside}/. {attachments}/ && mv {aside} {taken_back}"
    )
}
