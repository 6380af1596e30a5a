//! A call: started, ended, and what it printed.

use std::io::Write;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a call printed, and how it ended.
#[derive(Debug)]
pub struct Outcome {
    pub exit: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// stdout as JSON; null when nothing was printed.
    pub fn json(&self) -> Value {
        if self.stdout.trim().is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn success(self) -> Value {
        assert_eq!(self.exit, Some(0), "{self:?}");
        self.json()
    }

    /// It ended well, whatever it printed.
    #[track_caller]
    pub fn ended_well(self) {
        assert_eq!(self.exit, Some(0), "{self:?}");
    }

    /// The error's code and its `msg: details`.
    #[track_caller]
    pub fn failure(self) -> (u64, String) {
        assert_eq!(self.exit, Some(1), "{self:?}");
        let json = self.json();
        let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        (
            json["code"].as_u64().expect("an error code"),
            format!("{}: {}", text("msg"), text("details")),
        )
    }

    /// The addresses of the result.
    #[track_caller]
    pub fn ips(self) -> Vec<String> {
        let json = self.success();
        let ips = json["ips"].as_array().cloned().unwrap_or_default();
        ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
    }
}

/// Starts a call with this network configuration on stdin.
pub fn start(command: Command, network: &Value) -> Child {
    start_raw(command, network.to_string().as_bytes())
}

/// Starts a call with these bytes on stdin.
pub fn start_raw(mut command: Command, stdin: &[u8]) -> Child {
    let mut child = command.spawn().unwrap();
    // A program that ends without reading closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child
}

/// Waits for a call and takes what it printed.
pub fn wait(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        exit: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Waits until a condition holds; a bounded time, so that a defect fails the test.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a process with SIGKILL, as the kernel does when memory is short.
pub fn kill_now(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}
