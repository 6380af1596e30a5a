//! Beside a replaced plugin that reads and writes the same keys: cni-ipam-etcd, or host-etcd.

mod additions;
mod call;
mod change;
mod held;
mod hints;
pub(crate) mod layouts;
mod lock;
mod node_turn;
mod old_keys;
mod queue;
mod scan;
mod spelling;
mod view;
mod written;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::{Change, Commit, Entry, Question, View};
use ipam_kit::cni::{ContainerId, IfName};

pub(crate) use self::call::Beside;
use crate::client::{Answer, Client};
use crate::house::{Each, House, Token};
use crate::outcome::in_parts;
use crate::removal::remove;
use crate::session::Session;

impl House for Beside {
    /// Nothing may be given ahead of a plugin that takes what comes next unseen.
    fn is_strict(&self) -> bool {
        self.keys.overwrites
    }

    fn view(
        &mut self,
        session: &mut Session,
        question: &Question<'_>,
        earlier: Option<Token>,
    ) -> Result<View<Token>> {
        let earlier = earlier.unwrap_or_default().along;
        self.adapting(session, |beside, session| view::view(beside, session, question, &earlier))
    }

    fn commit(
        &mut self,
        session: &mut Session,
        owner: &Owner,
        token: &Token,
        change: &Change<'_>,
    ) -> Result<Commit<Token>> {
        self.adapting(session, |beside, session| {
            in_parts(&token.seen, change, |seen, part| {
                let token = Token { seen: seen.clone(), along: token.along.clone() };
                change::change(beside, session, owner, token, part)
            })
        })
    }

    fn remove(&mut self, session: &mut Session, entries: &[Entry]) -> Result<Vec<Entry>> {
        let removed = self.adapting(session, |_, session| remove(session, entries))?;
        for holder in removed.iter().filter_map(|entry| entry.holder.as_ref()) {
            // What stands in the store need not be a name that can be a file's.
            let ifname = holder.ifname.as_deref().map(IfName::parse);
            let container = ContainerId::parse(&holder.container);
            if let (Ok(container), Some(Ok(ifname))) = (container, ifname) {
                self.hints.forget_named(&container, session.keys.network(), &ifname);
            }
        }
        Ok(removed)
    }

    fn scan(&mut self, session: &mut Session, node: Option<&str>, each: Each<'_>) -> Result<()> {
        scan::scan(self, session, node, each)
    }

    fn ready(&mut self, session: &mut Session) -> Result<()> {
        self.adapting(session, |_, session| session.ready())?;
        if self.keys.overwrites {
            scan::warn_of_overwriting(self, session);
        }
        Ok(())
    }

    fn look(&mut self, session: &mut Session) -> Result<(Answer, Option<i64>)> {
        self.adapting(session, |_, session| session.look())
    }

    fn end(&mut self, client: &mut Client) {
        self.queue.end(client);
    }
}
