/// The nodes that take leases from an allocator's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only this node.
    Node,
    /// Other nodes, too, so that this node needs a unique and permanent identity.
    Cluster,
}

impl Reach {
    /// Its word in `about --json`: `node` or `cluster`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Cluster => "cluster",
        }
    }

    /// Reads the word of `about --json`.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Node, Self::Cluster].into_iter().find(|reach| reach.as_str() == word)
    }
}
