//! Who asks: users by static token, by client certificate, as a service account.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::client::Client;
use super::server::Kube;
use super::tls;
use crate::certificates::{Key, Pair, Standing};

/// By what a server knows somebody.
#[derive(Clone, Debug)]
pub enum Credential {
    Nothing,
    Token(String),
    Certificate(Pair),
}

/// Somebody.
#[derive(Clone, Debug)]
pub struct Login {
    /// The name that the server knows, as rights and the list of requests have it.
    pub user: String,
    pub credential: Credential,
}

/// How many users with a static token a server has.
const USERS: usize = 128;

/// Who may do everything.
const ADMIN: &str = "admin";

/// The test itself. Nothing that it does is in the list of requests.
pub(super) const TEST: &str = "ipam-delegated-test";

impl Kube {
    /// Somebody who may do everything, for programs.
    pub fn admin(&self) -> Login {
        self.token_login(ADMIN)
    }

    /// A user with a static token, without any rights, whom nobody else has: the next of those that
    /// the server knows since it started.
    #[track_caller]
    pub fn user(&self) -> Login {
        let number = self.users.fetch_add(1, Ordering::Relaxed);
        assert!(number < USERS, "all {USERS} users are taken");
        self.token_login(&name(number))
    }

    /// A user of any name by a client certificate, in these groups. `system:node:NAME` in
    /// `system:nodes` is a node.
    #[track_caller]
    pub fn certified(&self, user: &str, groups: &[&str], key: Key) -> Login {
        self.certified_as(user, groups, key, Standing::Valid)
    }

    /// The same with a certificate that may be expired or of an authority that the server does not
    /// know.
    #[track_caller]
    pub fn certified_as(&self, user: &str, groups: &[&str], key: Key, standing: Standing) -> Login {
        let pair = self.certificates().issue(user, groups, key, standing);
        Login { user: user.to_owned(), credential: Credential::Certificate(pair) }
    }

    /// A login of a node, which the Node authorizer allows what a kubelet does.
    #[track_caller]
    pub fn kubelet(&self, node: &str) -> Login {
        self.certified(&format!("system:node:{node}"), &["system:nodes"], Key::P256)
    }

    /// Somebody without any credential.
    pub fn nobody(&self) -> Login {
        Login { user: "system:anonymous".to_owned(), credential: Credential::Nothing }
    }

    /// The test's own client with this login.
    #[track_caller]
    pub fn client(&self, login: &Login) -> Client {
        let shown = match &login.credential {
            Credential::Certificate(pair) => Some(pair),
            _ => None,
        };
        let tls = tls::client(&self.authority(), shown);
        Client::new(self.address(), tls, login.token().map(str::to_owned))
    }

    pub(super) fn token_login(&self, user: &str) -> Login {
        let token = format!("{user}-{}", self.secret());
        Login { user: user.to_owned(), credential: Credential::Token(token.replace(':', "-")) }
    }

    /// The file of all static tokens: token, user, uid, groups.
    pub(super) fn tokens(&self) -> String {
        let everything = vec!["system:masters".to_owned()];
        let own = [ADMIN, TEST].map(|user| (user.to_owned(), everything.clone()));
        let free = (0..USERS).map(|number| (name(number), Vec::new()));
        let all = own.into_iter().chain(free);
        let line = |(user, groups): (String, Vec<String>)| {
            let login = self.token_login(&user);
            format!("{},{user},{user},\"{}\"\n", login.token().unwrap(), groups.join(","))
        };
        all.map(line).collect()
    }
}

impl Login {
    pub fn token(&self) -> Option<&str> {
        match &self.credential {
            Credential::Token(token) => Some(token),
            _ => None,
        }
    }
}

fn name(number: usize) -> String {
    format!("user-{number}")
}

/// How many users are taken.
pub(super) type Taken = AtomicUsize;
