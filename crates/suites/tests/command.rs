//! The program `ipam-conformance`: which program it starts, and what it says of one that it cannot test.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::{self, Permissions};
use std::io::pipe;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const CONFORMANCE: &str = env!("CARGO_BIN_EXE_ipam-conformance");

/// What the command says, and how it ends.
fn said(words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(CONFORMANCE).args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_file_that_is_not_executable_is_refused_before_any_check() {
    let folder = env!("CARGO_MANIFEST_DIR");
    for path in [folder, &format!("{folder}/Cargo.toml")] {
        let (exit, stdout, stderr) = said(&[path]);
        assert_eq!((exit, &*stdout), (Some(2), ""));
        assert!(stderr.contains("not an executable file"), "{stderr}");
    }
}

#[test]
fn a_program_whose_every_add_fails_is_told_of_its_keys() {
    let check = "an_add_gives_one_address_of_each_pool";
    let (exit, _, stderr) = said(&["/bin/false", "--only", check]);
    assert_eq!(exit, Some(1));
    assert!(stderr.contains("--config FILE"), "{stderr}");
}

#[test]
fn a_program_that_fails_without_an_error_object_shows_its_stderr() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stderr");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("plugin");
    let script = "#!/bin/sh\necho 'SyntaxError: line 7' >&2\nexit 1\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let (exit, stdout, _) = said(&[program.to_str().unwrap(), "--only", "a_del_releases"]);
    assert_eq!(exit, Some(1));
    assert!(stdout.contains("stdout: nothing; stderr: SyntaxError: line 7"), "{stdout}");
}

#[test]
fn words_of_a_program_are_obeyed_by_no_terminal() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("words");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("plugin");
    let error = r#"{"cniVersion":"1.0.0","code":7,"msg":"a\u001b[2J\u202e\r\nforged"}"#;
    fs::write(&program, format!("#!/bin/sh\ncat <<'END'\n{error}\nEND\nexit 1\n")).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let check = "an_add_gives_one_address_of_each_pool";
    let (exit, stdout, _) = said(&[program.to_str().unwrap(), "--only", check]);
    assert_eq!(exit, Some(1));
    assert!(stdout.contains(r"7 a\u{1b}[2J\u{202e}\r\nforged"), "{stdout:?}");
    assert!(!stdout.contains("\nforged"), "{stdout:?}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_command_in_silence() {
    let mut command = Command::new(CONFORMANCE);
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let output = command.arg("--list").stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
}

/// A preset is a link to `ipam-delegated`, which reads the name that it is called by.
#[test]
fn a_link_is_started_by_its_own_name() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("link");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let script = "#!/bin/sh\nprintf '{\"code\":99,\"msg\":\"it is %s\"}' \"${0##*/}\"; exit 1\n";
    fs::write(folder.join("program"), script).unwrap();
    fs::set_permissions(folder.join("program"), Permissions::from_mode(0o755)).unwrap();
    symlink("program", folder.join("preset")).unwrap();
    let preset = folder.join("preset");
    let (exit, stdout, _) = said(&[preset.to_str().unwrap(), "--only", "a_del_releases"]);
    assert_eq!(exit, Some(1));
    assert!(stdout.contains("it is preset"), "{stdout}");
}

/// A selector that names the pool `blue`, without a look at anything.
const SELECTOR: &str = r#"#!/bin/sh
read -r _
echo '{"cniVersion":"1.1.0","ips":[],"pools":[{"name":"blue"}]}'
"#;

#[test]
fn a_selector_is_known_by_its_name_or_the_option() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("selector");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let config = folder.join("net.json");
    fs::write(&config, "{}").unwrap();
    let config = config.to_str().unwrap();
    for (name, option) in [("ipam-ds-blue", None), ("blue.sh", Some("--selector"))] {
        let program = folder.join(name);
        fs::write(&program, SELECTOR).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let program = program.to_str().unwrap();
        let words: Vec<&str> = option.into_iter().chain([program]).collect();

        let (exit, stdout, stderr) = said(&words);
        assert_eq!((exit, &*stdout), (Some(2), ""));
        let wanted = format!("{name} is a selector: name a configuration by --config FILE\n");
        assert!(stderr.contains(&wanted), "{stderr}");
        let (exit, _, stderr) = said(&[&words[..], &["--delegate", "--config", config]].concat());
        assert_eq!(exit, Some(2));
        assert!(stderr.contains("--delegate and --cluster are for allocators"), "{stderr}");
        let (exit, _, stderr) =
            said(&[&words[..], &["--config", config, "--only", "a_del_releases"]].concat());
        assert_eq!(exit, Some(2));
        assert!(stderr.contains("--list --selector shows the names"), "{stderr}");

        let (exit, stdout, _) = said(&[&words[..], &["--config", config]].concat());
        assert_eq!(exit, Some(1), "{stdout}");
        assert!(stdout.starts_with("pools_are_valid "), "{stdout}");
        assert!(stdout.contains("\nunknown_members_are_kept "), "{stdout}");
    }
    let (exit, stdout, _) = said(&["--list", "--selector"]);
    assert_eq!((exit, stdout.lines().next()), (Some(0), Some("pools_are_valid")));
}

/// A group of its own keeps a failure of this test from ending the other tests.
#[test]
fn a_selector_that_kills_its_process_group_leaves_the_report() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("group");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (program, config) = (folder.join("ipam-ds-blue"), folder.join("net.json"));
    fs::write(&config, "{}").unwrap();
    fs::write(&program, SELECTOR.replace("read -r _", "trap 'kill 0' EXIT; read -r _")).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(CONFORMANCE);
    command.arg(program).arg("--config").arg(config).args(["--only", "pools_are_valid"]);
    let output = command.process_group(0).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.starts_with(b"pools_are_valid  FAILED"), "{output:?}");
}

#[test]
fn a_selector_that_prints_without_end_fails_its_check() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("flood");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (program, config) = (folder.join("ipam-ds-flood"), folder.join("net.json"));
    fs::write(&config, "{}").unwrap();
    fs::write(&program, "#!/bin/sh\nyes >&2 &\nexec yes\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let (program, config) = (program.to_str().unwrap(), config.to_str().unwrap());
    let (exit, stdout, _) = said(&[program, "--config", config, "--only", "pools_are_valid"]);
    assert_eq!(exit, Some(1), "{stdout}");
    assert!(stdout.starts_with("pools_are_valid  FAILED") && stdout.len() < 2000, "{stdout}");
}

#[test]
fn a_selector_that_answers_a_gc_with_text_fails_its_check() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("text");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (program, config) = (folder.join("ipam-ds-text"), folder.join("net.json"));
    fs::write(&config, "{}").unwrap();
    fs::write(&program, "#!/bin/sh\necho nothing to collect\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let (program, config) = (program.to_str().unwrap(), config.to_str().unwrap());
    let check = "gc_answers_pools_or_nothing";
    let (exit, stdout, _) = said(&[program, "--config", config, "--only", check]);
    assert_eq!(exit, Some(1), "{stdout}");
    assert!(stdout.contains("GC has on stdout nothing to collect"), "{stdout}");
}
