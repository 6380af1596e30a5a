//! The program `ipam-da-etcd`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ipam_kit::run("ipam-da-etcd", ipam_da_etcd::delegate())
}
