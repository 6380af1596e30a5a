//! Users of a server, and their rights.

use serde_json::json;

use super::client::{Client, id};

/// The rights that OpenWISP's own group of operators has: all to addresses, and to read subnets.
pub const OPERATOR: [&str; 5] = [
    "Can add IP address",
    "Can change IP address",
    "Can delete IP address",
    "Can view IP address",
    "Can view subnet",
];

/// A user of a server.
#[derive(Clone, Debug)]
pub struct User {
    pub id: String,
    pub name: String,
    pub password: String,
    pub token: String,
}

impl Client {
    /// Makes a user who manages an organization, or belongs to none, with rights by their names in
    /// OpenWISP.
    #[track_caller]
    pub fn user(&self, name: &str, organization: Option<&str>, rights: &[&str]) -> User {
        let group = json!({"name": name, "permissions": self.permissions(rights)});
        let group = self.create("users/group/", &group);
        let password = format!("password-of-{name}");
        let mut members = json!({
            "username": name,
            "email": format!("{name}@example.org"),
            // No letter is sent.
            "email_verified": true,
            "password": password,
            "is_staff": true,
            "groups": [group["id"]],
        });
        if let Some(organization) = organization {
            members["organization_users"] = json!({"organization": organization, "is_admin": true});
        }
        let id = id(&self.create("users/user/", &members));
        let login = json!({"username": name, "password": password});
        let token = self.with_token(None).create("users/token/", &login);
        let token = token["token"].as_str().unwrap().to_owned();
        User { id, name: name.to_owned(), password, token }
    }

    /// Takes all rights from a user.
    #[track_caller]
    pub fn disarm(&self, user: &User) {
        let target = format!("users/user/{}/", user.id);
        self.ask("PATCH", &target, Some(&json!({"groups": []}))).success();
    }

    /// The numbers of rights, which the group of administrators has all.
    #[track_caller]
    fn permissions(&self, rights: &[&str]) -> Vec<u64> {
        let groups = self.ask("GET", "users/group/", None).success().json();
        let known = groups["results"].as_array().unwrap().iter();
        let known = known.flat_map(|group| group["permissions"].as_array().unwrap());
        // As in `33: ipaddress | Can add IP address`.
        let known: Vec<&str> = known.map(|right| right.as_str().unwrap()).collect();
        let number = |name: &&str| {
            let right = known.iter().find(|right| right.ends_with(&format!("| {name}")));
            let right = right.unwrap_or_else(|| panic!("{name} is not among {known:?}"));
            right.split(':').next().unwrap().parse().unwrap()
        };
        rights.iter().map(number).collect()
    }
}
