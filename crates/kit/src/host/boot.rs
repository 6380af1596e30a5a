use std::fs;

/// The boot this machine is in; empty where the kernel does not say. For the chain's records.
pub fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}
