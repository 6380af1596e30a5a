//! What calls leave in a world, and gates at which they wait.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{World, binary, kill_now, names, start, until};

impl World {
    /// The record of an attachment on `net`.
    pub fn record(&self, container: &str) -> PathBuf {
        self.record_of(&format!("net/{container}/eth0"))
    }

    /// The record of `NETWORK/CONTAINER/IFNAME`: in a folder, if an earlier program made it there.
    pub fn record_of(&self, attachment: &str) -> PathBuf {
        let records = self.path("state/attachments");
        let earlier = records.join(attachment);
        let (folder, ifname) = attachment.rsplit_once('/').unwrap();
        if earlier.exists() { earlier } else { records.join(format!("{folder}:{ifname}")) }
    }

    /// The names in the folder of `net`'s records.
    pub fn records(&self) -> Vec<String> {
        names(&self.path("state/attachments/net"))
    }

    /// Puts a record where earlier programs made it.
    pub fn put_record_in_folder(&self, container: &str) {
        let folder = self.path("state/attachments/net").join(container);
        let record = self.record(container);
        fs::create_dir_all(&folder).unwrap();
        fs::rename(record, folder.join("eth0")).unwrap();
    }

    /// The processes whose environment names this world's plugin folder: calls, their delegates
    /// and what those left behind.
    pub fn processes(&self) -> Vec<u32> {
        let marker = self.path("bin").into_os_string().into_encoded_bytes();
        let marked = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(marker.len()).any(|piece| piece == marker)
        };
        let entries = fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(marked).collect()
    }

    /// Waits until no process of this world is left; false when the time is over.
    pub fn is_quiet_within(&self, time: Duration) -> bool {
        let give_up = Instant::now() + time;
        while !self.processes().is_empty() {
            if Instant::now() > give_up {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Whether no process holds the record's lock.
    pub fn is_unlocked(&self, container: &str) -> bool {
        fs::File::open(self.record(container)).is_ok_and(|file| file.try_lock().is_ok())
    }

    /// Waits until a call sleeps with its record open; tells whether it has started nothing, so that
    /// it is the lock it waits for.
    #[track_caller]
    pub fn waits_for_lock(&self, call: &Child, container: &str) -> bool {
        let process = PathBuf::from(format!("/proc/{}", call.id()));
        let record = self.record(container);
        // A host of its own sees the state folder at another path.
        let record = record.strip_prefix(self.path("state")).unwrap();
        let is_record = |entry: fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|file| file.ends_with(record))
        };
        until("the call to sleep with its record open", || {
            let mut open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
            open.any(is_record) && stat.contains(") S ")
        });
        let children = process.join(format!("task/{}/children", call.id()));
        fs::read_to_string(children).unwrap().is_empty()
    }

    /// The events of a record, by name.
    pub fn events(&self, container: &str) -> Vec<String> {
        let text = fs::read_to_string(self.record(container)).unwrap_or_default();
        let event = |line: &str| {
            serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().to_owned()
        };
        text.lines().map(event).collect()
    }

    /// Shell that waits until [`World::open_gate`], for a bounded time, and first says that it is
    /// there.
    pub fn gate(&self, name: &str) -> String {
        format!(
            "n=0; : >'{at}'; while [ ! -e '{open}' ] && [ $n -lt 3000 ]; do sleep 0.01; n=$((n+1)); done",
            at = self.path(&format!("{name}.at")).display(),
            open = self.path(&format!("{name}.open")).display(),
        )
    }

    /// Waits until a delegate has come to the gate.
    #[track_caller]
    pub fn at_gate(&self, name: &str) {
        let at = self.path(&format!("{name}.at"));
        until(&format!("a delegate at the gate {name}"), || at.exists());
    }

    pub fn open_gate(&self, name: &str) {
        fs::write(self.path(&format!("{name}.open")), "").unwrap();
    }

    /// An allocator as [`World::allocator`] makes it, which waits at a gate of its name before it
    /// takes its address.
    pub fn gated_allocator(&self, name: &str, address: &str) -> &Self {
        let held = self.path("held");
        fs::create_dir_all(&held).unwrap();
        let answer = json!({"cniVersion": "1.0.0", "ips": [{"address": address}], "pools": []});
        self.delegate(
            name,
            &format!(
                "f='{held}'/{name}-$CNI_CONTAINERID-$CNI_IFNAME\ncase $CNI_COMMAND in\n\
                 ADD) {gate}; echo {address} >\"$f\"; printf '%s' '{answer}';;\n\
                 DEL) rm -f \"$f\";;\nesac",
                held = held.display(),
                gate = self.gate(name),
            ),
        )
    }

    /// A delegate whose ADD fails with code 100.
    pub fn full(&self, name: &str) -> &Self {
        self.delegate(
            name,
            "case $CNI_COMMAND in ADD) printf '{\"code\":100,\"msg\":\"full\"}'; exit 1;; esac",
        )
    }

    /// An ADD that is killed once its claim is in a store, which holds so much.
    pub fn killed_add(&self, container: &str, network: &Value, held: impl Fn() -> usize) {
        let wait = format!("[ $CNI_COMMAND != ADD ] || {{ {}; }}", self.gate("zz"));
        self.delegate("ipam-da-zz", &wait);
        let mut network = network.clone();
        network["ipam"]["delegates"].as_array_mut().unwrap().push("ipam-da-zz".into());
        let before = held();
        let mut child = start(self.command("ADD", container), &network);
        until("a claim", || held() > before);
        self.at_gate("zz");
        kill_now(&mut child);
        self.open_gate("zz");
        assert!(self.is_quiet_within(Duration::from_secs(10)));
    }

    /// What is in the record, line by line.
    pub fn lines(&self, container: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.record(container)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The state of a record, in the operator's word.
    #[track_caller]
    pub fn state_of(&self, container: &str) -> String {
        let output = Command::new(binary("ipam-delegated"))
            .args(["attachments", "--json", "--state-dir"])
            .arg(self.path("state"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let row = rows.iter().find(|row| row["containerID"] == container);
        row.map_or("none".to_owned(), |row| row["state"].as_str().unwrap().to_owned())
    }

    /// Makes the repetition of every unsure DEL due now.
    pub fn make_due(&self) {
        self.make_due_at(1);
    }

    /// Makes the repetition of every unsure DEL due at a time in milliseconds since 1970.
    pub fn make_due_at(&self, time: u64) {
        let folder = self.path("state/unsure");
        for entry in fs::read_dir(&folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let record = fs::read_link(folder.join(&name)).unwrap();
            let record = self.record_of(record.to_str().unwrap());
            let (due, rest) = name.split_once('.').unwrap();
            let number: u64 = due.parse().unwrap();
            if let Ok(text) = fs::read_to_string(&record) {
                let text = text.replace(&format!("\"due\":{number}"), &format!("\"due\":{time}"));
                fs::write(&record, text).unwrap();
            }
            let new = folder.join(format!("{time:015}.{rest}"));
            fs::rename(folder.join(&name), new).unwrap();
        }
    }

    /// How many DELs are to be repeated.
    pub fn unsure(&self) -> usize {
        fs::read_dir(self.path("state/unsure")).map_or(0, Iterator::count)
    }
}
