use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::statfs;

use super::read_regular;

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const OVERLAY: u64 = 0x794c_7630;

/// Why a reboot empties this folder, if it does: the file system of the folder, or of its nearest
/// existing parent. For `lint`.
pub fn volatile_filesystem(folder: &Path) -> Option<&'static str> {
    let standing = folder.ancestors().find(|folder| folder.exists())?;
    match file_system(standing)? {
        OVERLAY => {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let upper = upper_folder(&mounts, standing)?;
            in_memory(file_system(Path::new(&upper))?)
                .map(|_| "an overlay whose upper folder is in memory")
        }
        other => in_memory(other),
    }
}

fn in_memory(file_system: u64) -> Option<&'static str> {
    match file_system {
        TMPFS => Some("a tmpfs"),
        RAMFS => Some("a ramfs"),
        _ => None,
    }
}

fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.dev())
}

fn file_system(path: &Path) -> Option<u64> {
    u64::try_from(statfs(path).ok()?.f_type).ok()
}

/// The upper folder of the overlay that a path lies on, by `/proc/self/mountinfo`.
fn upper_folder(mounts: &str, path: &Path) -> Option<String> {
    let mut nearest: (&str, &str) = ("", "");
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let (Some(at), Some(options)) = (fields.get(4), fields.last()) else { continue };
        let is_overlay = fields.windows(2).any(|pair| pair == ["-", "overlay"]);
        if is_overlay && path.starts_with(at) && at.len() >= nearest.0.len() {
            nearest = (at, options);
        }
    }
    nearest.1.split(',').find_map(|option| option.strip_prefix("upperdir=")).map(str::to_owned)
}

/// Why this machine's identity does not last, if it does not. `file` is `/etc/machine-id`. For
/// `lint`.
pub fn transient_machine_id(file: &Path) -> Option<&'static str> {
    let Ok(text) = read_regular(file) else { return Some("is missing") };
    match text.trim_ascii() {
        b"" => return Some("is empty"),
        b"uninitialized" => return Some("is not initialized yet"),
        _ => {}
    }
    let is_mount = device(file) != file.parent().and_then(device);
    let lies_in_memory = file_system(file).and_then(in_memory).is_some();
    (is_mount && lies_in_memory).then_some("is mounted from memory and changes at each boot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upper_folder_is_that_of_the_nearest_overlay() {
        let mounts = "\
25 1 0:21 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/l,upperdir=/run/up,workdir=/w
30 25 0:22 / /proc rw - proc proc rw
31 25 0:23 / /var rw - overlay overlay rw,lowerdir=/l,upperdir=/disk/up,workdir=/w
";
        let upper = |path: &str| upper_folder(mounts, Path::new(path));
        assert_eq!(upper("/var/lib/cni").as_deref(), Some("/disk/up"));
        assert_eq!(upper("/variable").as_deref(), Some("/run/up"));
        assert_eq!(upper_folder("", Path::new("/")), None);
    }

    #[test]
    fn memory_is_told_from_disk() {
        assert_eq!(volatile_filesystem(Path::new("/dev/shm/none/such")), Some("a tmpfs"));
        assert_eq!(volatile_filesystem(Path::new("/proc/self")), None);
    }

    #[test]
    fn a_machine_id_must_have_been_made() {
        let temp = tempfile::TempDir::new().unwrap();
        let file = temp.path().join("machine-id");
        assert_eq!(transient_machine_id(&file), Some("is missing"));
        for (text, why) in [
            ("\n", Some("is empty")),
            ("uninitialized\n", Some("is not initialized yet")),
            ("0123456789abcdef0123456789abcdef\n", None),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(transient_machine_id(&file), why, "{text:?}");
        }
    }
}
