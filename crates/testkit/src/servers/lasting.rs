//! Servers that last as long as the tests of a test binary.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use super::process;

/// Servers, and the shell that removes their folders when the test's process has ended: what lasts
/// is not dropped. The servers end with the process anyway.
struct Lasting<T> {
    servers: T,
    /// It reads from a pipe that the test's process has, and reads its end when that ends.
    _remover: Child,
}

/// Keeps servers with these folders until the test's process has ended.
pub(crate) fn keep<T>(servers: T, folders: &[PathBuf]) -> &'static T {
    let _remover = remover(folders);
    &Box::leak(Box::new(Lasting { servers, _remover })).servers
}

fn remover(folders: &[PathBuf]) -> Child {
    // The second time for what a process wrote that was about to end.
    let script = r#"trap "" INT TERM HUP; cat; rm -rf "$@"; sleep 1; rm -rf "$@""#;
    let mut command = process::plain("sh");
    command.args(["-c", script, "sh"]).args(folders);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
