//! The inodes that a call makes, counted by strace: on a busy disk, they are what a call costs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::kills::strace;
use crate::world::{World, start, wait};

/// The calls that make an inode.
const CALLS: &str =
    "?open,openat,?mkdir,mkdirat,?symlink,symlinkat,?mknod,mknodat,memfd_create,?creat";

/// Runs a call, which must succeed, and names the inodes that it has made in the world's folders
/// and in others.
pub fn made_by_call(
    world: &World,
    others: &[&Path],
    program: &Path,
    verb: &str,
    container: &str,
    network: &Value,
) -> Vec<PathBuf> {
    let root = world.path("");
    let roots: Vec<&Path> = others.iter().copied().chain([&*root]).collect();
    let mut before = BTreeSet::new();
    roots.iter().for_each(|root| list(root, &mut before));
    // A file for each process: lines of two would interrupt each other.
    let logs = TempDir::new().unwrap();
    let mut command = world.command_of(&strace(), verb, container);
    command.args(["-ff", "-ttt", "-qq", "-s", "4096", "-e", &format!("trace={CALLS}"), "-o"]);
    command.arg(logs.path().join("log")).arg(program);
    wait(start(command, network)).success();
    let mut lines: Vec<String> = Vec::new();
    for log in fs::read_dir(logs.path()).unwrap() {
        let text = fs::read_to_string(log.unwrap().path()).unwrap();
        lines.extend(text.lines().map(str::to_owned));
    }
    // By time.
    lines.sort();
    let made = lines.iter().filter_map(|line| made_in_line(line, &before));
    made.filter(|path| roots.iter().any(|root| path.starts_with(root))).collect()
}

fn list(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        found.insert(entry.path());
        if entry.file_type().unwrap().is_dir() {
            list(&entry.path(), found);
        }
    }
}

/// The path of the inode that a line of strace has made.
fn made_in_line(line: &str, before: &BTreeSet<PathBuf>) -> Option<PathBuf> {
    if line.contains(" = -1 ") {
        return None;
    }
    let paths: Vec<PathBuf> = line.split('"').skip(1).step_by(2).map(PathBuf::from).collect();
    let (call, _) = line.split_once('(')?;
    let opens = call.ends_with("open") || call.ends_with("openat");
    let path = paths.into_iter().last()?;
    let makes = !opens
        || line.contains("O_TMPFILE")
        || (line.contains("O_CREAT") && !before.contains(&path));
    makes.then_some(path)
}
