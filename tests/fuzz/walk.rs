//! The way to a file that decides what runs as root.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ipam_kit::host::read_trusted;
use tempfile::TempDir;

use crate::engine::fuzz;

/// Folders three deep, each with a file and with links: up, down, around, absolute and dangling. The
/// folder `a/open` may be written by everybody.
fn tree() -> TempDir {
    let temp = TempDir::new().unwrap();
    let root = temp.path();
    for (i, folder) in ["", "a", "b", "a/c", "a/open", "a/open/d", "b/e"].iter().enumerate() {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("f"), format!("file {i}")).unwrap();
        for (name, target) in [
            ("up", "..".to_owned()),
            ("here", ".//./".to_owned()),
            ("over", "../b/f".to_owned()),
            ("top", root.join("a").display().to_string()),
            ("deep", "here/here/here/here/here/here/here".to_owned()),
            ("deeper", "deep/deep/deep/deep/f".to_owned()),
            ("round", "round".to_owned()),
            ("gone", "nowhere/f".to_owned()),
            ("in", format!("{}/a/open/../open/d/f", root.display())),
            ("out", format!("{}/a/open/../c/f", root.display())),
        ] {
            symlink(target, folder.join(name)).unwrap();
        }
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(root.join("a/open"), fs::Permissions::from_mode(0o777)).unwrap();
    temp
}

/// Whether the way leads through the open folder: each name is looked up by the kernel in what stands
/// before it, and a link's target in its place.
fn is_open(path: &Path, open: &Path, links: &Cell<u32>) -> bool {
    let mut place = PathBuf::new();
    for part in path.components() {
        place = fs::canonicalize(&place).unwrap_or(place);
        let at = place.join(part);
        if place == open || fs::canonicalize(&at).is_ok_and(|at| at == open) {
            return true;
        }
        if let Ok(target) = fs::read_link(&at) {
            links.set(links.get() + 1);
            if links.get() > 200 || is_open(&place.join(target), open, links) {
                return true;
            }
        }
        place = at;
    }
    false
}

/// Whether the kernel reads a file as we do, and whether it is refused where others may change it.
fn agree(path: &Path, open: &Path) -> bool {
    let is_open = || is_open(path, open, &Cell::new(0));
    match (fs::read(path), read_trusted(path)) {
        (_, Err(error)) if error.code().number() == 7 => is_open(),
        (Ok(theirs), Ok(Some(ours))) => theirs == ours && !is_open(),
        (Err(error), Ok(None)) => error.kind() == ErrorKind::NotFound,
        (Err(error), Err(_)) => error.kind() != ErrorKind::NotFound,
        (Ok(_), _) | (Err(_), Ok(Some(_))) => false,
    }
}

#[test]
fn a_way_is_walked_as_the_kernel_walks_it() {
    let tree = tree();
    let (root, open) = (tree.path(), tree.path().join("a/open"));
    let seeds = [
        "f",
        "a/f",
        "a/c/f",
        "b/over",
        "a/up/b/f",
        "a/c/top/c/f",
        "deep/f",
        "deeper",
        "b/deeper",
        "round",
        "gone",
        "a/./c/..//f",
        "a/open/f",
        "a/open/d/up/up/f",
        "in",
        "out",
        "a/c/out",
        "f/",
        "f/..",
        "a/up/a/up/a/up/f",
    ];
    fuzz("walk", &seeds.map(|seed| seed.as_bytes().to_vec()), |input| {
        // Below the tree, whatever the input is: what lies above belongs to this machine.
        let steps = input.split(|byte| *byte == b'/').scan(0_i32, |depth, step| {
            *depth += if step == b".." { -1 } else { 1 };
            (*depth >= 0).then_some(step)
        });
        let below = steps.collect::<Vec<_>>().join(&b'/');
        let path = root.join(OsStr::from_bytes(&below).to_string_lossy().trim_start_matches('/'));
        // Where the kernel begins a walk anew, beside a rename, it counts the links twice: then it may
        // find too many of them at one time and not at another.
        let agreed = (0..3).any(|_| agree(&path, &open));
        assert!(agreed, "{path:?}: {:?}, {:?}", fs::read(&path), read_trusted(&path));
    });
}
