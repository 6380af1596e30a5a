use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs the delegate with one verb for the attachment `abc`, `eth0`.
pub fn call(verb: &str, args: &str, stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ipam-ds-static"))
        .env_clear()
        .envs([
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "abc"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/abc"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", args),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the delegate starts");
    let mut pipe = child.stdin.take().expect("stdin is piped");
    if !stdin.is_empty() {
        pipe.write_all(stdin.as_bytes()).expect("the delegate reads stdin");
    }
    drop(pipe);
    child.wait_with_output().expect("the delegate ends")
}
