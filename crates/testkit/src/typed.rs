//! What a person types: `ipam-delegated` without `CNI_COMMAND`, on networks in files.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::world::{Outcome, World, binary, wait};

impl World {
    /// Writes a network as a list of plugins, as [`World::network`] has it, and gives its file.
    pub fn conflist(&self, file: &str, network: &Value) -> PathBuf {
        let mut plugin = network.clone();
        let members = plugin.as_object_mut().unwrap();
        let mut take = |key: &str| members.remove(key).unwrap();
        let list = json!({
            "cniVersion": take("cniVersion"),
            "name": take("name"),
            "plugins": [plugin, {"type": "portmap"}],
        });
        self.config(file, &list)
    }

    /// Writes a file into the folder of networks.
    pub fn config(&self, file: &str, content: &Value) -> PathBuf {
        fs::create_dir_all(self.path("net.d")).unwrap();
        let path = self.path("net.d").join(file);
        fs::write(&path, content.to_string()).unwrap();
        path
    }

    /// A person's call, with the folders of this world.
    pub fn typing(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary("ipam-delegated"));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(words);
        for (option, folder) in [("conf-dir", "net.d"), ("cni-path", "bin"), ("state-dir", "state")]
        {
            if !words.iter().any(|word| word.starts_with(&format!("--{option}"))) {
                command.arg(format!("--{option}={}", self.path(folder).display()));
            }
        }
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command
    }

    /// Types words and waits.
    pub fn typed(&self, words: &[&str]) -> Outcome {
        wait(self.typing(words).spawn().unwrap())
    }

    /// An allocator as [`World::allocator`] makes it, which also answers questions: each with the
    /// content of the file `<name>.<verb>`, and exit 1 where that is an error.
    pub fn answering(&self, name: &str, address: &str) -> &Self {
        self.allocator(&format!("{name}.cni"), address);
        let script = format!(
            "#!/bin/sh\n[ -z \"$CNI_COMMAND\" ] || exec '{cni}'\nin=$(cat)\n\
             printf '{{\"allocator\":\"{name}\",\"asked\":\"%s\",\"stdin\":%s}}\\n' \"$*\" \"${{in:-null}}\" >>'{asked}'\n\
             f='{answers}'.$1; [ -e \"$f\" ] || exit 0; cat \"$f\"; ! grep -q '\"code\"' \"$f\"\n",
            cni = self.path("bin").join(format!("{name}.cni")).display(),
            asked = self.path("asked").display(),
            answers = self.path(name).display(),
        );
        self.program(name, &script)
    }

    /// What an allocator answers a question with.
    pub fn answer(&self, name: &str, verb: &str, answer: &Value) -> &Self {
        fs::write(self.path(&format!("{name}.{verb}")), answer.to_string()).unwrap();
        self
    }

    /// The questions so far.
    pub fn asked(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("asked")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Changes each line of a record.
    pub fn edit_record(&self, container: &str, edit: impl Fn(&mut Value)) {
        let mut lines = self.lines(container);
        lines.iter_mut().for_each(edit);
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(self.record(container), text).unwrap();
    }
}
