//! The programs under the names of presets: ours, or those that they replace.

use std::fs;
use std::path::Path;

use super::findings::Findings;
use crate::chain::session::Session;
use crate::operator::our_plugin::OurPlugin;
use ipam_cli::read_file;
use ipam_kit::host::read_regular;

/// The list of `install.sh`, in the plugin folder.
const LIST: &str = ".ipam-delegated.installed";

impl Findings {
    /// Finds names of presets that lead to another program, lack the replaced program, or may be
    /// overwritten by its installer.
    pub(super) fn of_presets(&mut self, session: &Session<'_>, ours: &OurPlugin) {
        let planner = &session.planner;
        let named = planner.names(session.request.network.ipam());
        for preset in planner.names.presets {
            let name = preset.name;
            let is_type = ours.kind == name;
            if !is_type && !named.iter().any(|named| named == name) {
                continue;
            }
            let Ok(program) = planner.find(name) else { continue };
            if !planner.own_executable.is(&program) {
                // In a list of delegates the replaced program is a delegate like others.
                let level = if is_type { "warning" } else { "note" };
                self.push(level, &another_program(name, &program));
                continue;
            }
            if let Some(process_name) = preset.overwritten_by
                && let Some(process) = find_process(process_name)
            {
                let message = format!(
                    "the pod of {name} runs on this node (process {process}, {process_name}): at its next \
                     start it overwrites {}; remove the pod from this node",
                    program.display()
                );
                self.push("warning", &message);
            }
            let replaced = program.with_file_name(format!("{name}.orig"));
            if !replaced.exists() {
                let message = format!(
                    "{} is missing: records of the real {name} from before the switch are \
                     released by the preset's allocator",
                    replaced.display()
                );
                self.push("note", &message);
            }
        }
    }
}

/// Describes a program under the name of a preset that is another one.
fn another_program(name: &str, program: &Path) -> String {
    let list = read_file(&program.with_file_name(LIST)).unwrap_or_default();
    let is_listed = list.split(|byte| *byte == b'\n').any(|line| line == name.as_bytes());
    let program = program.display();
    if is_listed {
        format!(
            "{program} is not this program any more: the pod of {name} has overwritten what install.sh \
             put there, so the real {name} runs; remove that pod from this node, run install.sh \
             --preset {name}, then ipam-delegated reap: the real {name} leaves the records of containers"
        )
    } else {
        format!("{program} is not this program: the real {name} runs, not its preset")
    }
}

/// Finds a process of this host by its name.
fn find_process(name: &str) -> Option<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.into_iter().find(|process: &u32| {
        let comm = read_regular(Path::new(&format!("/proc/{process}/comm")));
        comm.is_ok_and(|comm| comm.trim_ascii_end() == name.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_its_name() {
        let own = read_regular(Path::new("/proc/self/comm")).unwrap();
        let own = String::from_utf8(own).unwrap();
        assert!(find_process(own.trim_end()).is_some());
        assert_eq!(find_process("no-such-process"), None);
    }
}
