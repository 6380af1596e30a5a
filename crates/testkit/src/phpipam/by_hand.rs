//! What a person does on the server's pages, beside the tested programs: by the API, with all rights.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::api;
use super::database::Record;
use super::server::{Kind, PhpIpam};

impl PhpIpam {
    #[track_caller]
    fn by_hand(&self, method: &str, target: &str, body: Option<&Value>) -> Value {
        match &self.kind {
            Kind::Imitation(site) => api::by_hand(site, method, target, body),
            Kind::Real(site) => site.by_hand(method, target, body),
        }
    }

    /// The same, which has to be done.
    #[track_caller]
    fn done(&self, method: &str, target: &str, body: &Value) -> Value {
        let answer = self.by_hand(method, target, Some(body));
        assert_eq!(answer["success"], true, "{method} {target} {body}: {answer}");
        answer
    }

    /// The id of what a request makes.
    #[track_caller]
    fn made(&self, target: &str, body: &Value) -> String {
        self.done("POST", target, body)["id"].as_str().unwrap().to_owned()
    }

    /// The id of the section that a test gives this number.
    #[track_caller]
    pub fn section(&self, number: u64) -> String {
        match &self.kind {
            Kind::Imitation(_) => number.to_string(),
            Kind::Real(site) => site.section(number).to_string(),
        }
    }

    /// The name of the section that a test gives this number.
    #[track_caller]
    pub fn section_name(&self, number: u64) -> String {
        let target = format!("sections/{}/", self.section(number));
        let answer = self.by_hand("GET", &target, None);
        answer["data"]["name"].as_str().unwrap().to_owned()
    }

    /// Makes a subnet in the section 1: its id.
    #[track_caller]
    pub fn subnet(&self, cidr: &str, description: &str) -> String {
        self.subnet_in(1, None, cidr, description)
    }

    /// Makes a subnet in a section and inside of another one.
    #[track_caller]
    pub fn subnet_in(
        &self,
        section: u64,
        parent: Option<&str>,
        cidr: &str,
        description: &str,
    ) -> String {
        let cidr: IpNet = cidr.parse().unwrap();
        let mut body = json!({"subnet": cidr.addr(), "mask": cidr.prefix_len().to_string(),
            "sectionId": self.section(section), "description": description});
        if let Some(parent) = parent {
            body["masterSubnetId"] = parent.into();
        }
        self.made("subnets/", &body)
    }

    /// Makes a record with these columns: its id.
    #[track_caller]
    pub fn record(&self, subnet: &str, address: &str, columns: &[(&str, &str)]) -> String {
        let columns = columns.iter().map(|(key, value)| ((*key).to_owned(), (*value).into()));
        let mut body: Map<String, Value> = columns.collect();
        body.insert("ip".to_owned(), address.into());
        body.insert("subnetId".to_owned(), subnet.into());
        self.made("addresses/", &body.into())
    }

    /// Makes the record of a subnet's gateway.
    #[track_caller]
    pub fn gateway(&self, subnet: &str, address: &str) -> String {
        self.record(subnet, address, &[("hostname", "router"), ("is_gateway", "1")])
    }

    /// The records of a subnet, in the order of their addresses.
    #[track_caller]
    pub fn records(&self, subnet: &str) -> Vec<Record> {
        let answer = self.by_hand("GET", &format!("subnets/{subnet}/addresses/"), None);
        let rows = match (answer["code"].as_u64(), &answer["data"]) {
            (Some(200), Value::Array(rows)) => &rows[..],
            (Some(404), _) => &[],
            _ => panic!("{answer}"),
        };
        let mut records: Vec<Record> = rows.iter().map(|row| self.shown(row)).collect();
        records.sort_by_key(|record| record.address.parse::<IpAddr>().unwrap());
        records
    }

    fn shown(&self, row: &Value) -> Record {
        let text = |name: &str| match &row[name] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Record {
            id: text("id"),
            subnet: text("subnetId"),
            address: text("ip"),
            hostname: text("hostname"),
            description: text("description"),
            owner: text("owner"),
            note: text("note"),
            key: self.key_field().map(text).unwrap_or_default(),
            is_gateway: text("is_gateway") == "1",
        }
    }

    /// Changes a column of every record of a subnet.
    #[track_caller]
    pub fn edit(&self, subnet: &str, column: &str, change: impl Fn(&str) -> String) {
        for record in self.records(subnet) {
            let text = match column {
                "hostname" => &record.hostname,
                "owner" => &record.owner,
                "note" => &record.note,
                other => panic!("{other}"),
            };
            let body = json!({column: change(text)});
            self.done("PATCH", &format!("addresses/{}/", record.id), &body);
        }
    }

    #[track_caller]
    pub fn delete(&self, record: &str) {
        self.done("DELETE", &format!("addresses/{record}/"), &json!({}));
    }

    /// Waits until a condition of its records is met.
    #[track_caller]
    pub fn until(&self, subnet: &str, is_met: impl Fn(&[Record]) -> bool) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while !is_met(&self.records(subnet)) {
            assert!(Instant::now() < give_up, "{:?}", self.records(subnet));
            thread::sleep(Duration::from_millis(5));
        }
    }
}
