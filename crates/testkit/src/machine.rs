//! Programs that run as if on another machine: with its host's name, machine-id and instance.

use std::process::{Command, Stdio};

/// What tells a machine from others. A program on it sees neither `/etc` nor `/var/lib` of this one.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub host_name: String,
    /// What `/etc/machine-id` says; no file where there is none.
    pub id: Option<String>,
    /// What cloud-init calls the instance.
    pub instance: Option<String>,
}

const SCRIPT: &str = "\
mount -t tmpfs tmpfs /etc && mount -t tmpfs tmpfs /var/lib || exit 99
printf '%s' \"$1\" >/proc/sys/kernel/hostname
[ -z \"$2\" ] || echo \"$2\" >/etc/machine-id
[ -z \"$3\" ] || { mkdir -p /var/lib/cloud/data; echo \"$3\" >/var/lib/cloud/data/instance-id; }
shift 3; exec \"$@\"";

impl Machine {
    pub fn named(host_name: &str) -> Self {
        Self { host_name: host_name.to_owned(), ..Self::default() }
    }

    pub fn id(self, id: &str) -> Self {
        Self { id: Some(id.to_owned()), ..self }
    }

    pub fn instance(self, instance: &str) -> Self {
        Self { instance: Some(instance.to_owned()), ..self }
    }

    /// The same command, environment and all, on this machine, with pipes to it. Needs root: a test that cannot run
    /// fails.
    #[track_caller]
    pub fn run(&self, command: &Command) -> Command {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test needs namespaces of its own: run it as root"
        );
        let mut other = Command::new("unshare");
        other.args(["--mount", "--uts", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]);
        other.arg(&self.host_name);
        other.args([&self.id, &self.instance].map(|text| text.as_deref().unwrap_or_default()));
        other.arg(command.get_program()).args(command.get_args()).env_clear();
        other.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        other.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        other
    }
}
