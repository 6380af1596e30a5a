//! The least a process costs: what a chain's processes are compared with.

use std::io::Write;

fn main() {
    let _ = std::io::stdout().write_all(b"hello\n");
}
